// AVX2 with FMA: 8 codes of a run are shifted out of two words.
#include "lowbit.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit {

#if defined(__x86_64__)
LOWBIT_TARGET("avx2,fma,f16c")
namespace avx2 {

constexpr int WIDTH = 8;
using V = __m256;

LOWBIT_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
LOWBIT_INLINE V load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
LOWBIT_INLINE V load_bfloat(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
LOWBIT_INLINE void store(float* p, V v) { _mm256_storeu_ps(p, v); }
LOWBIT_INLINE V set1(float f) { return _mm256_set1_ps(f); }
LOWBIT_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
LOWBIT_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
LOWBIT_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
LOWBIT_INLINE float total(V v) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
LOWBIT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  const __m256i shifts = _mm256_setr_epi32(0, BITS, 2 * BITS, 3 * BITS, 0, BITS, 2 * BITS, 3 * BITS);
  const __m256i mask = _mm256_set1_epi32((1 << BITS) - 1);
  for (int run = 0; run < BLOCK / 8; run++) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + run * BITS, BITS);
    const int low = int(uint32_t(word)), high = int(uint32_t(word >> (4 * BITS)));
    const __m256i words = _mm256_set_m128i(_mm_set1_epi32(high), _mm_set1_epi32(low));
    codes[run] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(words, shifts), mask));
  }
}

#include "kernels.inl"

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

}  // namespace avx2
LOWBIT_TARGET_END

const Kernels AVX2 = {"avx2", avx2::supported, avx2::multiply, avx2::decode, avx2::unpack};
#else
const Kernels AVX2 = {"avx2", nullptr, nullptr, nullptr, nullptr};
#endif

}  // namespace lowbit
