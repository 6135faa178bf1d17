// The state of the one simulated GPU: it runs one launch at a time, one threadgroup after the other, on one host thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "abi.h"
#include "fiber.h"

using Entry = void (*)(const emu_thread*);

const unsigned MAX_THREADS = 1024, MAX_SIMDGROUPS = MAX_THREADS / EMU_SIMD_WIDTH;
const size_t STACK_BYTES = 256 * 1024, THREADGROUP_BYTES = 32768;
enum Order { FORWARD, REVERSE, SHUFFLE };
enum Memory { DEVICE, THREADGROUP, MEMORIES };  // what a barrier orders; indexes the epochs
enum MemFlags { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };

// The last access to one byte: by whom, and the barriers that had passed by then.
struct Access {
  uint64_t valid : 1, group : 19, epoch : 18, simd_epoch : 15, thread : 11;
};

struct Shadow {  // one Access a byte
  Access* writes = nullptr;
  Access* reads = nullptr;
};

struct Region {  // what one buffer argument may touch
  uintptr_t begin, end;
  int index;
  bool writable, constant;
  Shadow shadow;
};

struct Counts {  // read by the Python side (library.py, COUNTS)
  unsigned long device_bytes_loaded, device_bytes_stored, constant_bytes_loaded;
  unsigned long threadgroup_bytes_loaded, threadgroup_bytes_stored;
  unsigned long device_lines_loaded, device_lines_stored;  // only if asked for, see lines.cpp
  unsigned long simd_operations, matrix_operations, barriers, threadgroup_memory;
};

struct Fiber {
  Context context;
  char* stack;
  uintptr_t barrier;  // return address of the threadgroup_barrier it waits at, else 0
};

struct SimdGroup {
  uint32_t ready, arrived, live;      // one bit a lane: can run; waits in the exchange; has not returned
  unsigned operation;                 // of the lanes that arrived
  uintptr_t place;
  int turn;                           // which block the next exchange uses
  unsigned epoch[MEMORIES];           // simdgroup_barriers passed
  emu_block block[2];
};

struct Array {  // a threadgroup array: the tag is its declaration's address
  const void* tag;
  unsigned offset, size;
};

struct Machine {
  // the launch
  Entry entry;
  unsigned grid[3], group[3], groups[3];
  const unsigned long* buffers;
  bool check, count_lines;
  Order order;
  uint64_t random;
  std::vector<Region> regions;
  uintptr_t image_begin, image_end;  // where the kernel library is loaded: its constant tables
  bool failed;
  std::string error;
  Counts counts;
  // the threadgroup
  unsigned group_index, threads, simdgroups, live;
  unsigned waiting;          // threads at the barrier
  uintptr_t barrier;         // its return address
  unsigned barrier_flags;
  unsigned epoch[MEMORIES];  // threadgroup_barriers passed
  unsigned turn_of[MAX_SIMDGROUPS];
  std::vector<Array> arrays;
  unsigned arena_top;
  Shadow arena_shadow;
  // the running thread
  unsigned simdgroup, lane;
  // storage, made once
  Context main;
  char* arena;
  char* stacks;
  Fiber* fibers;
  emu_thread* inputs;
  SimdGroup* groups_of_lanes;
};

extern Machine machine;

inline unsigned running_thread() { return machine.simdgroup * EMU_SIMD_WIDTH + machine.lane; }

// Records the message and leaves the launch. `{0x...}` in a message stands for a place in the kernel: the Python side writes the
// line of the .metal text there. `place` is where the error is, 0 if the message itself says it.
[[noreturn]] void fail(uintptr_t place, const char* format, ...) __attribute__((format(printf, 2, 3)));

// arena.cpp
void clear_arena();
// lines.cpp
void note_line(uintptr_t address, unsigned bytes, bool write, uintptr_t place);
void settle_lines(unsigned simdgroup);
// operations.cpp
void clear_executed();
// schedule.cpp
void start_group();
void shuffle(unsigned* values, unsigned count);
// shadow.cpp
void check_access(uintptr_t address, unsigned bytes, bool write, uintptr_t place, unsigned alignment, bool atomic = false);
void clear_shadow(Shadow& shadow, size_t bytes);
