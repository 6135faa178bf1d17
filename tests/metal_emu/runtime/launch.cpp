// The runtime's two entry points for Python: one launch, and the size of its tables. Launches are serialised by a lock.
#include <link.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "machine.h"

Machine machine;

void fail(uintptr_t place, const char* format, ...) {
  char text[1200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const emu_thread& t = machine.inputs[running_thread()];
  char where[200];
  snprintf(where, sizeof where, " [threadgroup (%u, %u, %u), thread (%u, %u, %u), SIMD-group %u, lane %u]", t.threadgroup_position[0],
           t.threadgroup_position[1], t.threadgroup_position[2], t.position_in_threadgroup[0], t.position_in_threadgroup[1],
           t.position_in_threadgroup[2], machine.simdgroup, machine.lane);
  char at[32];
  snprintf(at, sizeof at, "{%#lx}: ", (unsigned long)place);
  machine.error = (place ? at : "") + std::string(text) + where;
  machine.failed = true;
  switch_to(machine.fibers[running_thread()].context, machine.main);
  abort();
}

static void make_storage() {
  if (machine.fibers) return;
  const int protection = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  machine.stacks = static_cast<char*>(mmap(nullptr, STACK_BYTES * MAX_THREADS, protection, kind, -1, 0));
  machine.arena = static_cast<char*>(mmap(nullptr, THREADGROUP_BYTES, protection, kind, -1, 0));
  machine.fibers = new Fiber[MAX_THREADS]();
  machine.inputs = new emu_thread[MAX_THREADS]();
  machine.groups_of_lanes = static_cast<SimdGroup*>(aligned_alloc(64, sizeof(SimdGroup) * MAX_SIMDGROUPS));
  for (unsigned t = 0; t < MAX_THREADS; t++) {
    machine.fibers[t].stack = machine.stacks + t * STACK_BYTES;
    mprotect(machine.fibers[t].stack, 4096, PROT_NONE);  // an overflow faults
  }
}

static void set_inputs(const unsigned (&position)[3], const unsigned (&size)[3]) {
  const unsigned* launched = machine.group;
  for (unsigned i = 0; i < machine.threads; i++) {
    emu_thread& t = machine.inputs[i];
    const unsigned in_group[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    for (int d = 0; d < 3; d++) {
      t.position_in_threadgroup[d] = in_group[d];
      t.threadgroup_position[d] = position[d];
      t.position_in_grid[d] = position[d] * launched[d] + in_group[d];
      t.threads_per_grid[d] = machine.grid[d];
      t.threads_per_threadgroup[d] = size[d];
      t.dispatch_threads_per_threadgroup[d] = launched[d];
      t.threadgroups_per_grid[d] = machine.groups[d];
    }
    t.index_in_threadgroup = i;
    t.lane = i % 32;
    t.simdgroup = i / 32;
    t.simdgroups = machine.simdgroups;
    t.dispatch_simdgroups = (launched[0] * launched[1] * launched[2] + 31) / 32;
    t.simd_width = EMU_SIMD_WIDTH;
    t.quad_lane = i % 4;
    t.quadgroup = i / 4;
    memcpy(t.buffer, machine.buffers, sizeof t.buffer);
  }
}

static void run_group(unsigned index) {
  const unsigned* n = machine.groups;
  const unsigned position[3] = {index % n[0], index / n[0] % n[1], index / n[0] / n[1]};
  unsigned size[3];  // groups at the edge of the grid are partial
  for (int d = 0; d < 3; d++) size[d] = std::min(machine.group[d], machine.grid[d] - position[d] * machine.group[d]);
  machine.group_index = index;
  machine.threads = machine.live = size[0] * size[1] * size[2];
  machine.simdgroups = (machine.threads + 31) / 32;
  machine.waiting = 0;
  machine.barrier = 0;
  machine.epoch[DEVICE] = machine.epoch[THREADGROUP] = 1;
  clear_arena();
  set_inputs(position, size);
  start_group();
  for (unsigned s = 0; s < machine.simdgroups; s++) settle_lines(s);
}

static void run_groups() {
  unsigned total = machine.groups[0] * machine.groups[1] * machine.groups[2];
  std::vector<unsigned> order(total);
  for (unsigned i = 0; i < total; i++) order[i] = machine.order == REVERSE ? total - 1 - i : i;
  if (machine.order == SHUFFLE) shuffle(order.data(), total);
  for (unsigned i = 0; i < total && !machine.failed; i++) run_group(order[i]);
}

static int find_image(dl_phdr_info* info, size_t, void*) {
  auto entry = reinterpret_cast<uintptr_t>(machine.entry);
  uintptr_t low = ~uintptr_t(0), high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    low = std::min(low, begin);
    high = std::max(high, begin + info->dlpi_phdr[i].p_memsz);
  }
  if (entry < low || entry >= high) return 0;
  machine.image_begin = info->dlpi_addr;
  machine.image_end = high;
  return 1;
}

// A buffer slot as Python describes it; bytes < 0: nothing bound.
struct Binding {
  unsigned long address;
  long bytes;
  int writable, constant;
};

static void watch(const Binding* bindings) {
  machine.regions.clear();
  for (int i = 0; i < EMU_BUFFERS && machine.check; i++) {
    const Binding& b = bindings[i];
    if (b.bytes < 0) continue;
    machine.regions.push_back({b.address, b.address + (unsigned long)b.bytes, i, b.writable != 0, b.constant != 0, {}});
    if (b.writable && b.bytes) clear_shadow(machine.regions.back().shadow, size_t(b.bytes));  // what nobody writes can't race
  }
}

static void unwatch() {
  for (Region& r : machine.regions) {
    if (!r.shadow.writes) continue;
    size_t bytes = (r.end - r.begin) * sizeof(Access);
    munmap(r.shadow.writes, bytes);
    munmap(r.shadow.reads, bytes);
  }
  machine.regions.clear();
}

struct Request {
  unsigned grid[3], group[3];
  int check, count_lines, order;
  unsigned long seed;
  Binding bindings[EMU_BUFFERS];
};

struct Report {
  unsigned long image;  // where the library is loaded: a place minus this is an address in its file
  Counts counts;
  char error[1600];
};

// Returns 0, or 1 with a message that starts with its place, "{0x...}: ".
extern "C" int emu_launch(Entry entry, const Request* request, Report* report) {
  static std::mutex lock;
  std::lock_guard<std::mutex> guard(lock);
  make_storage();
  unsigned long buffers[EMU_BUFFERS];
  for (int i = 0; i < EMU_BUFFERS; i++) buffers[i] = request->bindings[i].address;
  machine.entry = entry;
  machine.buffers = buffers;
  machine.check = request->check != 0;
  machine.count_lines = machine.check && request->count_lines;
  machine.order = Order(request->order);
  machine.random = request->seed * 2 + 1;
  machine.failed = false;
  machine.error.clear();
  machine.counts = Counts{};
  clear_executed();
  for (int d = 0; d < 3; d++) {
    machine.grid[d] = request->grid[d];
    machine.group[d] = request->group[d];
    machine.groups[d] = (request->grid[d] + request->group[d] - 1) / request->group[d];
  }
  dl_iterate_phdr(find_image, nullptr);
  watch(request->bindings);
  run_groups();
  unwatch();
  machine.check = false;  // the library's functions that describe its kernels are instrumented too
  report->image = machine.image_begin;
  report->counts = machine.counts;
  snprintf(report->error, sizeof report->error, "%s", machine.error.c_str());
  return machine.failed;
}
