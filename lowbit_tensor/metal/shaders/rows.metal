// y = x @ W.T + bias for few rows of x: memory is the limit, so a run of weights is decoded once for all of them.
//
// A SIMD-group makes OUT rows of outputs for up to IN rows of x. Its lanes take the runs of a row in turn, lane l the runs l, l + 32, ...:
// neighbouring lanes read neighbouring bytes. The affine part is factored out of a run: scale * sum(x * code) + zero * sum(x).

constant constexpr int OUT = 4;  // outputs a SIMD-group: the loads of x are shared by them
constant constexpr int SIMDS = 2;  // SIMD-groups a threadgroup

// A run of each of IN rows of x, zeros past their end, so that what lies past the end of a row of codes counts for nothing.
template <typename T, int IN>
METAL_FUNC void load_x(
    device const T* x, thread const ulong* rows, int k, int count, bool wide, thread float* values, thread float* sums) {
  for (int m = 0; m < IN; m++) {
    device const T* source = x + (rows[m] + ulong(k));
    if (wide && count >= RUN) {
      const vec<T, 4> a = *(device const vec<T, 4>*)source;
      const vec<T, 4> b = *(device const vec<T, 4>*)(source + 4);
      for (int j = 0; j < 4; j++) {
        values[m * RUN + j] = float(a[j]);
        values[m * RUN + j + 4] = float(b[j]);
      }
    } else {
      for (int j = 0; j < RUN; j++) values[m * RUN + j] = j < count ? float(source[j]) : 0.0f;
    }
    sums[m] = 0.0f;
    for (int j = 0; j < RUN; j++) sums[m] += values[m * RUN + j];
  }
}

template <typename T, int BITS, int IN>
[[kernel, max_total_threads_per_threadgroup(64)]] void rows(
    device const T* x, device const uchar* packed, device const uchar* scales, device const uchar* zeros, device const uchar* bias,
    device const int* experts, device T* y, constant int& M, constant int& N, constant int& K, constant int& group_size,
    constant int& parameter_kind, constant int& bias_kind, constant int& align, constant int& wide_x, constant int& expert_count,
    uint3 group [[threadgroup_position_in_grid]], uint simd_index [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int n0 = (int(group.x) * SIMDS + int(simd_index)) * OUT;
  const int m0 = int(group.y) * IN;
  const int there = min(IN, M - m0);
  const int groups = ceil_div(K, group_size), shift = group_shift(group_size);
  const ulong bytes = row_bytes(K, BITS);
  // With experts, row m0 (IN is 1 then) takes the matrix of its expert; an expert that does not exist gives no number.
  const int expert = expert_count > 0 ? experts[m0] : 0;
  const bool exists = expert >= 0 && (expert_count == 0 || expert < expert_count);
  // What the runs have in common is worked out once: within the loop offsets are small. Rows past the last are the last again, so that
  // loops have constant bounds; their results are not stored.
  const ulong first_row = ulong(max(expert, 0)) * ulong(N) + ulong(n0);
  ulong codes_of[OUT];
  int places[OUT];
  for (int r = 0; r < OUT; r++) {
    const int row = max(min(r, N - 1 - n0), 0);
    codes_of[r] = (first_row + ulong(row)) * bytes;
    places[r] = row * groups;
  }
  ulong x_of[IN];
  for (int m = 0; m < IN; m++) x_of[m] = ulong(m0 + min(m, there - 1)) * ulong(K);
  const ulong parameter_bytes = first_row * ulong(groups) * ulong(parameter_size(parameter_kind));
  device const uchar* scales_at = scales + parameter_bytes;
  device const uchar* zeros_at = zeros + parameter_bytes;

  float sums[IN * OUT];
  for (int i = 0; i < IN * OUT; i++) sums[i] = 0.0f;
  for (int run = int(lane); run < ceil_div(K, RUN) && n0 < N && exists; run += LANES) {
    float values[IN * RUN], x_sums[IN], codes[RUN];
    load_x<T, IN>(x, x_of, run * RUN, K - run * RUN, wide_x != 0, values, x_sums);
    const int place = group_of(run * RUN, group_size, shift);
    for (int r = 0; r < OUT; r++) {
      decode_run<BITS>(packed + (codes_of[r] + ulong(run * BITS)), run_bytes<BITS>(run, K), align, codes);
      const float scale = load_float(scales_at, places[r] + place, parameter_kind);
      const float zero = load_float(zeros_at, places[r] + place, parameter_kind);
      for (int m = 0; m < IN; m++) {
        float dot = 0.0f;
        for (int j = 0; j < RUN; j++) dot = fma(codes[j], values[m * RUN + j], dot);
        sums[m * OUT + r] = fma(scale, dot, fma(zero, x_sums[m], sums[m * OUT + r]));
      }
    }
  }
  for (int m = 0; m < IN; m++) {
    for (int r = 0; r < OUT; r++) {
      const float total = simd_sum(sums[m * OUT + r]);
      if (lane == 0 && m < there && n0 + r < N) {
        const float shift = bias_kind == KIND_NONE ? 0.0f : load_float(bias, n0 + r, bias_kind);
        y[ulong(m0 + m) * ulong(N) + ulong(n0 + r)] = T(exists ? total + shift : NAN);
      }
    }
  }
}
