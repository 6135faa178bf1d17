// Plain C++, on every machine: what the other instruction sets are compared with.
#include "lowbit.h"
#include "target.h"

namespace lowbit {
namespace scalar {

constexpr int WIDTH = 1;
using V = float;

LOWBIT_INLINE V load(const float* p) { return *p; }
LOWBIT_INLINE V load_half(const uint16_t* p) { return from_half(*p); }
LOWBIT_INLINE V load_bfloat(const uint16_t* p) { return from_bfloat(*p); }
LOWBIT_INLINE void store(float* p, V v) { *p = v; }
LOWBIT_INLINE V set1(float f) { return f; }
LOWBIT_INLINE V fma(V a, V b, V c) { return a * b + c; }
LOWBIT_INLINE V mul(V a, V b) { return a * b; }
LOWBIT_INLINE V add(V a, V b) { return a + b; }
LOWBIT_INLINE float total(V v) { return v; }
LOWBIT_INLINE void prefetch(const void*) {}

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  for (int run = 0; run < BLOCK / 8; run++) {
    uint64_t word = 0;
    for (int i = 0; i < BITS; i++) word |= uint64_t(bytes[run * BITS + i]) << (8 * i);
    for (int j = 0; j < 8; j++) codes[run * 8 + j] = float(word >> (j * BITS) & ((1u << BITS) - 1));
  }
}

#include "kernels.inl"

bool supported() { return true; }

}  // namespace scalar

const Kernels SCALAR = {"scalar", scalar::supported, scalar::multiply, scalar::decode, scalar::unpack};

}  // namespace lowbit
