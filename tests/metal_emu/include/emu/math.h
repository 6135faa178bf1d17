// Functions on floats. For half they warn (a lint), for bfloat they do not exist: kernels convert to float first.
#pragma once
namespace metal {

EMU_INLINE float emu_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
EMU_INLINE float emu_fract(float x) { return x - __builtin_floorf(x); }

#define EMU_F1(NAME, BUILTIN)                                                          \
  EMU_INLINE float NAME(float x) { return BUILTIN(x); }                                \
  EMU_INLINE EMU_NARROW half NAME(half x) { return (half)BUILTIN((float)x); }          \
  void NAME(bfloat x) = delete;                                                        \
  template <int N> EMU_INLINE vec<float, N> NAME(vec<float, N> a) {                    \
    for (int i = 0; i < N; i++) a.s[i] = BUILTIN(a.s[i]);                              \
    return a;                                                                          \
  }
#define EMU_F2(NAME, BUILTIN)                                                          \
  EMU_INLINE float NAME(float x, float y) { return BUILTIN(x, y); }                    \
  EMU_INLINE EMU_NARROW half NAME(half x, half y) { return (half)BUILTIN((float)x, (float)y); } \
  void NAME(bfloat x, bfloat y) = delete;                                              \
  template <int N> EMU_INLINE vec<float, N> NAME(vec<float, N> a, vec<float, N> b) {   \
    for (int i = 0; i < N; i++) a.s[i] = BUILTIN(a.s[i], b.s[i]);                      \
    return a;                                                                          \
  }
#define EMU_ALL_OF_MATH \
  EMU_F1(exp, __builtin_expf) EMU_F1(exp2, __builtin_exp2f) EMU_F1(exp10, __builtin_exp10f) EMU_F1(log, __builtin_logf) \
  EMU_F1(log2, __builtin_log2f) EMU_F1(log10, __builtin_log10f) EMU_F1(sqrt, __builtin_sqrtf) EMU_F1(rsqrt, emu_rsqrt) \
  EMU_F1(floor, __builtin_floorf) EMU_F1(ceil, __builtin_ceilf) EMU_F1(trunc, __builtin_truncf) EMU_F1(round, __builtin_roundf) \
  EMU_F1(rint, __builtin_rintf) EMU_F1(fract, emu_fract) EMU_F1(fabs, __builtin_fabsf) EMU_F1(sin, __builtin_sinf) \
  EMU_F1(cos, __builtin_cosf) EMU_F1(tan, __builtin_tanf) EMU_F1(asin, __builtin_asinf) EMU_F1(acos, __builtin_acosf) \
  EMU_F1(atan, __builtin_atanf) EMU_F1(sinh, __builtin_sinhf) EMU_F1(cosh, __builtin_coshf) EMU_F1(tanh, __builtin_tanhf) \
  EMU_F2(pow, __builtin_powf) EMU_F2(powr, __builtin_powf) EMU_F2(fmod, __builtin_fmodf) EMU_F2(atan2, __builtin_atan2f) \
  EMU_F2(copysign, __builtin_copysignf) EMU_F2(fmin, __builtin_fminf) EMU_F2(fmax, __builtin_fmaxf)
EMU_ALL_OF_MATH
namespace precise { EMU_ALL_OF_MATH }
namespace fast { EMU_ALL_OF_MATH }
#undef EMU_ALL_OF_MATH
#undef EMU_F1
#undef EMU_F2

EMU_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_INLINE EMU_NARROW half fma(half a, half b, half c) { return (half)__builtin_fmaf(a, b, c); }
void fma(bfloat a, bfloat b, bfloat c) = delete;
template <int N> EMU_INLINE vec<float, N> fma(vec<float, N> a, vec<float, N> b, vec<float, N> c) {
  for (int i = 0; i < N; i++) a.s[i] = __builtin_fmaf(a.s[i], b.s[i], c.s[i]);
  return a;
}
EMU_INLINE float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }

// min and max of floats ignore a NaN. Overloads, not a template, for integers: so that arguments of two types are ambiguous, as in Metal.
#define EMU_INTEGERS(F, ...) \
  F(char, __VA_ARGS__) F(uchar, __VA_ARGS__) F(short, __VA_ARGS__) F(ushort, __VA_ARGS__) F(int, __VA_ARGS__) F(uint, __VA_ARGS__) \
  F(long, __VA_ARGS__) F(ulong, __VA_ARGS__)
#define EMU_OF_INTEGERS(T, NAME, EXPRESSION) EMU_INLINE T NAME(T a, T b) { return EXPRESSION; }
#define EMU_FLOAT_AND_INTEGER(NAME, BUILTIN, INTEGER)                                                   \
  EMU_INLINE float NAME(float a, float b) { return BUILTIN(a, b); }                                     \
  EMU_INLINE EMU_NARROW half NAME(half a, half b) { return (half)BUILTIN((float)a, (float)b); }         \
  void NAME(bfloat a, bfloat b) = delete;                                                               \
  EMU_INTEGERS(EMU_OF_INTEGERS, NAME, INTEGER)                                                          \
  template <class T, int N> EMU_INLINE vec<T, N> NAME(vec<T, N> a, vec<T, N> b) {                       \
    for (int i = 0; i < N; i++) a.s[i] = NAME(a.s[i], b.s[i]);                                          \
    return a;                                                                                           \
  }
EMU_FLOAT_AND_INTEGER(min, __builtin_fminf, b < a ? b : a)
EMU_FLOAT_AND_INTEGER(max, __builtin_fmaxf, a < b ? b : a)
#undef EMU_FLOAT_AND_INTEGER

EMU_INLINE float abs(float x) { return __builtin_fabsf(x); }
EMU_INLINE EMU_NARROW half abs(half x) { return (half)__builtin_fabsf((float)x); }
void abs(bfloat x) = delete;
template <class T, enable_if_t<is_integral_v<T>, int> = 0> EMU_INLINE T abs(T x) { return x < 0 ? -x : x; }
template <class T, int N> EMU_INLINE vec<T, N> abs(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.s[i] = abs(a.s[i]);
  return a;
}

template <class T> EMU_INLINE T max3(T a, T b, T c) { return max(max(a, b), c); }
template <class T> EMU_INLINE T min3(T a, T b, T c) { return min(min(a, b), c); }
template <class T> EMU_INLINE T clamp(T x, T least, T most) { return min(max(x, least), most); }
template <class T, int N> EMU_INLINE vec<T, N> clamp(vec<T, N> x, T least, T most) { return clamp(x, vec<T, N>(least), vec<T, N>(most)); }
EMU_INLINE float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
EMU_INLINE float mix(float a, float b, float t) { return a + (b - a) * t; }
template <int N> EMU_INLINE vec<float, N> mix(vec<float, N> a, vec<float, N> b, float t) { return a + (b - a) * t; }
EMU_INLINE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }

template <class T, enable_if_t<is_arithmetic_v<T>, int> = 0> EMU_INLINE T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N> EMU_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  for (int i = 0; i < N; i++) a.s[i] = c.s[i] ? b.s[i] : a.s[i];
  return a;
}

EMU_INLINE bool isnan(float x) { return __builtin_isnan(x); }
EMU_INLINE bool isinf(float x) { return __builtin_isinf(x); }
EMU_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
EMU_INLINE bool signbit(float x) { return __builtin_signbit(x); }

}  // namespace metal
