// Plain C++, on every machine: what the other instruction sets are compared with.
#include "lowbit.h"
#include "target.h"

namespace lowbit {
namespace scalar {

constexpr int WIDTH = 16;
typedef float V __attribute__((vector_size(4 * WIDTH)));  // sixteen sums: the compiler makes of them what the machine has

LOWBIT_INLINE V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
LOWBIT_INLINE V load_half(const uint16_t* p) {
  V v;
  for (int i = 0; i < WIDTH; i++) v[i] = from_half(p[i]);
  return v;
}
LOWBIT_INLINE V load_bfloat(const uint16_t* p) {
  V v;
  for (int i = 0; i < WIDTH; i++) v[i] = from_bfloat(p[i]);
  return v;
}
LOWBIT_INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
LOWBIT_INLINE V set1(float f) { return f - V{}; }  // keeps -0
LOWBIT_INLINE V fma(V a, V b, V c) { return a * b + c; }
LOWBIT_INLINE V mul(V a, V b) { return a * b; }
LOWBIT_INLINE V add(V a, V b) { return a + b; }
LOWBIT_INLINE float total(V v) {
  for (int n = WIDTH / 2; n; n /= 2)
    for (int i = 0; i < n; i++) v[i] += v[i + n];
  return v[0];
}
LOWBIT_INLINE void prefetch(const void*) {}

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  for (int run = 0; run < BLOCK / 8; run++) {
    uint64_t word = 0;
    for (int i = 0; i < BITS; i++) word |= uint64_t(bytes[run * BITS + i]) << (8 * i);
    for (int j = 0; j < 8; j++) codes[run / 2][run % 2 * 8 + j] = float(word >> (j * BITS) & ((1u << BITS) - 1));
  }
}

#include "kernels.inl"

bool supported() { return true; }

}  // namespace scalar

const Kernels SCALAR = {"scalar", scalar::supported, scalar::multiply, scalar::decode, scalar::unpack};

}  // namespace lowbit
