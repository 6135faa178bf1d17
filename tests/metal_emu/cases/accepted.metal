// Constructs that must compile; `expect` is what x[i] becomes, a Python expression of i. Format: cases.py.
// Before: x[i] = h[i] = b[i] = i, v[i] = 4i + (0, 1, 2, 3), s = 0.5, w[i] = 0x3c000000 + i.

// case: vector load
// expect: 4 * i + 1
x[i] = v[i].y;

// case: cast to a vector pointer
// expect: 8 * i + 3
x[i] = ((device const float4*)v)[i].z + (*(device const float2*)(v + i)).y;

// case: reinterpret_cast
// expect: i // 4 * 4 + 3
uint4 a = reinterpret_cast<device const uint4*>(w)[i / 4]; x[i] = float(a.w & 0xffffu);

// case: bytes of words
// expect: i
device const uchar* p = (device const uchar*)w; x[i] = float(p[4 * i]);

// case: device references
// expect: 2 * i + 2
device float& r = x[i];
r += 1;
device float* p = &x[i];
*p *= 2;

// case: swizzles
// expect: 8 * i + 3
float4 a = v[i];
a.xy = a.zw;
a.w += 1;
a[2] *= 2;
float3 c = a.xyz;
x[i] = c.y + dot(v[i].xy, float2(1.0f, 0.0f));

// case: vector conversions
// expect: 16 * i + 2
half4 a = half4(v[i]);
float4 c = float4(a) * 2.0f;
int4 d = int4(c);
x[i] = float(d.x) + c.y;

// case: vector assignment operators
// expect: 8 * i + 2
float4 a = v[i];
a += 1.0f;
a *= float4(2.0f);
x[i] = a.x;

// case: select
// expect: 3 * (i < 1) + 1 + (i > 3)
float4 a = select(v[i], float4(0.0f), v[i] > float4(3.5f)); x[i] = a.w + select(1.0f, 2.0f, i > 3);

// case: as_type
// expect: 62
half2 a = as_type<half2>(w[i]);
uchar4 c = as_type<uchar4>(w[i]);
x[i] = float(a.y) + float(c.w) + float(as_type<bfloat>(ushort(0x3f80)));

// case: literals
// expect: 32.5
x[i] = float(1.5h) + float(0.5bf) + 1e1 + .5 + 2. + float(0x10u) + float(1ul << 33 >> 32);

// case: half arithmetic
// expect: i / 2 + 1
half a = h[i] * half(0.5f) + half(1.0f); x[i] = float(a);

// case: bfloat arithmetic
// expect: i / 2 + 1
bfloat a = b[i] * bfloat(0.5f); x[i] = float(a + bfloat(1.0f));

// case: bfloat rounds to even
// expect: 1.015625
x[i] = float(bfloat(1.00390625f + 0.0078125f));

// case: math
// expect: i / 2 + 9.5
x[i] = fma(x[i], s, 1.0f) + exp(0.0f) + fast::exp2(1.0f) + precise::sqrt(4.0f) + rint(2.5f) + abs(-1.0f) + rsqrt(4.0f);

// case: min, max, clamp
// expect: min(i, 3) + 3 + min(i, 2)
x[i] = min(x[i], 3.0f) + max(0.0f, 1.0f) + clamp(5.0f, 0.0f, 2.0f) + float(min(i, 2u));

// case: integers
// expect: i + 36
x[i] = float(extract_bits(w[i], 0, 16)) + float(popcount(7u)) + float(clz(1u)) + float(mulhi(1u << 31, 4u));

// case: constant table
// expect: (i & 3) - 1
constant half table[4] = {half(-1.0f), half(0.0f), half(1.0f), half(2.0f)};
// body
x[i] = float(table[i & 3]);

// case: constexpr constant table
// expect: 0.5 if i & 1 else -1
constexpr constant float table[2] = {-1.0, 0.5};
// body
x[i] = table[i & 1];

// case: constant as a template argument
// expect: 7
constexpr constant int N = 3;
template <int B> METAL_FUNC int f() { return (1 << B) - 1; }
// body
x[i] = float(f<N>());

// case: macros
// expect: 2 * i
#define TWICE(a) \
  ((a) + (a))
// body
x[i] = TWICE(x[i]);

// case: unrolling
// expect: 17 * i + 12
_Pragma("clang loop unroll(full)") for (int j = 0; j < 4; j++) x[i] += v[i][j];
#pragma unroll
for (int j = 0; j < 4; j++) x[i] += float(j);

// case: struct with a method
// expect: 2 * i
struct Scaled { float scale; float of(float a) const thread { return scale * a; } };
// body
Scaled d;
d.scale = 2;
x[i] = d.of(x[i]);

// case: struct template, specialised
// expect: 16
template <int B> struct Width { static constexpr constant int most = (1 << B) - 1; };
template <> struct Width<1> { static constexpr constant int most = 1; };
// body
x[i] = Width<4>::most + Width<1>::most;

// case: thread array parameter
// expect: 4 * i + 3
inline void f(thread float* o, device const float4* p) { for (int j = 0; j < 4; j++) o[j] = p[0][j]; }
// body
float a[8];
f(a, v + i);
x[i] = a[3];

// case: thread reference parameter
// expect: 2 * i
inline void f(thread float& o, float a) { o = 2 * a; }
// body
float a;
f(a, x[i]);
x[i] = a;

// case: threadgroup pointer parameter
// expect: 31 - i
template <typename T> inline float f(threadgroup const T* p, uint l) { return float(p[31 - l]); }
// body
threadgroup half t2[64];
t2[lane] = h[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = f(t2, lane);

// case: threadgroup array parameter
// expect: i // 4 * 4 + 3 - i % 4
template <typename T> inline float f(threadgroup T (&p)[8][4], uint l) { return float(p[l / 4][3 - l % 4]); }
// body
threadgroup half t2[8][4];
t2[lane / 4][lane % 4] = h[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = f(t2, lane);

// case: barrier of a SIMD-group
// expect: i ^ 1
threadgroup float t2[32];
t2[lane] = x[i];
simdgroup_barrier(mem_flags::mem_threadgroup);
x[i] = t2[lane ^ 1];

// case: threadgroup scalar and vectors
// expect: 7 + i // 4 * 4 + 3
threadgroup float one;
threadgroup float4 q[8];
if (t == 0) { one = 7; } if (t < 8) q[t] = v[t];
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = one + q[i / 4].w;

// case: SIMD reductions
// expect: 496 + 31 + 32 + 1
x[i] = simd_sum(x[i]) + simd_max(x[i]) + simd_min(x[i]) + float(simd_sum(1u)) + float(simd_or(1u << lane) == ~0u);

// case: SIMD shuffles
// expect: (i ^ 1) + (i + 16 if i < 16 else i) + max(i - 1, 0) + 5 + 31 - i
x[i] = simd_shuffle_xor(x[i], 1) + simd_shuffle_down(x[i], 16) + simd_shuffle_up(x[i], 1) + simd_broadcast(x[i], 5)
    + simd_shuffle(x[i], ushort(31 - lane)) + simd_broadcast_first(x[i]);

// case: SIMD votes and prefixes
// expect: 2 * i + 7
x[i] = simd_prefix_exclusive_sum(1.0f) + simd_prefix_inclusive_sum(1.0f) + float(simd_any(i == 3))
    + float(simd_all(i < 32)) + quad_sum(1.0f);

// case: SIMD functions on vectors
// expect: 4 * 496 + 32
float4 a = simd_sum(v[i]); x[i] = a.y;

// case: SIMD-uniform branch
// expect: 32
if (group == 0) x[i] = simd_sum(1.0f);
else return;

// case: arrays of matrices
// expect: 64
simdgroup_float8x8 acc[2];
acc[1] = simdgroup_float8x8(2.0f);
simdgroup_half8x8 a(half(2.0f)), c(half(3.0f));
simdgroup_multiply_accumulate(acc[1], a, c, acc[1]);
x[i] = simd_sum(acc[1].thread_elements()[0] + acc[1].thread_elements()[1]);

// case: a namespace
// expect: 33
namespace lb { template <typename T> inline T one() { return T(1); } }
// body
x[i] = lb::one<float>() + metal::simd_sum(1.0f);

// case: enum, union, switch
// expect: i or -1
enum class E { A, B };
E e = i ? E::A : E::B;
union { float f; uint u; } q;
q.f = x[i];
switch (e) { case E::A: x[i] = as_type<float>(q.u); break; default: x[i] = -1; }

// case: numeric_limits and traits
// expect: 65536
typedef float T;
// body
x[i] = float(numeric_limits<ushort>::max()) + (is_same_v<T, float> ? 1.0f : 0.0f);

// case: shifts are modulo the width
// expect: 2 ** (i & 7)
x[i] = float(1u << (32 + (i & 7)));

// case: long arithmetic
// expect: 2 * i
long a = long(i) << 33; x[i] = float(a >> 32);

// case: struct in device memory
// expect: 2 * i
struct Pair { float a; uchar b[4]; };
// body
device Pair* pairs = (device Pair*)x;
if (i < 16) {
  Pair p = pairs[i];
  p.a *= 2;
  pairs[i] = p;
}
threadgroup_barrier(mem_flags::mem_device);
if (i % 2) x[i] *= 2;

// case: computed size of an array in a template
// expect: i + 2
template <int N> inline float f(device const float* p) {
  float two[N * 2] = {};
  for (int j = 0; j < N * 2; j++) two[j] = p[j % N];
  return two[N] + two[0];
}
// body
x[i] = f<2>((device const float*)v + i) + x[i] - 2.0f * x[i] + 2.0f;

// case: a lane reads on after the others stopped
// expect: 7 if i == 0 else 0
threadgroup float one[1];
if (lane == 0) one[0] = 0;
simdgroup_barrier(mem_flags::mem_threadgroup);
x[i] = one[0];
simdgroup_barrier(mem_flags::mem_threadgroup);
if (lane == 0) {
  one[0] = one[0] + 7;
  x[i] = one[0];
}

// case: vectors at multiples of their size
// expect: 10 * i + 8
device const float4* p = v + i;
float4 a = *p;
float2 c = *((device const float2*)p + 1);
half4 d = *(device const half4*)(h + i / 4 * 4);
uint2 e = *(device const uint2*)(w + i / 2 * 2);
x[i] = a.y + c.y + 2 * float(i) + 2 + (d.w - d.z) + float(e.y - e.x);

// case: packed vectors at multiples of an element
// expect: 4 * i + 6
device const packed_float3* p = (device const packed_float3*)((device const float*)(v + i) + 1);
float3 a = float3(*p);
x[i] = a.x + a.y + a.z - 8 * float(i);
