// How often each basic block of the launched library ran, for libraries compiled to tell (operations.py has what a block computes).
#include <algorithm>

#include "machine.h"

static std::vector<unsigned long> executed;

void clear_executed() { std::fill(executed.begin(), executed.end(), 0); }

extern "C" {

// Called when a library is loaded. Only one runs at a time, so every library numbers its blocks from 0.
void __sanitizer_cov_trace_pc_guard_init(uint32_t* start, uint32_t* stop) {
  for (uint32_t* guard = start; guard < stop; guard++) *guard = uint32_t(guard - start);
  if (executed.size() < size_t(stop - start)) executed.resize(size_t(stop - start));
}

void __sanitizer_cov_trace_pc_guard(uint32_t* guard) { executed[*guard]++; }

const unsigned long* emu_executed() { return executed.data(); }

}  // extern "C"
