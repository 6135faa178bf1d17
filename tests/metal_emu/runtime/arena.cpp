// Threadgroup memory: 32 KB, handed out to the kernel's arrays in the order in which threads come to them.
#include <cstring>

#include "machine.h"

static const unsigned ALIGNMENT = 16;

void clear_arena() {
  machine.arrays.clear();
  machine.arena_top = 0;
  memset(machine.arena, 0xff, THREADGROUP_BYTES);  // NaN as a float, half or bfloat
  if (machine.check) clear_shadow(machine.arena_shadow, THREADGROUP_BYTES);
}

extern "C" void* emu_threadgroup_array(const void* tag, unsigned size) {
  for (const Array& a : machine.arrays)
    if (a.tag == tag) return machine.arena + a.offset;
  unsigned offset = (machine.arena_top + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (offset + size > THREADGROUP_BYTES)
    fail(reinterpret_cast<uintptr_t>(__builtin_return_address(0)), "%u bytes of threadgroup memory, the limit is %zu", offset + size,
         THREADGROUP_BYTES);
  machine.arrays.push_back({tag, offset, size});
  machine.arena_top = offset + size;
  if (machine.counts.threadgroup_memory < machine.arena_top) machine.counts.threadgroup_memory = machine.arena_top;
  return machine.arena + offset;
}
