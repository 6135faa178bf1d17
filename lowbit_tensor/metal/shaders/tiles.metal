// Products of many rows: tiles of x and of decoded weights in threadgroup memory, multiplied 8x8 by 8x8 with sums in float.
//
// A threadgroup of 4 SIMD-groups makes a tile of 32 x 32 outputs, each SIMD-group a quarter of it. Weights are decoded in float and then
// rounded to x's type, which is what the bound (b) of docs/numerics.md allows; with float x nothing is rounded.

constant constexpr int TILE = 32;
constant constexpr int THREADS = 128;
constant constexpr int TILE_RUNS = TILE / RUN;  // runs a row of a tile: THREADS / TILE, so that each thread decodes one

template <typename T>
struct Padded {  // 16 bytes more a row: neighbouring rows start in other banks
  static constant constexpr int STRIDE = TILE + 16 / sizeof(T);
};

// 32 x 32 elements of `source` [rows, columns], zeros past the ends. `order` (or its absence) says which rows of the source.
template <typename T>
METAL_FUNC void load_tile(
    device const T* source, device const int* order, bool gather, int row0, int rows, int column0, int columns, uint thread_index,
    threadgroup T* tile) {
  const int r = int(thread_index) / TILE_RUNS, c = int(thread_index) % TILE_RUNS * RUN;
  const bool inside = row0 + r < rows;
  const ulong row = inside ? (gather ? ulong(order[row0 + r]) : ulong(row0 + r)) : 0;
  device const T* from = source + row * ulong(columns) + ulong(column0 + c);
  for (int j = 0; j < RUN; j++)
    tile[r * Padded<T>::STRIDE + c + j] = inside && column0 + c + j < columns ? from[j] : T(0.0f);
}

// 32 rows of 32 decoded weights from row `row0` and column `column0` (a multiple of 8) of a matrix [rows, K].
template <typename T, int BITS>
METAL_FUNC void decode_tile(
    device const uchar* packed, device const uchar* scales, device const uchar* zeros, int row0, int rows, int column0, int K, int group_size,
    int parameter_kind, int align, uint thread_index, threadgroup T* tile) {
  const int r = int(thread_index) / TILE_RUNS, c = int(thread_index) % TILE_RUNS * RUN;
  const int row = row0 + r, column = column0 + c;
  float codes[RUN];
  float scale = 0.0f, zero = 0.0f;
  for (int j = 0; j < RUN; j++) codes[j] = 0.0f;
  if (row < rows && column < K) {
    const int run = column / RUN;
    decode_run<BITS>(packed + ulong(row) * row_bytes(K, BITS) + ulong(run) * BITS, run_bytes<BITS>(run, K), align, codes);
    const ulong before = ulong(row) * ulong(ceil_div(K, group_size)) * ulong(parameter_size(parameter_kind));
    const int place = group_of(column, group_size, group_shift(group_size));
    scale = load_float(scales + before, place, parameter_kind);
    zero = load_float(zeros + before, place, parameter_kind);
  }
  for (int j = 0; j < RUN; j++)
    tile[r * Padded<T>::STRIDE + c + j] = T(column + j < K ? fma(scale, codes[j], zero) : 0.0f);
}

struct Quarter {  // the 16 x 16 outputs of a SIMD-group
  simdgroup_matrix<float, 8, 8> sums[4];
};

// sums += xs @ ws.T where the weights' rows are outputs, xs @ ws where they are what is summed over.
template <typename T, bool FORWARD>
METAL_FUNC void multiply_tile(threadgroup const T* xs, threadgroup const T* ws, uint simd_index, thread Quarter& quarter) {
  constexpr int STRIDE = Padded<T>::STRIDE;
  const int m = int(simd_index) / 2 * 16, n = int(simd_index) % 2 * 16;
  for (int k = 0; k < TILE; k += 8) {
    simdgroup_matrix<T, 8, 8> a[2], b[2];
    for (int i = 0; i < 2; i++) {
      simdgroup_load(a[i], xs + (m + i * 8) * STRIDE + k, STRIDE);
      if (FORWARD) simdgroup_load(b[i], ws + (n + i * 8) * STRIDE + k, STRIDE, ulong2(0, 0), true);
      else simdgroup_load(b[i], ws + k * STRIDE + n + i * 8, STRIDE);
    }
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++)
        simdgroup_multiply_accumulate(quarter.sums[i * 2 + j], a[i], b[j], quarter.sums[i * 2 + j]);
  }
}

// The tile's outputs in threadgroup memory, [32, 32].
METAL_FUNC void store_quarter(thread const Quarter& quarter, uint simd_index, threadgroup float* outputs) {
  const int m = int(simd_index) / 2 * 16, n = int(simd_index) % 2 * 16;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      simdgroup_store(quarter.sums[i * 2 + j], outputs + (m + i * 8) * TILE + n + j * 8, TILE);
}

// FORWARD: y [M, N] = x [M, K] @ W.T + bias; else y [M, K] = x [M, N] @ W. GROUPED: rows of x sorted by expert, `order` holds where they come
// from, `offsets` [experts + 1] where each expert's begin; each expert has tiles of its own. The sum over `depth` is cut into `splits` parts,
// which go to `partial` [splits, M, width] for `add_parts`, so that a few tiles of outputs fill the device.
template <typename T, int BITS, bool FORWARD, bool GROUPED>
[[kernel, max_total_threads_per_threadgroup(128)]] void tiles(
    device const T* x, device const uchar* packed, device const uchar* scales, device const uchar* zeros, device const uchar* bias,
    device const int* order, device const int* offsets, device T* y, device float* partial, constant int& M, constant int& N,
    constant int& K, constant int& group_size, constant int& parameter_kind, constant int& bias_kind, constant int& align,
    constant int& expert_count, constant int& splits, uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simd_index [[simdgroup_index_in_threadgroup]]) {
  threadgroup T xs[TILE * Padded<T>::STRIDE];
  threadgroup T ws[TILE * Padded<T>::STRIDE];
  threadgroup float outputs[TILE * TILE];
  const int width = FORWARD ? N : K, depth = FORWARD ? K : N;
  const int column0 = int(group.x) * TILE;
  int tile = int(group.y), first = 0, last = M, expert = 0;
  if (GROUPED) {
    for (; expert < expert_count; expert++) {
      first = offsets[expert];
      last = offsets[expert + 1];
      const int count = ceil_div(last - first, TILE);
      if (tile < count) break;
      tile -= count;
    }
    if (expert == expert_count) return;
  }
  const int row0 = first + tile * TILE;
  const ulong rows_before = ulong(expert) * ulong(N);
  device const uchar* codes = packed + rows_before * row_bytes(K, BITS);
  const ulong parameters_before = rows_before * ulong(ceil_div(K, group_size)) * ulong(parameter_size(parameter_kind));

  Quarter quarter;
  for (int i = 0; i < 4; i++) quarter.sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  const int steps = ceil_div(ceil_div(depth, TILE), splits);
  const int begin = int(group.z) * steps * TILE, end = min(depth, begin + steps * TILE);
  for (int d = begin; d < end; d += TILE) {
    load_tile<T>(x, order, GROUPED, row0, last, d, depth, thread_index, xs);
    decode_tile<T, BITS>(
        codes, scales + parameters_before, zeros + parameters_before, FORWARD ? column0 : d, N, FORWARD ? d : column0, K, group_size,
        parameter_kind, align, thread_index, ws);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_tile<T, FORWARD>(xs, ws, simd_index, quarter);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  store_quarter(quarter, simd_index, outputs);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int r = int(thread_index) / TILE_RUNS, c = int(thread_index) % TILE_RUNS * RUN;
  if (row0 + r >= last) return;
  const ulong row = GROUPED ? ulong(order[row0 + r]) : ulong(row0 + r);
  for (int j = 0; j < RUN && column0 + c + j < width; j++) {
    const int column = column0 + c + j;
    const float sum = outputs[r * TILE + c + j];
    if (splits > 1) {
      partial[(ulong(group.z) * ulong(M) + row) * ulong(width) + ulong(column)] = sum;
    } else {
      const float shift = bias_kind == KIND_NONE ? 0.0f : load_float(bias, column, bias_kind);
      y[row * ulong(width) + ulong(column)] = T(sum + shift);
    }
  }
}

// The parts of a split sum, added in order, so that the bits are the same every run.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void add_parts(
    device const float* partial, device const uchar* bias, device T* y, constant int& M, constant int& width, constant int& splits,
    constant int& bias_kind, uint2 place [[thread_position_in_grid]]) {
  const int column = int(place.x);
  if (column >= width || int(place.y) >= M) return;
  const ulong index = ulong(place.y) * ulong(width) + ulong(column);
  float sum = 0.0f;
  for (int s = 0; s < splits; s++) sum += partial[ulong(s) * ulong(M) * ulong(width) + index];
  y[index] = T(bias_kind == KIND_NONE ? sum : sum + load_float(bias, column, bias_kind));
}
