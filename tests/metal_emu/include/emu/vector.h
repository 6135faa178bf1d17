// vec<T, N>, packed_vec<T, N>, array<T, N> and as_type.
#pragma once
namespace metal {

template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;

// A swizzle, `v.zy`: it overlays the components of the vector that it is a member of.
template <class T, int N, int... I> struct emu_swizzle {
  T data[N == 3 ? 4 : N];
  typedef vec<T, sizeof...(I)> value;
  operator value() const {
    const T picked[] = {data[I]...};
    return value(picked, 0);
  }
  value operator=(value v) {
    int k = 0;
    ((data[I] = v.s[k++]), ...);
    return v;
  }
  value operator=(const emu_swizzle& other) { return *this = value(other); }
};

// How many components a constructor's argument brings.
template <class T> struct emu_components {
  static constexpr __constant int count = 1;
  typedef T element;
};
template <class T, int N> struct emu_components<vec<T, N>> {
  static constexpr __constant int count = N;
  typedef T element;
};
template <class T, int N, int... I> struct emu_components<emu_swizzle<T, N, I...>> {
  static constexpr __constant int count = sizeof...(I);
  typedef T element;
};

template <class T, int N> struct emu_storage;
template <class T> struct alignas(2 * sizeof(T)) emu_storage<T, 2> {
  union {
    T s[2];
    struct { T x, y; };
    struct { T r, g; };
    EMU_SWIZZLES_2(T)
  };
};
template <class T> struct alignas(4 * sizeof(T)) emu_storage<T, 3> {
  union {
    T s[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
    EMU_SWIZZLES_3(T)
  };
};
template <class T> struct alignas(4 * sizeof(T)) emu_storage<T, 4> {
  union {
    T s[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    EMU_SWIZZLES_4(T)
  };
};

// Copies are written out, component by component: so they bind a reference, whose alignment is checked, and each access is seen.
template <class T, int N> struct vec : emu_storage<T, N> {
  using emu_storage<T, N>::s;
  typedef T value_type;

  vec() = default;
  vec(const vec& o) { copy(o.s); }
  vec(const __constant vec& o) { copy(o.s); }
  template <class P> vec(const P* p, int) { copy(p); }
  template <class U, enable_if_t<is_arithmetic_v<U>, int> = 0> vec(U value) {
    for (int i = 0; i < N; i++) s[i] = (T)value;
  }
  template <class U> explicit vec(vec<U, N> o) { copy(o.s); }
  template <class U> explicit vec(const packed_vec<U, N>& o) { copy(o.s); }
  template <class U> explicit vec(const __constant packed_vec<U, N>& o) { copy(o.s); }
  template <class A, class B, class... R> vec(A a, B b, R... rest) {
    static_assert(emu_components<A>::count + emu_components<B>::count + (0 + ... + emu_components<R>::count) == N,
                  "wrong number of vector components");
    int k = 0;
    put(k, a);
    put(k, b);
    (put(k, rest), ...);
  }

  vec& operator=(const vec& o) {
    copy(o.s);
    return *this;
  }
  template <class V, enable_if_t<is_same_v<V, vec>, int> = 0> vec& operator=(const __constant V& o) {
    copy(o.s);
    return *this;
  }
  T& operator[](int i) { return s[i]; }
  const T& operator[](int i) const { return s[i]; }
  const __constant T& operator[](int i) const __constant { return s[i]; }

 private:
  template <class P> void copy(const P* from) {
    for (int i = 0; i < N; i++) s[i] = (T)from[i];
  }
  template <class A> void put(__private int& k, A a) {
    if constexpr (emu_components<A>::count == 1) {
      s[k++] = (T)a;
    } else {
      vec<typename emu_components<A>::element, emu_components<A>::count> v = a;
      for (int i = 0; i < emu_components<A>::count; i++) s[k++] = (T)v.s[i];
    }
  }
};

template <class T, int N> struct packed_vec {
  union {
    T s[N];
    struct { T x, y, z; };
  };
  packed_vec() = default;
  packed_vec(vec<T, N> v) {
    for (int i = 0; i < N; i++) s[i] = v.s[i];
  }
  operator vec<T, N>() const { return vec<T, N>(s, 0); }
  operator vec<T, N>() const __constant { return vec<T, N>(s, 0); }
  T& operator[](int i) { return s[i]; }
  const T& operator[](int i) const { return s[i]; }
  const __constant T& operator[](int i) const __constant { return s[i]; }
};

template <class T, size_t N> struct array {
  T elements[N];
  T& operator[](size_t i) { return elements[i]; }
  const T& operator[](size_t i) const { return elements[i]; }
  const __constant T& operator[](size_t i) const __constant { return elements[i]; }
  constexpr size_t size() const { return N; }
};

#define EMU_VECTOR_NAMES(T)             \
  typedef vec<T, 2> T##2;               \
  typedef vec<T, 3> T##3;               \
  typedef vec<T, 4> T##4;               \
  typedef packed_vec<T, 3> packed_##T##3;
#define EMU_VECTOR_TYPES(F) F(float) F(half) F(bfloat) F(int) F(uint) F(short) F(ushort) F(char) F(uchar) F(long) F(ulong) F(bool)
EMU_VECTOR_TYPES(EMU_VECTOR_NAMES)

template <class To, class From> EMU_INLINE To emu_as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between types of different size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace metal

#define EMU_EXPORT(T) using metal::T##2; using metal::T##3; using metal::T##4; using metal::packed_##T##3;
EMU_VECTOR_TYPES(EMU_EXPORT)
using metal::vec;
template <class To, class From> EMU_INLINE To as_type(From from) { return metal::emu_as_type<To>(from); }
