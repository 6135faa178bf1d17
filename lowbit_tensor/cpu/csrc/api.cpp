// What Python calls, through ctypes: plain pointers and integers. Arguments are checked by the caller.
#include <algorithm>
#include <atomic>
#include <vector>

#include "lowbit.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace lowbit {

// Best first. One that the machine lacks is passed over.
static const Kernels* const ALL[] = {&AVX512_VBMI, &AVX512, &AVX2, &NEON, &SCALAR};
static std::atomic<const Kernels*> chosen{nullptr};

static bool usable(const Kernels* k) { return k->supported && k->supported(); }

static const Kernels& kernels() {
  const Kernels* k = chosen.load();
  if (!k) {
    for (const Kernels* each : ALL)
      if (usable(each)) {
        k = each;
        break;
      }
    chosen.store(k);
  }
  return *k;
}

// `body(first, last)` over parts of `count` rows; `threads` as torch counts them, one where there is too little to do.
template <class Body>
static void parallel(int64_t count, int64_t work, int threads, const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && work > (1 << 16)) {
#pragma omp parallel num_threads(threads)
    {
      const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      body(count * me / team, count * (me + 1) / team);
    }
    return;
  }
#endif
  (void)work;
  (void)threads;
  body(0, count);
}

// In double: the zeros of whole rows multiply sums of thousands of values.
static float sum_of(const float* values, int64_t count) {
  double lanes[4] = {};
  int64_t k = 0;
  for (; k + 4 <= count; k += 4)
    for (int i = 0; i < 4; i++) lanes[i] += values[k + i];
  for (; k < count; k++) lanes[0] += values[k];
  return float(lanes[0] + lanes[1] + (lanes[2] + lanes[3]));
}

static Weight weight(const uint8_t* packed, const void* scales, const void* zeros, int64_t rows, int64_t length, int64_t group_size, int bits, int kind) {
  return {packed, scales, zeros, rows, length, group_size, (length + group_size - 1) / group_size, bits, kind};
}

}  // namespace lowbit

using namespace lowbit;

extern "C" {

int lowbit_version() { return 1; }

// The name of instruction set `i`, best first; null past the last. `*usable_here` tells whether the machine has it.
const char* lowbit_set(int i, int* usable_here) {
  if (i < 0 || i >= int(sizeof ALL / sizeof *ALL)) return nullptr;
  *usable_here = usable(ALL[i]);
  return ALL[i]->name;
}

// Takes instruction set `i` from now on; -1 for the best. Returns 0 where the machine lacks it.
int lowbit_choose(int i) {
  if (i >= 0 && !usable(ALL[i])) return 0;
  chosen.store(i < 0 ? nullptr : ALL[i]);
  return 1;
}

const char* lowbit_chosen() { return kernels().name; }

// y [count, rows] of x_kind = x [count, length] of x_kind @ w.T + bias [rows] of bias_kind (or null); count up to MAX_ROWS.
void lowbit_linear(const void* x, int x_kind, int64_t count, const uint8_t* packed, const void* scales, const void* zeros, int64_t rows, int64_t length,
                   int64_t group_size, int bits, int kind, const void* bias, int bias_kind, void* y, int threads) {
  const Weight w = weight(packed, scales, zeros, rows, length, group_size, bits, kind);
  const int64_t stride = (length + BLOCK - 1) / BLOCK * BLOCK, group_stride = (w.groups + 15) / 16 * 16;
  std::vector<float> memory(size_t(count * (stride + group_stride + rows)) + 16, 0.0f);
  float *values = memory.data(), *sums = values + count * stride, *sum = sums + count * group_stride;
  for (int64_t m = 0; m < count; m++) {
    float* row = values + m * stride;
    for (int64_t k = 0; k < length; k++) row[k] = load_float(x, size_t(m * length + k), x_kind);
    for (int64_t g = 0; g < w.groups; g++) sums[m * group_stride + g] = sum_of(row + g * group_size, std::min(group_size, length - g * group_size));
  }
  const Rows all{values, sums, count, stride, group_stride};
  parallel(rows, rows * length, threads, [&](int64_t first, int64_t last) {
    kernels().multiply(w, all, sum, first, last);
    for (int64_t m = 0; m < count; m++)
      for (int64_t n = first; n < last; n++)
        store_float(y, size_t(m * rows + n), x_kind, sum[m * rows + n] + (bias ? load_float(bias, size_t(n), bias_kind) : 0.0f));
  });
}

// out [count, length] of out_kind: rows `indices` (or 0 to count - 1 where null) of the float weight.
void lowbit_decode(const int64_t* indices, int64_t count, const uint8_t* packed, const void* scales, const void* zeros, int64_t rows, int64_t length,
                   int64_t group_size, int bits, int kind, void* out, int out_kind, int threads) {
  const Weight w = weight(packed, scales, zeros, rows, length, group_size, bits, kind);
  const size_t bytes = size_t(length) * (out_kind == FLOAT ? 4 : 2);
  parallel(count, count * length, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) kernels().decode(w, indices ? indices[i] : i, static_cast<char*>(out) + size_t(i) * bytes, out_kind);
  });
}

// codes [rows, length] of packed rows.
void lowbit_unpack(const uint8_t* packed, int64_t rows, int64_t length, int bits, uint8_t* codes, int threads) {
  parallel(rows, rows * length, threads, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++) kernels().unpack(packed + size_t(n) * row_bytes(size_t(length), bits), bits, length, codes + n * length);
  });
}

// packed rows of codes [rows, length], each below 2**bits.
void lowbit_pack(const uint8_t* codes, int64_t rows, int64_t length, int bits, uint8_t* packed, int threads) {
  const int64_t bytes = int64_t(row_bytes(size_t(length), bits));
  parallel(rows, rows * length, threads, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++)
      for (int64_t run = 0; run * 8 < length; run++) {
        uint64_t word = 0;
        for (int64_t j = 0; j < 8 && run * 8 + j < length; j++) word |= uint64_t(codes[n * length + run * 8 + j]) << (j * bits);
        for (int64_t i = 0; i < bits && run * bits + i < bytes; i++) packed[n * bytes + run * bits + i] = uint8_t(word >> (8 * i));
      }
  });
}

}  // extern "C"
