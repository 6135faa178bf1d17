// Atomics, relaxed. Only one thread runs at a time, so plain operations serve for max, min and exchange.
#pragma once
namespace metal {

enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

// The integer as which an atomic is read and written.
template <class T> struct emu_bits { typedef T type; };
template <> struct emu_bits<float> { typedef uint type; };
template <class T> using emu_bits_t = typename emu_bits<T>::type;

#define EMU_ATOMICS_IN(SPACE)                                                                                             \
  template <class T> EMU_INLINE T atomic_load_explicit(const volatile SPACE atomic<T>* p, memory_order) {                 \
    return emu_as_type<T>(__atomic_load_n((const volatile SPACE emu_bits_t<T>*)&p->value, __ATOMIC_RELAXED));             \
  }                                                                                                                       \
  template <class T, class U> EMU_INLINE void atomic_store_explicit(volatile SPACE atomic<T>* p, U x, memory_order) {     \
    __atomic_store_n((volatile SPACE emu_bits_t<T>*)&p->value, emu_as_type<emu_bits_t<T>>((T)x), __ATOMIC_RELAXED);       \
  }                                                                                                                       \
  template <class T, class F> EMU_INLINE T emu_update(volatile SPACE atomic<T>* p, F updated) {                           \
    T before = atomic_load_explicit(p, memory_order_relaxed);                                                             \
    atomic_store_explicit(p, updated(before), memory_order_relaxed);                                                      \
    return before;                                                                                                        \
  }                                                                                                                       \
  EMU_UPDATE(SPACE, exchange, y)                                                                                          \
  EMU_UPDATE(SPACE, fetch_add, before + y)                                                                                \
  EMU_UPDATE(SPACE, fetch_sub, before - y)                                                                                \
  EMU_UPDATE(SPACE, fetch_and, before & y)                                                                                \
  EMU_UPDATE(SPACE, fetch_or, before | y)                                                                                 \
  EMU_UPDATE(SPACE, fetch_xor, before ^ y)                                                                                \
  EMU_UPDATE(SPACE, fetch_max, before < y ? y : before)                                                                   \
  EMU_UPDATE(SPACE, fetch_min, y < before ? y : before)
#define EMU_UPDATE(SPACE, NAME, EXPRESSION)                                                                               \
  template <class T, class U> EMU_INLINE T atomic_##NAME##_explicit(volatile SPACE atomic<T>* p, U x, memory_order) {     \
    const T y = (T)x;                                                                                                     \
    return emu_update(p, [&](T before) -> T { return EXPRESSION; });                                                      \
  }
EMU_ATOMICS_IN(__global)
EMU_ATOMICS_IN(__local)
#undef EMU_UPDATE
#undef EMU_ATOMICS_IN

}  // namespace metal
