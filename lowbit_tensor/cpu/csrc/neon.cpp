// NEON, which every 64-bit Arm has: 4 codes at a time by shifts of words.
#include "lowbit.h"
#include "target.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lowbit {

#if defined(__aarch64__)
namespace neon {

constexpr int WIDTH = 4;
using V = float32x4_t;

LOWBIT_INLINE V load(const float* p) { return vld1q_f32(p); }
LOWBIT_INLINE V load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
LOWBIT_INLINE V load_bfloat(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
LOWBIT_INLINE void store(float* p, V v) { vst1q_f32(p, v); }
LOWBIT_INLINE V set1(float f) { return vdupq_n_f32(f); }
LOWBIT_INLINE V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
LOWBIT_INLINE V mul(V a, V b) { return vmulq_f32(a, b); }
LOWBIT_INLINE V add(V a, V b) { return vaddq_f32(a, b); }
LOWBIT_INLINE float total(V v) { return vaddvq_f32(v); }
LOWBIT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  const int32_t places[4] = {0, -BITS, -2 * BITS, -3 * BITS};
  const int32x4_t shifts = vld1q_s32(places);
  const uint32x4_t mask = vdupq_n_u32((1u << BITS) - 1);
  for (int run = 0; run < BLOCK / 8; run++) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + run * BITS, BITS);
    for (int half = 0; half < 2; half++) {
      const uint32x4_t words = vdupq_n_u32(uint32_t(word >> (half * 4 * BITS)));
      codes[run * 2 + half] = vcvtq_f32_u32(vandq_u32(vshlq_u32(words, shifts), mask));
    }
  }
}

#include "kernels.inl"

bool supported() { return true; }

}  // namespace neon

const Kernels NEON = {"neon", neon::supported, neon::multiply, neon::decode, neon::unpack};
#else
const Kernels NEON = {"neon", nullptr, nullptr, nullptr, nullptr};
#endif

}  // namespace lowbit
