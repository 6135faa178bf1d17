// AVX-512: with VBMI, 64 codes of any width come out of one shuffle, one multishift and one mask; without, 16 by shifts of words.
#include "lowbit.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit {

#if defined(__x86_64__)
#define LOWBIT_VECTORS                                                                                     \
  constexpr int WIDTH = 16;                                                                                \
  using V = __m512;                                                                                        \
  LOWBIT_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }                                             \
  LOWBIT_INLINE V load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); } \
  LOWBIT_INLINE V load_bfloat(const uint16_t* p) {                                                                \
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16)); \
  }                                                                                                        \
  LOWBIT_INLINE void store(float* p, V v) { _mm512_storeu_ps(p, v); }                                             \
  LOWBIT_INLINE V set1(float f) { return _mm512_set1_ps(f); }                                                     \
  LOWBIT_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }                                         \
  LOWBIT_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }                                                   \
  LOWBIT_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }                                                   \
  LOWBIT_INLINE float total(V v) { return _mm512_reduce_add_ps(v); }                                              \
  LOWBIT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

LOWBIT_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,fma")
namespace avx512_vbmi {

LOWBIT_VECTORS

struct Tables {
  alignas(64) uint8_t spread[9][64];    // by width: which byte of a block goes to byte j of 64-bit lane l: l * bits + j
  alignas(64) uint8_t shifts[9][64];    // by width: the bit of its lane where code j starts
  alignas(64) uint8_t quarters[4][64];  // which code goes to the lowest byte of each 32-bit lane
  constexpr Tables() : spread(), shifts(), quarters() {
    for (int bits = 1; bits <= 8; bits++)
      for (int i = 0; i < 64; i++) {
        spread[bits][i] = uint8_t(i % 8 < bits ? i / 8 * bits + i % 8 : 0);
        shifts[bits][i] = uint8_t(i % 8 * bits);
      }
    for (int q = 0; q < 4; q++)
      for (int i = 0; i < 64; i++) quarters[q][i] = uint8_t(16 * q + i / 4);
  }
};
constexpr Tables TABLES;

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  constexpr __mmask64 THERE = BITS == 8 ? ~0ull : (1ull << (8 * BITS % 64)) - 1;
  __m512i block = _mm512_maskz_loadu_epi8(THERE, bytes);
  if (BITS < 8) {
    block = _mm512_permutexvar_epi8(_mm512_load_si512(TABLES.spread[BITS]), block);
    block = _mm512_multishift_epi64_epi8(_mm512_load_si512(TABLES.shifts[BITS]), block);
    block = _mm512_and_si512(block, _mm512_set1_epi8(char((1 << BITS) - 1)));
  }
  for (int q = 0; q < 4; q++) {
    const __m512i wide = _mm512_maskz_permutexvar_epi8(0x1111111111111111ull, _mm512_load_si512(TABLES.quarters[q]), block);
    codes[q] = _mm512_cvtepi32_ps(wide);
  }
}

#include "kernels.inl"

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
}

}  // namespace avx512_vbmi
LOWBIT_TARGET_END

LOWBIT_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
namespace avx512 {

LOWBIT_VECTORS

template <int BITS>
LOWBIT_INLINE void decode_block(const uint8_t* bytes, V* codes) {
  const __m512i mask = _mm512_set1_epi32((1 << BITS) - 1);
  const __m512i shifts = _mm512_setr_epi32(0, BITS, 2 * BITS, 3 * BITS, 0, BITS, 2 * BITS, 3 * BITS, 0, BITS, 2 * BITS, 3 * BITS, 0, BITS,
                                           2 * BITS, 3 * BITS);
  for (int pair = 0; pair < 4; pair++) {
    uint64_t a = 0, b = 0;
    std::memcpy(&a, bytes + 2 * pair * BITS, BITS);
    std::memcpy(&b, bytes + (2 * pair + 1) * BITS, BITS);
    const __m128i words = _mm_setr_epi32(int(uint32_t(a)), int(uint32_t(a >> (4 * BITS))), int(uint32_t(b)), int(uint32_t(b >> (4 * BITS))));
    const __m512i spread = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), _mm512_castsi128_si512(words));
    codes[pair] = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srlv_epi32(spread, shifts), mask));
  }
}

#include "kernels.inl"

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

}  // namespace avx512
LOWBIT_TARGET_END

const Kernels AVX512_VBMI = {"avx512_vbmi", avx512_vbmi::supported, avx512_vbmi::multiply, avx512_vbmi::decode, avx512_vbmi::unpack};
const Kernels AVX512 = {"avx512", avx512::supported, avx512::multiply, avx512::decode, avx512::unpack};
#else
const Kernels AVX512_VBMI = {"avx512_vbmi", nullptr, nullptr, nullptr, nullptr};
const Kernels AVX512 = {"avx512", nullptr, nullptr, nullptr, nullptr};
#endif

}  // namespace lowbit
