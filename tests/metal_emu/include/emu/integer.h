// Functions on integers.
#pragma once
namespace metal {

template <class T> EMU_INLINE T popcount(T x) { return (T)__builtin_popcountl((ulong)(make_unsigned_t<T>)x); }
template <class T> EMU_INLINE T clz(T x) {
  const int bits = 8 * sizeof(T);
  return x ? (T)(__builtin_clzl((ulong)(make_unsigned_t<T>)x) - (64 - bits)) : (T)bits;
}
template <class T> EMU_INLINE T ctz(T x) { return x ? (T)__builtin_ctzl((ulong)x) : (T)(8 * sizeof(T)); }
template <class T> EMU_INLINE T rotate(T x, T n) {
  const T bits = 8 * sizeof(T);
  n &= bits - 1;
  return n ? (T)(x << n | (make_unsigned_t<T>)x >> (bits - n)) : x;
}
// `count` bits of x from bit `offset` on, sign extended if T is signed.
template <class T> EMU_INLINE T extract_bits(T x, uint offset, uint count) {
  const uint bits = 8 * sizeof(T);
  return count == 0 ? (T)0 : (T)((T)(x << (bits - offset - count)) >> (bits - count));
}
template <class T> EMU_INLINE T insert_bits(T base, T insert, uint offset, uint count) {
  T mask = count >= 8 * sizeof(T) ? (T)~(T)0 : (T)((((T)1 << count) - 1) << offset);
  return (T)((base & ~mask) | ((T)(insert << offset) & mask));
}
EMU_INLINE int mulhi(int a, int b) { return (int)((long)a * b >> 32); }
EMU_INLINE uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
template <class T> EMU_INLINE T mul24(T a, T b) { return a * b; }
template <class T> EMU_INLINE T mad24(T a, T b, T c) { return a * b + c; }

}  // namespace metal
