#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

constexpr constant int TILE = 32, DEPTH = 16, PAD = 8;

// y = x @ w.T, x [M, K], w [N, K]: a tile of 32 x 32 a threadgroup of 4 SIMD-groups, each of these 16 x 16. Any M, N, K.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void matmul(
    device const T* x [[buffer(0)]], device const T* w [[buffer(1)]], device T* y [[buffer(2)]], constant int& M [[buffer(3)]],
    constant int& N [[buffer(4)]], constant int& K [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup T xs[TILE][DEPTH + PAD];
  threadgroup T ws[TILE][DEPTH + PAD];
  threadgroup float sums[TILE * TILE];
  const int m0 = int(group.y) * TILE, n0 = int(group.x) * TILE;
  const int row = int(simdgroup / 2) * 16, column = int(simdgroup % 2) * 16;
  simdgroup_matrix<float, 8, 8> c[2][2];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) c[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int k0 = 0; k0 < K; k0 += DEPTH) {
    for (int i = int(thread_index); i < TILE * DEPTH; i += 128) {
      const int r = i / DEPTH, k = i % DEPTH;
      xs[r][k] = (m0 + r < M && k0 + k < K) ? x[(m0 + r) * K + k0 + k] : T(0.0f);
      ws[r][k] = (n0 + r < N && k0 + k < K) ? w[(n0 + r) * K + k0 + k] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < DEPTH; k += 8) {
      simdgroup_matrix<T, 8, 8> a[2], b[2];
      for (int i = 0; i < 2; i++) simdgroup_load(a[i], &xs[row + i * 8][k], DEPTH + PAD);
      for (int j = 0; j < 2; j++) simdgroup_load(b[j], &ws[column + j * 8][k], DEPTH + PAD, ulong2(0, 0), true);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) simdgroup_multiply_accumulate(c[i][j], a[i], b[j], c[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) simdgroup_store(c[i][j], &sums[(row + i * 8) * TILE + column + j * 8], TILE);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index); i < TILE * TILE; i += 128) {
    const int m = m0 + i / TILE, n = n0 + i % TILE;
    if (m < M && n < N) y[m * N + n] = T(sums[i]);
  }
}

#define MATMUL(T)                                                                                                                  \
  template [[host_name("matmul_" #T)]] [[kernel]] void matmul<T>(                                                                  \
      device const T* x [[buffer(0)]], device const T* w [[buffer(1)]], device T* y [[buffer(2)]], constant int& M [[buffer(3)]],  \
      constant int& N [[buffer(4)]], constant int& K [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],                  \
      uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]);
MATMUL(float)
MATMUL(half)
MATMUL(bfloat)
