// Shaders that Metal refuses; format: cases.py. The error must be told for the line marked `fault`.

// case: device to threadgroup pointer
// expect: cannot initialize a variable of type '__local float
threadgroup float* p = x;  // fault

// case: cast of device to thread
// expect: converts between mismatching address spaces
thread float* p = (thread float*)x;  // fault

// case: device pointer for a thread parameter
// expect: no matching function for call to 'f'
float f(thread const float* p) { return p[0]; }
// body
x[i] = f(x);  // fault

// case: reinterpret_cast that drops a space
// expect: is not allowed
thread uint* p = reinterpret_cast<thread uint*>(x);  // fault

// case: write through const
// expect: cannot assign to|read-only variable is not assignable
// parameters: device const float* x [[buffer(0)]]
x[i] = 1;  // fault

// case: write to a constant table
// expect: read-only variable is not assignable
constant float table[2] = {1, 2};
// body
table[0] = 1;  // fault

// case: float to bfloat
// expect: implicit conversion to bfloat
bfloat b = x[i];  // fault
x[i] = float(b);

// case: int to bfloat
// expect: implicit conversion to bfloat
bfloat b = i;  // fault
x[i] = float(b);

// case: float added to bfloat
// expect: implicit conversion to bfloat
bfloat b = bfloat(1.0f);
b += x[i];  // fault
x[i] = float(b);

// case: half4 of a float4
// expect: no viable conversion
half4 h = float4(1.0f);  // fault
x[i] = float(h.x);

// case: if constexpr
// expect: C\+\+17.*constexpr if
if constexpr (true) x[i] = 1;  // fault

// case: structured binding
// expect: C\+\+17.*(decomposition|structured binding)
struct A { float p, q; };
// body
A a = {1, 2};
auto [p, q] = a;  // fault
x[i] = p + q;

// case: fold expression
// expect: C\+\+17.*fold expression
template <class... T> int s(T... v) { return (v + ...); }  // fault
// body
x[i] = s(1, 2);

// case: lambda
// expect: lambdas need Metal 3.2
auto f = [&](float a) { return a; };  // fault
x[i] = f(x[i]);

// case: double
// expect: double
double d = x[i];  // fault

// case: not ASCII
// expect: not ASCII
x[i] = 1;  // fault µ

// case: no metal_stdlib
// expect: #include <metal_stdlib>` is missing
// exactly
kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }

// case: no metal_simdgroup_matrix
// expect: matrix>` is missing
// exactly
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* x [[buffer(0)]],
    uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
simdgroup_float8x8 m(1.0f);
}

// case: header of the C library
// expect: 'math.h' file not found
// exactly
#include <math.h>  // fault
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

kernel void k(device float* x [[buffer(0)]],
    uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
x[i] = 1;
}

// case: own header
// expect: 'own.h' file not found
// exactly
#include "own.h"  // fault
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

kernel void k(device float* x [[buffer(0)]],
    uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
x[i] = 1;
}

// case: unknown attribute of a parameter
// expect: unknown attribute 'thread_positon_in_grid'
// whole
kernel void k(device float* x [[buffer(0)]], uint i [[thread_positon_in_grid]]) {}  // fault

// case: unknown attribute of a kernel
// expect: unknown attribute 'max_threads'
// whole
[[max_threads(32)]] kernel void k(device float* x [[buffer(0)]]) {}  // fault

// case: unknown function
// expect: undeclared identifier 'simd_summ'
x[i] = simd_summ(x[i]);  // fault

// case: threadgroup array in a helper
// expect: must be declared in a kernel function
float f() { threadgroup float t[4]; return t[0]; }  // fault
// body
x[i] = f();

// case: threadgroup parameter
// expect: neither a built-in input nor a device
// whole
kernel void k(threadgroup float* t [[buffer(0)]]) {}  // fault

// case: parameter without address space
// expect: neither a built-in input nor a device
// whole
kernel void k(float* x [[buffer(0)]]) {}  // fault

// case: parameter by value
// expect: neither a built-in input nor a device
// whole
kernel void k(int n [[buffer(0)]]) {}  // fault

// case: vector for a scalar input
// expect: is a scalar
// whole
kernel void k(device float* x [[buffer(0)]], uint2 l [[thread_index_in_simdgroup]]) {}  // fault

// case: signed input
// expect: must be of type uint or ushort
// whole
kernel void k(device float* x [[buffer(0)]], int i [[thread_position_in_grid]]) {}  // fault

// case: buffer 31
// expect: buffer index 31: the last is 30
// whole
kernel void k(device float* x [[buffer(31)]]) {}  // fault

// case: one buffer index twice
// expect: two parameters of one buffer index
// whole
kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(0)]]) {}  // fault

// case: one name twice
// expect: two kernels of the name 'a'
// whole
template <typename T> [[kernel]] void f(device T* x [[buffer(0)]]) { x[0] = T(1.0f); }
template [[host_name("a")]] [[kernel]] decltype(f<int>) f<int>;
template [[host_name("a")]] [[kernel]] decltype(f<int>) f<int>;

// case: unknown kernel instantiated
// expect: 'g', which is no kernel
// whole
template [[host_name("a")]] [[kernel]] decltype(g<int>) g<int>;  // fault

// case: struct copied out of constant
// expect: no matching constructor
// parameters: device float* x [[buffer(0)]], constant A& a [[buffer(1)]]
struct A { float p; };
// body
A b = a;  // fault
x[i] = b.p;

// case: function template as an argument
// expect: pointers to functions are not allowed
inline float f(float a) { return a; }
template <float (*F)(float)> inline float g(float a) { return F(a); }  // fault
// body
x[i] = g<f>(x[i]);

// case: vectors of ?: in different spaces
// expect: incompatible operand types
// parameters: device float* x [[buffer(0)]], device float4* v [[buffer(1)]]
float4 w = i < 3 ? v[i] : float4(0.0f);  // fault
x[i] = w.x;

// case: method returning thread reference
// expect: changes address space
struct A { float m[4]; thread float& at(int j) { return m[j]; } };  // fault
// body
A a; x[i] = a.at(1);

// case: wrong number of components
// expect: wrong number of vector components
float4 v = float4(1.0f, 2.0f, 3.0f);
x[i] = v.x;

// case: math on bfloat
// expect: call to deleted function 'exp'
x[i] = float(exp(bfloat(x[i])));  // fault

// case: SIMD function on bfloat
// expect: call to deleted function 'simd_sum'
x[i] = float(simd_sum(bfloat(x[i])));  // fault

// case: min of two types
// expect: call to 'min' is ambiguous
x[i] = min(int(i), 3u);  // fault

// case: max of float and int
// expect: call to 'max' is ambiguous
x[i] = max(x[i], 0);  // fault

// case: exp of an int
// expect: call to 'exp' is ambiguous
x[i] = exp(3);  // fault

// case: uninitialised variable
// expect: uninitialized
float v;  // here
x[i] = v;  // fault

// case: matrix load of another type
// expect: simdgroup_load from a pointer to another type
simdgroup_half8x8 m; simdgroup_load(m, x, 8); x[i] = 0;

// case: missing bracket
// expect: expected '\)'
// whole
kernel void k(device float* x [[buffer(0)]] {}

// case: as_type of another size
// expect: as_type between types of different size
x[i] = float(as_type<half>(i));
