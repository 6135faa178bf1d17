// y = x @ W.T + bias for few rows of x: memory is the limit, so a run of weights is decoded once for all of them.
//
// A SIMD-group makes OUT rows of outputs for up to IN rows of x. Its lanes take the runs of a row in turn, lane l the runs l, l + 32, ...:
// neighbouring lanes read neighbouring bytes. The affine part is factored out of a run: scale * sum(x * code) + zero * sum(x).

constant constexpr int OUT = 4;  // outputs a SIMD-group: the loads of x are shared by them
constant constexpr int SIMDS = 2;  // SIMD-groups a threadgroup

// Element `index` of a row of x, 0 past its end, so that what lies past the end of a row of codes counts for nothing.
template <typename T, int IN>
METAL_FUNC void load_x(device const T* x, ulong row, int there, int k, int K, bool wide, thread float* values, thread float* sums) {
  const int count = min(RUN, K - k);
  for (int m = 0; m < IN; m++) {
    device const T* source = x + (row + ulong(min(m, there - 1))) * ulong(K) + ulong(k);
    sums[m] = 0.0f;
    if (wide && count == RUN) {
      const vec<T, 4> a = *(device const vec<T, 4>*)source;
      const vec<T, 4> b = *(device const vec<T, 4>*)(source + 4);
      for (int j = 0; j < 4; j++) {
        values[m * RUN + j] = float(a[j]);
        values[m * RUN + j + 4] = float(b[j]);
      }
    } else {
      for (int j = 0; j < RUN; j++) values[m * RUN + j] = j < count ? float(source[j]) : 0.0f;
    }
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
  // What the outputs' rows have in common is worked out once: within the loop offsets are small.
  const ulong first_row = ulong(max(expert, 0)) * ulong(N) + ulong(n0);
  device const uchar* first_codes = packed + first_row * bytes;
  const ulong parameter_bytes = first_row * ulong(groups) * ulong(parameter_size(parameter_kind));

  float sums[IN * OUT];
  for (int i = 0; i < IN * OUT; i++) sums[i] = 0.0f;
  for (int run = int(lane); run < ceil_div(K, RUN) && n0 < N && exists; run += LANES) {
    float values[IN * RUN], x_sums[IN], codes[RUN];
    load_x<T, IN>(x, ulong(m0), there, run * RUN, K, wide_x != 0, values, x_sums);
    device const uchar* at = first_codes + run * BITS;
    int place = group_of(run * RUN, group_size, shift);
    for (int r = 0; r < min(OUT, N - n0); r++, at += bytes, place += groups) {
      decode_run<BITS>(at, run_bytes<BITS>(run, K), align, codes);
      const float scale = load_float(scales + parameter_bytes, place, parameter_kind);
      const float zero = load_float(zeros + parameter_bytes, place, parameter_kind);
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
