// Arithmetic, comparison and assignment on vectors, component by component. A scalar is first converted to the element's type.
#pragma once
namespace metal {

template <class U> using emu_if_scalar = enable_if_t<is_arithmetic_v<U>, int>;

// A swizzle as an operand is its value.
#define EMU_BINARY(OP)                                                                                                \
  template <class T, int N> EMU_INLINE vec<T, N> operator OP(vec<T, N> a, vec<T, N> b) {                              \
    vec<T, N> r;                                                                                                      \
    for (int i = 0; i < N; i++) r.s[i] = (T)(a.s[i] OP b.s[i]);                                                       \
    return r;                                                                                                         \
  }                                                                                                                   \
  template <class T, int N, class U, emu_if_scalar<U> = 0> EMU_INLINE vec<T, N> operator OP(vec<T, N> a, U b) {       \
    return a OP vec<T, N>(b);                                                                                         \
  }                                                                                                                   \
  template <class T, int N, class U, emu_if_scalar<U> = 0> EMU_INLINE vec<T, N> operator OP(U a, vec<T, N> b) {       \
    return vec<T, N>(a) OP b;                                                                                         \
  }                                                                                                                   \
  template <class T, int N, int... I, class U> EMU_INLINE vec<T, sizeof...(I)> operator OP(emu_swizzle<T, N, I...> a, U b) { \
    return vec<T, sizeof...(I)>(a) OP vec<T, sizeof...(I)>(b);                                                        \
  }                                                                                                                   \
  template <class T, int N, int... I> EMU_INLINE vec<T, sizeof...(I)> operator OP(vec<T, sizeof...(I)> a, emu_swizzle<T, N, I...> b) { \
    return a OP vec<T, sizeof...(I)>(b);                                                                              \
  }                                                                                                                   \
  template <class T, int N, int... I, class U, emu_if_scalar<U> = 0>                                                  \
  EMU_INLINE vec<T, sizeof...(I)> operator OP(U a, emu_swizzle<T, N, I...> b) {                                       \
    return vec<T, sizeof...(I)>(a) OP vec<T, sizeof...(I)>(b);                                                        \
  }
EMU_BINARY(+)
EMU_BINARY(-)
EMU_BINARY(*)
EMU_BINARY(/)
EMU_BINARY(%)
EMU_BINARY(&)
EMU_BINARY(|)
EMU_BINARY(^)
EMU_BINARY(<<)
EMU_BINARY(>>)
#undef EMU_BINARY

#define EMU_ASSIGN_IN(SPACE, OP)                                                                        \
  template <class T, int N, class U> EMU_INLINE SPACE vec<T, N>& operator OP##=(SPACE vec<T, N>& a, U b) { \
    a = vec<T, N>(a) OP b;                                                                              \
    return a;                                                                                           \
  }
#define EMU_ASSIGN(OP) EMU_ASSIGN_IN(__private, OP) EMU_ASSIGN_IN(__local, OP) EMU_ASSIGN_IN(__global, OP)
EMU_ASSIGN(+)
EMU_ASSIGN(-)
EMU_ASSIGN(*)
EMU_ASSIGN(/)
EMU_ASSIGN(&)
EMU_ASSIGN(|)
EMU_ASSIGN(^)
EMU_ASSIGN(<<)
EMU_ASSIGN(>>)
#undef EMU_ASSIGN
#undef EMU_ASSIGN_IN

#define EMU_COMPARE(OP)                                                                                  \
  template <class T, int N> EMU_INLINE vec<bool, N> operator OP(vec<T, N> a, vec<T, N> b) {              \
    vec<bool, N> r;                                                                                      \
    for (int i = 0; i < N; i++) r.s[i] = a.s[i] OP b.s[i];                                               \
    return r;                                                                                            \
  }                                                                                                      \
  template <class T, int N, class U, emu_if_scalar<U> = 0> EMU_INLINE vec<bool, N> operator OP(vec<T, N> a, U b) { \
    return a OP vec<T, N>(b);                                                                            \
  }
EMU_COMPARE(<)
EMU_COMPARE(>)
EMU_COMPARE(<=)
EMU_COMPARE(>=)
EMU_COMPARE(==)
EMU_COMPARE(!=)
#undef EMU_COMPARE

#define EMU_UNARY(OP)                                                      \
  template <class T, int N> EMU_INLINE vec<T, N> operator OP(vec<T, N> a) { \
    for (int i = 0; i < N; i++) a.s[i] = OP a.s[i];                        \
    return a;                                                              \
  }
EMU_UNARY(-)
EMU_UNARY(~)
EMU_UNARY(!)
#undef EMU_UNARY

template <int N> EMU_INLINE bool any(vec<bool, N> a) {
  bool r = false;
  for (int i = 0; i < N; i++) r |= a.s[i];
  return r;
}
template <int N> EMU_INLINE bool all(vec<bool, N> a) {
  bool r = true;
  for (int i = 0; i < N; i++) r &= a.s[i];
  return r;
}
EMU_INLINE bool any(bool a) { return a; }
EMU_INLINE bool all(bool a) { return a; }

template <class T, int N> EMU_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T r = a.s[0] * b.s[0];
  for (int i = 1; i < N; i++) r += a.s[i] * b.s[i];
  return r;
}
template <class T, int N, int... I> EMU_INLINE T dot(emu_swizzle<T, N, I...> a, vec<T, sizeof...(I)> b) {
  return dot(vec<T, sizeof...(I)>(a), b);
}
template <class T, int N, int... I> EMU_INLINE T dot(vec<T, sizeof...(I)> a, emu_swizzle<T, N, I...> b) {
  return dot(a, vec<T, sizeof...(I)>(b));
}

}  // namespace metal
