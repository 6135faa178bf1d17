// Numbers and the bit stream, written apart from the code under test: as docs/format.md has them, one element or bit at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

enum Kind : int { HALF = 0, BFLOAT = 1, FLOAT = 2 };

inline const char* name_of(int kind) { return kind == HALF ? "half" : kind == BFLOAT ? "bfloat" : kind == FLOAT ? "float" : "none"; }
inline size_t bytes_of(int kind) { return kind == FLOAT ? 4 : 2; }
inline double epsilon(int kind) { return std::ldexp(1.0, kind == HALF ? -10 : kind == BFLOAT ? -7 : -23); }
inline double half_smallest(int kind) { return std::ldexp(1.0, kind == HALF ? -25 : -150); }  // at most what rounding a subnormal costs

inline double value_at(const void* values, size_t i, int kind) {
  uint16_t bits;
  float f;
  if (kind == FLOAT) {
    std::memcpy(&f, static_cast<const char*>(values) + 4 * i, 4);
    return f;
  }
  std::memcpy(&bits, static_cast<const char*>(values) + 2 * i, 2);
  if (kind == BFLOAT) {
    const uint32_t wide = uint32_t(bits) << 16;
    std::memcpy(&f, &wide, 4);
    return f;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return NAN;  // no test makes an infinity
  const double size = (exponent ? 1024 + mantissa : mantissa) * double(1u << (exponent ? exponent : 1)) / (1 << 25);
  return bits & 0x8000 ? -size : size;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 | 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return (state_ ^= state_ << 17) * 0x2545f4914f6cdd1d >> 16;
  }
  uint64_t below(uint64_t n) { return next() % n; }

  // Any bits of a number from 2**(top - 8) to 2**top, of either sign unless `positive`; now and then a zero, or a subnormal half.
  void put(void* values, size_t i, int kind, int top, bool positive) {
    const uint32_t sign = positive ? 0 : uint32_t(below(2)), rare = uint32_t(below(64));
    const uint32_t exponent = uint32_t(top - 8 + (kind == HALF ? 15 : 127)) + uint32_t(below(8));
    const int mantissa = kind == HALF ? 10 : kind == BFLOAT ? 7 : 23;
    uint32_t bits = exponent << mantissa | uint32_t(below(1u << mantissa));
    if (rare == 0) bits = 0;
    if (rare == 1 && kind == HALF) bits = uint32_t(below(1024));
    if (kind == FLOAT) {
      bits |= sign << 31;
      std::memcpy(static_cast<char*>(values) + 4 * i, &bits, 4);
    } else {
      const uint16_t narrow = uint16_t(sign << 15 | bits);
      std::memcpy(static_cast<char*>(values) + 2 * i, &narrow, 2);
    }
  }

 private:
  uint64_t state_;
};

inline size_t packed_bytes(int64_t length, int bits) { return size_t((length * bits + 7) / 8); }

// Element k occupies bits [k * bits, (k + 1) * bits) of its row.
inline void put_code(uint8_t* row, int64_t k, int bits, uint8_t code) {
  for (int j = 0; j < bits; j++)
    if (code >> j & 1) row[(k * bits + j) / 8] |= uint8_t(1 << (k * bits + j) % 8);
}
