// What the kernels for all instruction sets share: how values are stored, and the table of functions that each set fills.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lowbit {

enum Kind : int { HALF = 0, BFLOAT = 1, FLOAT = 2 };  // as in launch.py

constexpr int BLOCK = 64;      // codes that are decoded at once: 8 * bits bytes
constexpr int MAX_ROWS = 16;   // rows of x that one pass over the weights takes

inline float from_bfloat(uint16_t v) {
  uint32_t bits = uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline uint16_t to_bfloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);  // a NaN stays one
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);                 // to nearest, ties to even
}

inline float from_half(uint16_t v) {
  uint32_t sign = uint32_t(v & 0x8000) << 16, exponent = v >> 10 & 31, mantissa = v & 0x3ff, bits;
  if (exponent == 31) bits = sign | 0x7f800000 | mantissa << 13;
  else if (exponent) bits = sign | (exponent + 112) << 23 | mantissa << 13;
  else {  // zero or subnormal: mantissa * 2**-24, exact
    float f = float(mantissa) * 5.9604644775390625e-08f;
    std::memcpy(&bits, &f, 4);
    bits |= sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline uint16_t to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);   // NaN
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and above round to infinity
  if (rest < 0x38800000) {                                 // subnormal: the float's own adder rounds to a multiple of 2**-24
    float magnitude;
    std::memcpy(&magnitude, &rest, 4);
    magnitude += 0.5f;
    std::memcpy(&rest, &magnitude, 4);
    return uint16_t(sign | (rest - 0x3f000000));
  }
  return uint16_t(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

inline float load_float(const void* values, size_t i, int kind) {
  if (kind == FLOAT) return static_cast<const float*>(values)[i];
  uint16_t v = static_cast<const uint16_t*>(values)[i];
  return kind == HALF ? from_half(v) : from_bfloat(v);
}

inline void store_float(void* values, size_t i, int kind, float f) {
  if (kind == FLOAT) static_cast<float*>(values)[i] = f;
  else static_cast<uint16_t*>(values)[i] = kind == HALF ? to_half(f) : to_bfloat(f);
}

inline size_t row_bytes(size_t length, int bits) { return (length * size_t(bits) + 7) / 8; }

// A weight [rows, length] as its three parts; `groups` of `group_size` codes a row, the last one shorter.
struct Weight {
  const uint8_t* packed;
  const void* scales;
  const void* zeros;
  int64_t rows, length, group_size, groups;
  int bits, kind;  // kind of the parameters
};

// Activations [count, length] in float32, each row padded with zeros to `stride`, a multiple of BLOCK; and their sums over each group,
// [count, group_stride], padded with zeros to a multiple of 16.
struct Rows {
  const float* x;
  const float* sums;
  int64_t count, stride, group_stride;
};

struct Kernels {
  const char* name;
  bool (*supported)();
  // y[m][n] = sum over k of x[m][k] * w[n][k], for rows `first` to `last` of the weight; y [count, weight rows] of float32.
  void (*multiply)(const Weight& w, const Rows& x, float* y, int64_t first, int64_t last);
  // out [length] of `kind`: row `row` of the weight, rounded once.
  void (*decode)(const Weight& w, int64_t row, void* out, int kind);
  // codes [length] of a packed row.
  void (*unpack)(const uint8_t* packed, int bits, int64_t length, uint8_t* codes);
};

extern const Kernels AVX512_VBMI, AVX512, AVX2, NEON, SCALAR;

}  // namespace lowbit
