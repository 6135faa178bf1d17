// One case, its weight, and what can be said of it.
#pragma once

#include <cstdio>
#include <vector>

#include "guarded.h"
#include "values.h"

// Powers of two that bound what is made: no sum below overflows float16.
constexpr int X_TOP = 2, PARAMETERS_TOP = -4;

enum Style : int { MIXED = 0, POSITIVE = 1, CONSTANT = 2 };  // of x and the parameters; constants: rounding errors of a sum all go one way

struct Case {
  const char* set;
  const char* function;
  int bits;
  int64_t group, length, rows, count;
  int params, kind, bias;  // kinds of the parameters, of x and the output, of the bias (-1: none)
  bool indices;
  int style, threads;
  Guard guard;
  uint64_t seed;

  int64_t groups() const { return length ? (length + group - 1) / group : 0; }
};

extern Case current;  // for a message when the program ends by a signal

inline void describe(FILE* to, const Case& c) {
  std::fprintf(to, "%s %s: bits %d, group %lld, length %lld, rows %lld, count %lld, parameters %s, x or output %s, bias %s, indices %d, style %d, threads %d, guard page %s",
               c.set, c.function, c.bits, (long long)c.group, (long long)c.length, (long long)c.rows, (long long)c.count, name_of(c.params), name_of(c.kind),
               name_of(c.bias), int(c.indices), c.style, c.threads, c.guard == Guard::AFTER ? "after" : "before");
}

// The buffers that a call may be given, each between guard pages of its own.
struct Buffers {
  Guarded packed, scales, zeros, x, bias, indices, out;
};

// Codes and parameters of one weight: packed for the library, plain for the loops.
struct TestWeight {
  const Case& c;
  uint8_t* packed;
  void *scales, *zeros;
  std::vector<uint8_t> codes;

  TestWeight(const Case& c, Buffers& buffers, Random& random) : c(c), codes(size_t(c.rows * c.length)) {
    const size_t bytes = packed_bytes(c.length, c.bits), parameters = size_t(c.rows * c.groups());
    packed = buffers.packed.take<uint8_t>(size_t(c.rows) * bytes, c.guard);
    std::memset(packed, 0, size_t(c.rows) * bytes);
    const uint8_t one = uint8_t(random.below(1u << c.bits));
    for (size_t i = 0; i < codes.size(); i++) {
      codes[i] = c.style == CONSTANT ? one : uint8_t(random.below(1u << c.bits));
      put_code(packed + int64_t(i) / c.length * int64_t(bytes), int64_t(i) % c.length, c.bits, codes[i]);
    }
    scales = buffers.scales.take<void>(parameters * bytes_of(c.params), c.guard);
    zeros = buffers.zeros.take<void>(parameters * bytes_of(c.params), c.guard);
    fill(scales, parameters, random);
    fill(zeros, parameters, random);
  }

  void fill(void* values, size_t count, Random& random) const {
    const Random start = random;
    for (size_t i = 0; i < count; i++) {
      if (c.style == CONSTANT) random = start;
      random.put(values, i, c.params, PARAMETERS_TOP, c.style != MIXED);
    }
  }

  double scaled(int64_t n, int64_t k) const { return value_at(scales, at(n, k), c.params) * codes[size_t(n * c.length + k)]; }
  double zero(int64_t n, int64_t k) const { return value_at(zeros, at(n, k), c.params); }

 private:
  size_t at(int64_t n, int64_t k) const { return size_t(n * c.groups() + k / c.group); }
};
