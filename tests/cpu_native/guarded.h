// Memory between two pages that nobody may touch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum class Guard { AFTER, BEFORE };  // which end of a buffer lies against a guard page

class Guarded {
 public:
  Guarded() {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, SIZE + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    first_ = static_cast<uint8_t*>(memory) + page;
    if (mprotect(memory, page, PROT_NONE) || mprotect(first_ + SIZE, page, PROT_NONE)) fail("mprotect");
  }

  // A buffer of `bytes`, each 0xff: a NaN of every kind. The last one from here is given up.
  template <class T>
  T* take(size_t bytes, Guard guard) {
    if (bytes > SIZE) fail("a buffer that large");
    uint8_t* p = guard == Guard::AFTER ? first_ + SIZE - bytes : first_;
    std::memset(p, 0xff, bytes);
    return reinterpret_cast<T*>(p);
  }

 private:
  static constexpr size_t SIZE = 1 << 22;  // a multiple of every page size
  static void fail(const char* what) {
    std::perror(what);
    std::exit(2);
  }
  uint8_t* first_;
};
