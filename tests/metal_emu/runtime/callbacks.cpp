// What clang's instrumentation of a CHECK build calls: -fsanitize=thread for every access that is not provably private, and
// -fsanitize=...-minimal for what a machine would do silently. No sanitizer runtime is loaded.
#include <cstring>

#include "machine.h"

#define PLACE reinterpret_cast<uintptr_t>(__builtin_return_address(0))

static inline void touch(const volatile void* p, unsigned long bytes, bool write, uintptr_t place, unsigned long alignment = 0,
                         bool atomic = false) {
  check_access(reinterpret_cast<uintptr_t>(p), unsigned(bytes), write, place, unsigned(alignment), atomic);
}

extern "C" {

void __tsan_init() {}

#define ACCESSES(N)                                                            \
  void __tsan_read##N(void* p) { touch(p, N, false, PLACE, N); }               \
  void __tsan_write##N(void* p) { touch(p, N, true, PLACE, N); }               \
  void __tsan_unaligned_read##N(void* p) { touch(p, N, false, PLACE); }        \
  void __tsan_unaligned_write##N(void* p) { touch(p, N, true, PLACE); }        \
  void __tsan_read_write##N(void* p) {                                         \
    touch(p, N, false, PLACE, N);                                              \
    touch(p, N, true, PLACE, N);                                               \
  }                                                                            \
  void __tsan_unaligned_read_write##N(void* p) {                               \
    touch(p, N, false, PLACE);                                                 \
    touch(p, N, true, PLACE);                                                  \
  }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  touch(from, bytes, false, PLACE);
  touch(to, bytes, true, PLACE);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  touch(from, bytes, false, PLACE);
  touch(to, bytes, true, PLACE);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  touch(to, bytes, true, PLACE);
  return memset(to, value, bytes);
}

#define ATOMIC_UPDATE(N, T, NAME, UPDATE)                                      \
  T __tsan_atomic##N##_##NAME(volatile T* p, T value, int) {                   \
    touch(p, N / 8, true, PLACE, N / 8, true);                                 \
    T before = *p;                                                             \
    *p = T(UPDATE);                                                            \
    return before;                                                             \
  }
#define ATOMICS(N, T)                                                          \
  T __tsan_atomic##N##_load(const volatile T* p, int) {                        \
    touch(p, N / 8, false, PLACE, N / 8, true);                                \
    return *p;                                                                 \
  }                                                                            \
  void __tsan_atomic##N##_store(volatile T* p, T value, int) {                 \
    touch(p, N / 8, true, PLACE, N / 8, true);                                 \
    *p = value;                                                                \
  }                                                                            \
  ATOMIC_UPDATE(N, T, exchange, value)                                         \
  ATOMIC_UPDATE(N, T, fetch_add, before + value)                               \
  ATOMIC_UPDATE(N, T, fetch_sub, before - value)                               \
  ATOMIC_UPDATE(N, T, fetch_and, before & value)                               \
  ATOMIC_UPDATE(N, T, fetch_or, before | value)                                \
  ATOMIC_UPDATE(N, T, fetch_xor, before ^ value)                               \
  T __tsan_atomic##N##_compare_exchange_val(volatile T* p, T expected, T value, int, int) { \
    touch(p, N / 8, true, PLACE, N / 8, true);                                 \
    T before = *p;                                                             \
    if (before == expected) *p = value;                                        \
    return before;                                                             \
  }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

#define UNDEFINED(NAME, MESSAGE)                                                \
  void __ubsan_handle_##NAME##_minimal() { fail(PLACE, MESSAGE); }             \
  void __ubsan_handle_##NAME##_minimal_abort() { fail(PLACE, MESSAGE); }
UNDEFINED(out_of_bounds, "out-of-bounds index of an array")
UNDEFINED(type_mismatch, "misaligned access through a typed pointer")
UNDEFINED(divrem_overflow, "integer division by zero, or its overflow")

}  // extern "C"
