#include "checks.h"

#include <algorithm>

#include "api.h"

static void stop(int64_t row, int64_t column, double got, double expected, double bound) {
  std::fflush(stdout);
  describe(stderr, current);
  std::fprintf(stderr, "\n  at [%lld, %lld]: expected %.9g within %.3g, got %.9g\n", (long long)row, (long long)column, expected, bound, got);
  std::exit(1);
}

static void compare(int64_t row, int64_t column, double got, double expected, double bound) {
  if (!(std::fabs(got - expected) <= bound)) stop(row, column, got, expected, bound);  // a NaN is never within
}

// Bound (a) of docs/api.md for a sum whose terms have the absolute sum `size`; `bias` is added in float32.
static double bound_of(int kind, double exact, double size, double bias) {
  return epsilon(kind) / 2 * std::fabs(exact) + 8 * std::ldexp(size, -24) + std::ldexp(std::fabs(bias), -24) + half_smallest(kind);
}

void check_linear(const Case& c, Buffers& buffers) {
  current = c;
  Random random(c.seed);
  const TestWeight w(c, buffers, random);
  void* x = buffers.x.take<void>(size_t(c.count * c.length) * bytes_of(c.kind), c.guard);
  const Random start = random;
  for (int64_t i = 0; i < c.count * c.length; i++) {
    if (c.style == CONSTANT) random = start;
    random.put(x, size_t(i), c.kind, X_TOP, c.style != MIXED);
  }
  void* bias = nullptr;
  if (c.bias >= 0) {
    bias = buffers.bias.take<void>(size_t(c.rows) * bytes_of(c.bias), c.guard);
    for (int64_t n = 0; n < c.rows; n++) random.put(bias, size_t(n), c.bias, X_TOP, false);
  }
  void* y = buffers.out.take<void>(size_t(c.count * c.rows) * bytes_of(c.kind), c.guard);
  lowbit_linear(x, c.kind, c.count, w.packed, w.scales, w.zeros, c.rows, c.length, c.group, c.bits, c.params, bias, std::max(c.bias, 0), y, c.threads);

  std::vector<double> exact(size_t(c.count * c.rows)), size(exact.size());
  for (int64_t n = 0; n < c.rows; n++)
    for (int64_t k = 0; k < c.length; k++) {
      const double scaled = w.scaled(n, k), zero = w.zero(n, k);
      for (int64_t m = 0; m < c.count; m++) {
        const double v = value_at(x, size_t(m * c.length + k), c.kind);
        exact[size_t(m * c.rows + n)] += v * (scaled + zero);
        size[size_t(m * c.rows + n)] += std::fabs(v) * (std::fabs(scaled) + std::fabs(zero));
      }
    }
  for (int64_t i = 0; i < c.count * c.rows; i++) {
    const double b = bias ? value_at(bias, size_t(i % c.rows), c.bias) : 0, expected = exact[size_t(i)] + b;
    compare(i / c.rows, i % c.rows, value_at(y, size_t(i), c.kind), expected, bound_of(c.kind, expected, size[size_t(i)], b));
  }
}

void check_decode(const Case& c, Buffers& buffers) {
  current = c;
  Random random(c.seed);
  const TestWeight w(c, buffers, random);
  int64_t* indices = nullptr;
  if (c.indices) {
    indices = buffers.indices.take<int64_t>(size_t(c.count) * 8, c.guard);
    for (int64_t i = 0; i < c.count; i++) indices[i] = i ? int64_t(random.below(uint64_t(c.rows))) : c.rows - 1;
  }
  void* out = buffers.out.take<void>(size_t(c.count * c.length) * bytes_of(c.kind), c.guard);
  lowbit_decode(indices, c.count, w.packed, w.scales, w.zeros, c.rows, c.length, c.group, c.bits, c.params, out, c.kind, c.threads);
  for (int64_t i = 0; i < c.count; i++)
    for (int64_t k = 0; k < c.length; k++) {
      const int64_t n = indices ? indices[i] : i;
      const double expected = w.scaled(n, k) + w.zero(n, k), size = std::fabs(w.scaled(n, k)) + std::fabs(w.zero(n, k));
      const double bound = epsilon(c.kind) / 2 * std::fabs(expected) + 2 * std::ldexp(size, -24) + half_smallest(c.kind);
      compare(i, k, value_at(out, size_t(i * c.length + k), c.kind), expected, bound);
    }
}

void check_codes(const Case& c, Buffers& buffers) {
  current = c;
  Random random(c.seed);
  const TestWeight w(c, buffers, random);
  const size_t bytes = size_t(c.rows) * packed_bytes(c.length, c.bits);
  const std::vector<uint8_t> expected(w.packed, w.packed + bytes);
  uint8_t* codes = buffers.out.take<uint8_t>(w.codes.size(), c.guard);
  for (size_t i = 0; i < w.codes.size(); i++) codes[i] = uint8_t(~w.codes[i]);
  lowbit_unpack(w.packed, c.rows, c.length, c.bits, codes, c.threads);
  for (size_t i = 0; i < w.codes.size(); i++) compare(int64_t(i) / c.length, int64_t(i) % c.length, codes[i], w.codes[i], 0);
  for (size_t i = 0; i < bytes; i++) w.packed[i] = uint8_t(~expected[i]);
  lowbit_pack(codes, c.rows, c.length, c.bits, w.packed, c.threads);
  for (size_t i = 0; i < bytes; i++) compare(0, int64_t(i), w.packed[i], expected[i], 0);
}
