// CHECK mode: every access of a kernel comes here. Finds what lies outside, misaligned, read-only, uninitialised or racing.
//
// Two accesses to a byte race if one of them writes and nothing orders them: neither one thread, nor a threadgroup_barrier, nor, in one
// SIMD-group, a simdgroup_barrier, with the flag of that memory in between. Threadgroups are never ordered.
#include <sys/mman.h>

#include <cstring>

#include "machine.h"

// In place of a thread's number: several threads have read since the last barrier, the first kind all of one SIMD-group. In place of a
// threadgroup's number: several have read.
static const unsigned MANY_OF_SIMDGROUP = MAX_THREADS, MANY = MAX_THREADS + MAX_SIMDGROUPS, MANY_GROUPS = 0x7ffff;
static const char* const NAMES[MEMORIES] = {"device", "threadgroup"};
static const char* const FLAGS[MEMORIES] = {"mem_flags::mem_device", "mem_flags::mem_threadgroup"};

struct Accessed {  // one access, and where it is
  Memory memory;
  int buffer;     // -1: threadgroup memory
  size_t offset;  // in the buffer or the arena
  unsigned bytes;
  bool write, atomic;
  uintptr_t place;
};

void clear_shadow(Shadow& shadow, size_t bytes) {
  size_t size = bytes * sizeof(Access);
  if (!shadow.writes) {
    const int protection = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    auto make = [&] { return static_cast<Access*>(mmap(nullptr, size, protection, kind, -1, 0)); };
    shadow = {make(), make()};
    return;
  }
  memset(static_cast<void*>(shadow.writes), 0, size);
  memset(static_cast<void*>(shadow.reads), 0, size);
}

static Access now(Memory memory, unsigned thread) {
  Access a;
  a.valid = 1;
  a.group = machine.group_index % MANY_GROUPS;
  a.epoch = machine.epoch[memory] & 0x3ffff;
  a.simd_epoch = machine.groups_of_lanes[machine.simdgroup].epoch[memory] & 0x7fff;
  a.thread = thread & 0x7ff;
  return a;
}

static unsigned simdgroup_of(unsigned thread) {
  if (thread < MAX_THREADS) return thread / EMU_SIMD_WIDTH;
  return thread == MANY ? MAX_SIMDGROUPS : thread - MANY_OF_SIMDGROUP;
}

static bool happened_before(const Access& before, const Access& here) {
  if (!before.valid) return true;
  if (before.group != here.group) return false;
  if (before.thread == here.thread || before.epoch < here.epoch) return true;
  return simdgroup_of(before.thread) == simdgroup_of(here.thread) && before.simd_epoch < here.simd_epoch;
}

[[noreturn]] static void report_race(const Accessed& what, const Access& other, bool other_wrote) {
  char buffer[24] = "", who[80];
  if (what.buffer >= 0) snprintf(buffer, sizeof buffer, " of buffer %d", what.buffer);
  bool foreign = other.group != machine.group_index % MANY_GROUPS;
  if (other.thread >= MAX_THREADS) snprintf(who, sizeof who, "several threads");
  else snprintf(who, sizeof who, "thread %u", unsigned(other.thread));
  if (foreign)
    fail(what.place, "data race between threadgroups on %s memory: this %s of byte %zu%s, the %s of %s of another threadgroup",
         NAMES[what.memory], what.write ? "write" : "read", what.offset, buffer, other_wrote ? "write" : "read", who);
  fail(what.place, "data race on %s memory: this %s of byte %zu%s, the %s of %s, and no barrier with %s in between", NAMES[what.memory],
       what.write ? "write" : "read", what.offset, buffer, other_wrote ? "write" : "read", who, FLAGS[what.memory]);
}

// The readers that nothing orders before `here`, and `here`, as one Access.
static Access joined(const Access& readers, const Access& here) {
  Access all = here;
  if (happened_before(readers, here)) return all;
  if (readers.group != here.group) {
    all.group = MANY_GROUPS;
    all.thread = MANY;
  } else {
    unsigned simdgroup = simdgroup_of(readers.thread);
    all.thread = (simdgroup == machine.simdgroup ? MANY_OF_SIMDGROUP + simdgroup : MANY) & 0x7ff;
  }
  return all;
}

static void check_order(const Accessed& what, Shadow& shadow) {
  Access here = now(what.memory, running_thread());
  for (size_t i = what.offset; i < what.offset + what.bytes; i++) {
    Access &writer = shadow.writes[i], &readers = shadow.reads[i];
    if (what.memory == THREADGROUP && !what.write && !writer.valid)
      fail(what.place, "read of uninitialised threadgroup memory, byte %zu", i);
    if (what.atomic) {  // atomic accesses do not race with each other
      if (!writer.valid) writer = here;
      continue;
    }
    if (!happened_before(writer, here)) report_race(what, writer, true);
    if (!what.write) {
      readers = joined(readers, here);
      continue;
    }
    if (!happened_before(readers, here)) report_race(what, readers, false);
    writer = here;
    readers = Access{};
  }
}

static const char* verb(bool write) { return write ? "write" : "read"; }

static void check_arena(uintptr_t address, Accessed what, unsigned alignment) {
  what.offset = address - reinterpret_cast<uintptr_t>(machine.arena);
  bool inside = false;
  for (const Array& a : machine.arrays) inside |= what.offset >= a.offset && what.offset + what.bytes <= a.offset + a.size;
  if (!inside) fail(what.place, "out-of-bounds %s of %u bytes in threadgroup memory", verb(what.write), what.bytes);
  if (alignment && address % alignment) fail(what.place, "misaligned %s of %u bytes in threadgroup memory", verb(what.write), what.bytes);
  (what.write ? machine.counts.threadgroup_bytes_stored : machine.counts.threadgroup_bytes_loaded) += what.bytes;
  check_order(what, machine.arena_shadow);
}

static void check_region(uintptr_t address, Accessed what, unsigned alignment, Region& region) {
  what.offset = address - region.begin;
  what.buffer = region.index;
  if (address + what.bytes > region.end)
    fail(what.place, "out-of-bounds %s of %u bytes at byte %zu of buffer %d, which has %zu", verb(what.write), what.bytes, what.offset,
         region.index, size_t(region.end - region.begin));
  if (alignment && address % alignment)
    fail(what.place, "misaligned %s of %u bytes at byte %zu of buffer %d", verb(what.write), what.bytes, what.offset, region.index);
  if (what.write && !region.writable) fail(what.place, "write to read-only buffer %d", region.index);
  if (region.constant) {
    machine.counts.constant_bytes_loaded += what.bytes;
    return;
  }
  note_line(address, what.bytes, what.write, what.place);
  (what.write ? machine.counts.device_bytes_stored : machine.counts.device_bytes_loaded) += what.bytes;
  if (region.shadow.writes) check_order(what, region.shadow);
}

[[noreturn]] static void report_stray(uintptr_t address, const Accessed& what) {
  int nearest = -1;
  size_t least = ~size_t(0);
  bool before = false;
  for (const Region& r : machine.regions) {
    size_t distance = address < r.begin ? r.begin - address : address - r.end;
    if (distance < least) {
      least = distance;
      nearest = r.index;
      before = address < r.begin;
    }
  }
  if (nearest < 0) fail(what.place, "out-of-bounds %s of %u bytes", verb(what.write), what.bytes);
  fail(what.place, "out-of-bounds %s of %u bytes, %zu bytes %s buffer %d", verb(what.write), what.bytes, least,
       before ? "before the start of" : "after the end of", nearest);
}

static bool within(uintptr_t address, const void* start, size_t bytes) { return address - reinterpret_cast<uintptr_t>(start) < bytes; }

void check_access(uintptr_t address, unsigned bytes, bool write, uintptr_t place, unsigned alignment, bool atomic) {
  if (!machine.check || within(address, machine.fibers[running_thread()].stack, STACK_BYTES)) return;
  Accessed what{DEVICE, -1, 0, bytes, write, atomic, place};
  if (within(address, machine.arena, THREADGROUP_BYTES)) {
    what.memory = THREADGROUP;
    return check_arena(address, what, alignment);
  }
  if (within(address, machine.groups_of_lanes, sizeof(SimdGroup) * MAX_SIMDGROUPS)) return;  // the exchange's own blocks
  for (Region& r : machine.regions)
    if (address >= r.begin && address < r.end) return check_region(address, what, alignment, r);
  if (address >= machine.image_begin && address < machine.image_end) {
    if (write) fail(place, "write to constant data");
    machine.counts.constant_bytes_loaded += bytes;
    return;
  }
  if (within(address, machine.inputs, sizeof(emu_thread) * MAX_THREADS)) return;
  if (within(address, machine.stacks, STACK_BYTES * MAX_THREADS)) fail(place, "access to another thread's private memory");
  report_stray(address, what);
}
