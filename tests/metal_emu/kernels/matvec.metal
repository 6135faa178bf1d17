#include <metal_stdlib>
using namespace metal;

// y[n] = sum_k x[k] * (scale[n, k/G] * q[n, k] + zero[n, k/G]), codes of 4 bits; a row a SIMD-group, two of those a threadgroup.
template <typename T, int G>
[[max_total_threads_per_threadgroup(64)]] kernel void matvec(
    device const T* x [[buffer(0)]], device const uchar* packed [[buffer(1)]], device const T* scales [[buffer(2)]],
    device const T* zeros [[buffer(3)]], device T* y [[buffer(4)]], constant int& N [[buffer(5)]], constant int& K [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int n = int(group) * 2 + int(simdgroup);
  if (n >= N) return;
  device const uchar* row = packed + n * (K / 2);
  float sum = 0;
  for (int k = int(lane) * 2; k < K; k += 64) {
    const int parameter = n * (K / G) + k / G;
    const float scale = float(scales[parameter]), zero = float(zeros[parameter]);
    sum += float(x[k]) * fma(scale, float(row[k / 2] & 15), zero);
    sum += float(x[k + 1]) * fma(scale, float(row[k / 2] >> 4), zero);
  }
  sum = simd_sum(sum);
  if (lane == 0) y[n] = T(sum);
}

#define MATVEC(T, G) template [[host_name("matvec_" #T "_" #G)]] [[kernel]] decltype(matvec<T, G>) matvec<T, G>;
MATVEC(float, 32)
MATVEC(half, 32)
MATVEC(bfloat, 64)
