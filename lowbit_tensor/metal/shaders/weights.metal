// Whole weights and their rows: dequantize, embedding, pack, unpack, encode, and what training asks for. A thread a run of 8 codes.

// out [rows, K] of T: `scale * code + zero` in float, rounded once. Row r is row `indices[r]` of the weight where there are indices.
template <typename T, int BITS, bool INDEXED>
[[kernel, max_total_threads_per_threadgroup(256)]] void dequantize(
    device const long* indices, device const uchar* packed, device const uchar* scales, device const uchar* zeros, device T* out,
    constant int& rows, constant int& K, constant int& group_size, constant int& parameter_kind, constant int& align,
    uint2 place [[thread_position_in_grid]]) {
  const int run = int(place.x);
  if (run >= ceil_div(K, RUN) || int(place.y) >= rows) return;
  const ulong row = INDEXED ? ulong(indices[place.y]) : ulong(place.y);
  float codes[RUN];
  decode_run<BITS>(packed + row * row_bytes(K, BITS) + ulong(run) * BITS, run_bytes<BITS>(run, K), align, codes);
  const ulong before = row * ulong(ceil_div(K, group_size)) * ulong(parameter_size(parameter_kind));
  const int group = group_of(run * RUN, group_size, group_shift(group_size));
  const float scale = load_float(scales + before, group, parameter_kind), zero = load_float(zeros + before, group, parameter_kind);
  device T* to = out + ulong(place.y) * ulong(K) + ulong(run * RUN);
  for (int j = 0; j < min(RUN, K - run * RUN); j++) to[j] = T(fma(scale, codes[j], zero));
}

template <int BITS>
[[kernel, max_total_threads_per_threadgroup(256)]] void unpack(
    device const uchar* packed, device uchar* codes, constant int& rows, constant int& K, constant int& align,
    uint2 place [[thread_position_in_grid]]) {
  const int run = int(place.x);
  if (run >= ceil_div(K, RUN) || int(place.y) >= rows) return;
  float decoded[RUN];
  decode_run<BITS>(packed + ulong(place.y) * row_bytes(K, BITS) + ulong(run) * BITS, run_bytes<BITS>(run, K), align, decoded);
  device uchar* to = codes + ulong(place.y) * ulong(K) + ulong(run * RUN);
  for (int j = 0; j < min(RUN, K - run * RUN); j++) to[j] = uchar(decoded[j]);
}

template <int BITS>
[[kernel, max_total_threads_per_threadgroup(256)]] void pack(
    device const uchar* codes, device uchar* packed, constant int& rows, constant int& K, uint2 place [[thread_position_in_grid]]) {
  const int run = int(place.x);
  if (run >= ceil_div(K, RUN) || int(place.y) >= rows) return;
  uint values[RUN];
  device const uchar* from = codes + ulong(place.y) * ulong(K) + ulong(run * RUN);
  for (int j = 0; j < RUN; j++) values[j] = run * RUN + j < K ? uint(from[j]) : 0;
  encode_run<BITS>(values, run_bytes<BITS>(run, K), packed + ulong(place.y) * row_bytes(K, BITS) + ulong(run) * BITS);
}

// The nearest codes of w [rows, K] for given parameters; the rounding is that of quantize/scheme.py, so bytes are the CPU's.
template <typename T, int BITS>
[[kernel, max_total_threads_per_threadgroup(256)]] void encode(
    device const T* w, device const uchar* scales, device const uchar* zeros, device uchar* packed, constant int& rows, constant int& K,
    constant int& group_size, constant int& parameter_kind, uint2 place [[thread_position_in_grid]]) {
  const int run = int(place.x);
  if (run >= ceil_div(K, RUN) || int(place.y) >= rows) return;
  const ulong before = ulong(place.y) * ulong(ceil_div(K, group_size)) * ulong(parameter_size(parameter_kind));
  const int group = group_of(run * RUN, group_size, group_shift(group_size));
  const float scale = load_float(scales + before, group, parameter_kind), zero = load_float(zeros + before, group, parameter_kind);
  device const T* from = w + ulong(place.y) * ulong(K) + ulong(run * RUN);
  constexpr int LAST = (1 << BITS) - 1;
  uint values[RUN];
  for (int j = 0; j < RUN; j++) {
    const float above = run * RUN + j < K ? float(from[j]) - zero : 0.0f;
    // Without a step all codes mean the same; the reference's division by 0 gives the last code above the zero, and 0 elsewhere.
    const float step = scale != 0.0f ? rint(above / scale) : above > 0.0f ? float(LAST) : 0.0f;
    values[j] = uint(clamp(step, 0.0f, float(LAST)));
  }
  encode_run<BITS>(values, run_bytes<BITS>(run, K), packed + ulong(place.y) * row_bytes(K, BITS) + ulong(run) * BITS);
}

// Sums over each group of grad [rows, K]: of grad * code and of grad. A SIMD-group a group; its lanes take the runs in turn.
template <int BITS>
[[kernel, max_total_threads_per_threadgroup(32)]] void group_sums(
    device const float* grad, device const uchar* packed, device float* code_sums, device float* grad_sums, constant int& rows,
    constant int& K, constant int& group_size, constant int& align, uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int first = int(group.x) * group_size, last = min(K, first + group_size);
  device const float* row = grad + ulong(group.y) * ulong(K);
  float with_codes = 0.0f, alone = 0.0f;
  for (int run = first / RUN + int(lane); run * RUN < last; run += LANES) {
    float codes[RUN];
    decode_run<BITS>(packed + ulong(group.y) * row_bytes(K, BITS) + ulong(run) * BITS, run_bytes<BITS>(run, K), align, codes);
    for (int j = 0; j < min(RUN, last - run * RUN); j++) {
      with_codes = fma(row[run * RUN + j], codes[j], with_codes);
      alone += row[run * RUN + j];
    }
  }
  with_codes = simd_sum(with_codes);
  alone = simd_sum(alone);
  const ulong place = ulong(group.y) * ulong(ceil_div(K, group_size)) + ulong(group.x);
  if (lane == 0) {
    code_sums[place] = with_codes;
    grad_sums[place] = alone;
  }
}
