// Who runs next, and where threads meet: SIMD-group exchanges and threadgroup barriers. Both demand that every thread comes to
// the same place: what Metal leaves undefined (divergence, returned lanes, partial SIMD-groups) is an error here.
#include <cstdlib>
#include <cstring>

#include "machine.h"

static SimdGroup& current_group() { return machine.groups_of_lanes[machine.simdgroup]; }

static unsigned random_below(unsigned n) {
  machine.random = machine.random * 6364136223846793005ull + 1442695040888963407ull;
  return unsigned(machine.random >> 33) % n;
}

void shuffle(unsigned* values, unsigned count) {
  for (unsigned i = count; i > 1; i--) std::swap(values[i - 1], values[random_below(i)]);
}

static unsigned count_bits(uint32_t mask) { return unsigned(__builtin_popcount(mask)); }

// The lane to run next out of a non-empty mask: the next above the last one, or what the order of the launch says.
static unsigned pick_lane(uint32_t ready, unsigned last) {
  if (machine.order == REVERSE) return 31 - unsigned(__builtin_clz(ready));
  if (machine.order == SHUFFLE) {
    for (unsigned skip = random_below(count_bits(ready)); skip; skip--) ready &= ready - 1;
    return unsigned(__builtin_ctz(ready));
  }
  uint32_t above = ready & ~((2u << last) - 1);
  return unsigned(__builtin_ctz(above ? above : ready));
}

static void run(unsigned simdgroup, unsigned lane, Context& from) {
  machine.simdgroup = simdgroup;
  machine.lane = lane;
  Context& to = machine.fibers[running_thread()].context;
  if (&to != &from) switch_to(from, to);
}

// No thread can run, and some have not returned: tells where each SIMD-group stands.
[[noreturn]] static void report_deadlock() {
  std::string where;
  for (unsigned s = 0; s < machine.simdgroups && where.size() < 600; s++) {
    SimdGroup& g = machine.groups_of_lanes[s];
    unsigned at_barrier = 0, returned = 0;
    for (unsigned t = s * 32; t < std::min(s * 32 + 32, machine.threads); t++) {
      returned += !(g.live >> (t & 31) & 1);
      at_barrier += machine.fibers[t].barrier != 0;
    }
    char text[200];
    snprintf(text, sizeof text, "; SIMD-group %u: %u in a SIMD-group operation, %u at a barrier, %u returned", s,
             count_bits(g.arrived), at_barrier, returned);
    where += text;
  }
  uintptr_t place = machine.barrier;
  for (unsigned s = 0; s < machine.simdgroups && !place; s++)
    if (machine.groups_of_lanes[s].arrived) place = machine.groups_of_lanes[s].place;
  fail(place, "divergence: threads wait for each other at different places%s", where.c_str());
}

// Leaves the running fiber for another ready one; for the launch itself when all have returned.
static void run_another(Context& from) {
  if (uint32_t ready = current_group().ready) return run(machine.simdgroup, pick_lane(ready, machine.lane), from);
  for (unsigned i = 0; i < machine.simdgroups; i++) {
    unsigned s = machine.turn_of[i];
    if (uint32_t ready = machine.groups_of_lanes[s].ready) return run(s, pick_lane(ready, 31), from);
  }
  if (machine.live) report_deadlock();
  switch_to(from, machine.main);
}

static void advance(unsigned (&epoch)[MEMORIES], unsigned flags) {
  epoch[DEVICE] += (flags & MEM_DEVICE) != 0;
  epoch[THREADGROUP] += (flags & MEM_THREADGROUP) != 0;
}

static void refuse_lone_lanes(uintptr_t place) {
  SimdGroup& g = current_group();
  unsigned first = machine.simdgroup * 32;
  if (first + 32 > machine.threads)
    fail(place, "SIMD-group operation in a partial SIMD-group of %u threads", machine.threads - first);
  if (g.live != ~0u) fail(place, "SIMD-group operation after %u lanes of the SIMD-group returned", 32 - count_bits(g.live));
}

static void count_exchange(unsigned operation) {
  if (operation & EMU_MEMORY_BARRIER) return;
  (operation == EMU_MATRIX_MULTIPLY ? machine.counts.matrix_operations : machine.counts.simd_operations)++;
}

#define PLACE reinterpret_cast<uintptr_t>(__builtin_return_address(0))

extern "C" {

// All lanes of a SIMD-group hand over `size` bytes and get the block that holds them all.
__attribute__((noinline)) emu_block* emu_exchange(const void* data, unsigned size, unsigned operation) {
  SimdGroup& g = current_group();
  uintptr_t place = PLACE;
  refuse_lone_lanes(place);
  emu_block& block = g.block[g.turn];
  if (!g.arrived) {
    g.operation = operation;
    g.place = place;
    block.done = 0;
  } else if (g.place != place || g.operation != operation) {
    fail(place, "divergent SIMD-group operation: other lanes of the SIMD-group are at {%#lx}", g.place);
  }
  memcpy(block.slot[machine.lane], data, size < EMU_SLOT ? size : EMU_SLOT);
  g.arrived |= 1u << machine.lane;
  if (g.arrived != ~0u) {
    g.ready &= ~(1u << machine.lane);
    run_another(machine.fibers[running_thread()].context);
    return &block;
  }
  count_exchange(operation);
  settle_lines(machine.simdgroup);
  if (operation & EMU_MEMORY_BARRIER) advance(g.epoch, operation);
  block.active = g.arrived;
  g.arrived = 0;
  g.turn ^= 1;
  g.ready = g.live;
  return &block;
}

static void release_barrier() {
  machine.counts.barriers++;
  advance(machine.epoch, machine.barrier_flags);
  machine.waiting = 0;
  machine.barrier = 0;
  for (unsigned t = 0; t < machine.threads; t++) machine.fibers[t].barrier = 0;
  for (unsigned s = 0; s < machine.simdgroups; s++) {
    settle_lines(s);
    machine.groups_of_lanes[s].ready = machine.groups_of_lanes[s].live;
  }
  if (machine.order == SHUFFLE) shuffle(machine.turn_of, machine.simdgroups);
}

__attribute__((noinline)) void emu_barrier(unsigned flags) {
  uintptr_t place = PLACE;
  if (machine.live != machine.threads)
    fail(place, "divergent threadgroup_barrier: %u threads of the threadgroup have returned", machine.threads - machine.live);
  if (machine.waiting && (machine.barrier != place || machine.barrier_flags != flags))
    fail(place, "divergent threadgroup_barrier: other threads of the threadgroup are at {%#lx}", machine.barrier);
  machine.barrier = place;
  machine.barrier_flags = flags;
  Fiber& fiber = machine.fibers[running_thread()];
  fiber.barrier = place;
  current_group().ready &= ~(1u << machine.lane);
  if (++machine.waiting == machine.threads) return release_barrier();
  run_another(fiber.context);
}

unsigned emu_lane() { return machine.lane; }

void emu_bad_lane(unsigned lane) { fail(PLACE, "SIMD-group shuffle or broadcast from lane %u, which is not there", lane); }

}  // extern "C"

static void fiber_main() {
  machine.entry(&machine.inputs[running_thread()]);
  SimdGroup& g = current_group();
  uint32_t bit = 1u << machine.lane;
  g.live &= ~bit;
  g.ready &= ~bit;
  machine.live--;
  if (g.arrived) fail(g.place, "divergent SIMD-group operation: a lane of the SIMD-group returned instead");
  if (machine.waiting) fail(machine.barrier, "divergent threadgroup_barrier: a thread of the threadgroup returned instead");
  run_another(machine.fibers[running_thread()].context);
  abort();
}

void start_group() {
  for (unsigned s = 0; s < machine.simdgroups; s++) {
    SimdGroup& g = machine.groups_of_lanes[s];
    unsigned lanes = std::min(32u, machine.threads - s * 32);
    g.ready = g.live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    g.arrived = 0;
    g.turn = 0;
    g.epoch[DEVICE] = g.epoch[THREADGROUP] = 1;
    machine.turn_of[s] = machine.order == REVERSE ? machine.simdgroups - 1 - s : s;
  }
  if (machine.order == SHUFFLE) shuffle(machine.turn_of, machine.simdgroups);
  for (unsigned t = 0; t < machine.threads; t++) {
    Fiber& fiber = machine.fibers[t];
    fiber.barrier = 0;
    // Staggered stack tops keep the fibers from sharing one cache set.
    prepare(fiber.context, fiber.stack, STACK_BYTES - (t & 63) * 256, fiber_main);
  }
  unsigned first = machine.turn_of[0];
  run(first, pick_lane(machine.groups_of_lanes[first].ready, 31), machine.main);
}
