// Breaches of the rules for our kernels, one each, at the line marked `fault`; format: cases.py.

// case: pointer parameter
// expect: a pointer or reference without an address space
float f(const float* p) { return p[0]; }  // fault
// body
x[i] = f(x);

// case: reference parameter
// expect: a pointer or reference without an address space
float f(const float& p) { return p; }  // fault
// body
x[i] = f(x[i]);

// case: reference parameter of a template
// expect: a pointer or reference without an address space
template <typename T> T f(const T& p) { return p; }  // fault
// body
x[i] = f(x[i]);

// case: pointer variable
// expect: a pointer or reference without an address space
const float* p = x;  // fault
x[i] = p[0];

// case: constant to bfloat
// expect: implicit conversion to bfloat
bfloat b = 1.0f;  // fault
x[i] = float(b);

// case: integer constant to bfloat
// expect: implicit conversion to bfloat
bfloat b[2] = {1, bfloat(2)};  // fault
x[i] = float(b[i & 1]);

// case: ?: on vectors
// expect: \?: on vectors
float4 a(1.0f), b(2.0f);
float4 c = i < 3 ? a : b;  // fault
x[i] = c.x;

// case: math on half
// expect: SIMD or math function on half
half a = half(x[i]);
x[i] = float(exp(a));  // fault

// case: SIMD function on half
// expect: SIMD or math function on half
half a = half(x[i]);
x[i] = float(simd_sum(a));  // fault

// case: min of halves
// expect: SIMD or math function on half
half a = half(x[i]);
x[i] = float(min(a, half(1.0f)));  // fault

// case: pointer to vectors of three
// expect: a pointer to vectors of three
x[i] = float(((device uchar3*)x)[i].x);  // fault
