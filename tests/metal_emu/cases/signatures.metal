// Ways to declare a kernel that Python knows as `k`; it sets every x[i] to 1. Format: cases.py.

// case: attribute kernel
// whole
[[kernel]] void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }

// case: both
// whole
[[kernel, host_name("k")]] void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }

// case: host_name
// whole
[[host_name("k")]] kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }

// case: no buffer index
// whole
kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }

// case: const before the space
// whole
kernel void k(device float* x [[buffer(0)]], const ushort3 i [[thread_position_in_grid]],
const uint lanes [[threads_per_simdgroup]]) { x[i.x] = float(lanes) / 32; }

// case: inputs of several components
// whole
kernel void k(device float* x [[buffer(0)]], uint2 i [[thread_position_in_grid]],
uint3 n [[threads_per_grid]], ushort2 g [[threads_per_threadgroup]]) { x[i.x + n.x * i.y] = float(g.x * g.y) / 32; }

// case: instantiation by decltype
// whole
template <typename T, int N> kernel void f(device T* x [[buffer(0)]],
uint i [[thread_position_in_grid]]) { x[i] = T(N); }
template [[host_name("k")]] [[kernel]] decltype(f<float, 1>) f<float, 1>;

// case: instantiation with a signature
// whole
template <typename T, int N = 2> [[kernel, max_total_threads_per_threadgroup(N * 16)]] void f(
device T* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = T(1); }
template [[host_name("k")]] kernel void f<float>(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]);

// case: bool template argument
// whole
template <bool B> kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = B; }
template [[host_name("k" "")]] [[kernel]] decltype(f<true>) f<true>;
