// Types and macros of the language itself, and what must make room for them.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

// OpenCL predefines these names everywhere; Metal has them in `metal` or leaves them to the user.
#define atomic_int emu_opencl_atomic_int
#define atomic_uint emu_opencl_atomic_uint
#define atomic_bool emu_opencl_atomic_bool
#define atomic_float emu_opencl_atomic_float
#define atomic_long emu_opencl_atomic_long
#define atomic_ulong emu_opencl_atomic_ulong
#define atomic_flag emu_opencl_atomic_flag
#define memory_order emu_opencl_memory_order
#define memory_scope emu_opencl_memory_scope
#define event_t emu_opencl_event_t
#define global emu_opencl_global
#define local emu_opencl_local
#define generic emu_opencl_generic
#define pipe emu_opencl_pipe

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __INTPTR_TYPE__ intptr_t;
// Metal refuses implicit conversions to bfloat and clang does not: toolchain.py makes clang's warning an error, lint.py finds the
// rest. (As a class, bfloat would break `c ? device_pointer[i] : T(0)`.)
typedef __bf16 bfloat;

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF INFINITY
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.1920928955078125e-7f
#define HALF_MAX ((half)65504.0f)
#define MAXFLOAT FLT_MAX
#define MAXHALF HALF_MAX
#define M_PI_F 3.14159274101257f
#define M_PI_2_F 1.57079637050629f
#define M_1_PI_F 0.318309873342514f
#define M_2_SQRTPI_F 1.12837922573090f
#define M_SQRT2_F 1.41421353816986f
#define M_SQRT1_2_F 0.707106769084930f
#define M_E_F 2.71828174591064f
#define M_LN2_F 0.693147182464600f
#define M_LN10_F 2.30258512496948f
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 0x7fffffffffffffffl
#define ULONG_MAX 0xfffffffffffffffful
#define CHAR_BIT 8
#define METAL_FUNC inline __attribute__((always_inline))

#define EMU_INLINE inline __attribute__((always_inline))
// Metal has these functions for half too; our kernels use them on float only (lint.py reports the warning).
#define EMU_NARROW __attribute__((deprecated("lint: a SIMD or math function on half: convert to float")))

extern "C" {
// Not merged: two calls in two branches are two places to the checks for divergence.
__attribute__((nomerge)) emu_block* emu_exchange(const void* data, unsigned size, unsigned operation);
__attribute__((nomerge)) void emu_barrier(unsigned flags);
__local void* emu_threadgroup_array(const __global void* tag, unsigned size);
unsigned emu_lane();
void emu_multiply(emu_block* block);
void emu_bad_lane(unsigned lane);
}
