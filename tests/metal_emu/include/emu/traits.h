// <metal_type_traits> and <metal_limits>.
#pragma once
namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr __constant T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool B> using bool_constant = integral_constant<bool, B>;

template <class A, class B> constexpr __constant bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class T> using remove_cv_t = __remove_cv(T);
template <class T> struct remove_cv { typedef __remove_cv(T) type; };
template <class T> using remove_reference_t = __remove_reference_t(T);
template <class T> struct remove_reference { typedef __remove_reference_t(T) type; };
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using make_unsigned_t = __make_unsigned(T);
template <class T> struct make_unsigned { typedef __make_unsigned(T) type; };
template <class T> using make_signed_t = __make_signed(T);
template <class T> struct make_signed { typedef __make_signed(T) type; };

template <class T> struct emu_is_float : false_type {};
template <> struct emu_is_float<float> : true_type {};
template <> struct emu_is_float<half> : true_type {};
template <> struct emu_is_float<bfloat> : true_type {};
template <class T> constexpr __constant bool is_floating_point_v = emu_is_float<remove_cv_t<T>>::value;
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> constexpr __constant bool is_integral_v = __is_integral(T);
template <class T> struct is_integral : bool_constant<__is_integral(T)> {};
template <class T> constexpr __constant bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> constexpr __constant bool is_scalar_v = is_arithmetic_v<T>;
template <class T> constexpr __constant bool is_signed_v = is_floating_point_v<T> || __is_signed(T);
template <class T> struct is_signed : bool_constant<is_signed_v<T>> {};
template <class T> constexpr __constant bool is_unsigned_v = is_integral_v<T> && !__is_signed(T);
template <class T> struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class A, class B> constexpr __constant bool is_convertible_v = __is_convertible_to(A, B);

template <class T> struct numeric_limits;
#define EMU_INTEGER_LIMITS(T, LEAST, MOST)                                  \
  template <> struct numeric_limits<T> {                                    \
    static constexpr __constant bool is_integer = true;                     \
    static constexpr T min() { return LEAST; }                              \
    static constexpr T lowest() { return LEAST; }                           \
    static constexpr T max() { return MOST; }                               \
  };
EMU_INTEGER_LIMITS(bool, false, true)
EMU_INTEGER_LIMITS(char, -128, 127)
EMU_INTEGER_LIMITS(signed char, -128, 127)
EMU_INTEGER_LIMITS(uchar, 0, 255)
EMU_INTEGER_LIMITS(short, -32768, 32767)
EMU_INTEGER_LIMITS(ushort, 0, 65535)
EMU_INTEGER_LIMITS(int, INT_MIN, INT_MAX)
EMU_INTEGER_LIMITS(uint, 0, UINT_MAX)
EMU_INTEGER_LIMITS(long, (-LONG_MAX - 1), LONG_MAX)
EMU_INTEGER_LIMITS(ulong, 0, ULONG_MAX)
#undef EMU_INTEGER_LIMITS
#define EMU_FLOAT_LIMITS(T, LEAST, MOST, EPSILON)                           \
  template <> struct numeric_limits<T> {                                    \
    static constexpr __constant bool is_integer = false;                    \
    static constexpr T min() { return (T)LEAST; }                           \
    static constexpr T lowest() { return (T)-MOST; }                        \
    static constexpr T max() { return (T)MOST; }                            \
    static constexpr T epsilon() { return (T)EPSILON; }                     \
    static constexpr T infinity() { return (T)INFINITY; }                   \
    static constexpr T quiet_NaN() { return (T)NAN; }                       \
  };
EMU_FLOAT_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON)
EMU_FLOAT_LIMITS(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
EMU_FLOAT_LIMITS(bfloat, FLT_MIN, 3.3895314e38f, 7.8125e-3f)
#undef EMU_FLOAT_LIMITS

}  // namespace metal
