// Counts the 64-byte lines of device memory that each instruction of a SIMD-group touches: what a GPU's memory system has to fetch when
// its lanes run in step. Lanes run one after the other here, so the k-th time that lane a comes to a place is matched with the k-th time
// that lane b does, counted from where the SIMD-group met last.
#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "machine.h"

static const uintptr_t LINE_BYTES = 64;

struct Touch {
  uintptr_t place;
  unsigned time;  // how often this lane had been at this place
  bool write;
  uintptr_t line;
  bool operator<(const Touch& o) const { return std::tie(place, time, write, line) < std::tie(o.place, o.time, o.write, o.line); }
  bool operator==(const Touch& o) const { return place == o.place && time == o.time && write == o.write && line == o.line; }
};

static std::vector<Touch> touches[MAX_SIMDGROUPS];
static std::unordered_map<uintptr_t, unsigned> visits[MAX_THREADS];  // place -> how often, of each thread

void note_line(uintptr_t address, unsigned bytes, bool write, uintptr_t place) {
  if (!machine.count_lines) return;
  unsigned time = visits[running_thread()][place]++;
  for (uintptr_t line = address / LINE_BYTES; line <= (address + bytes - 1) / LINE_BYTES; line++)
    touches[machine.simdgroup].push_back({place, time, write, line});
}

void settle_lines(unsigned simdgroup) {
  if (!machine.count_lines) return;
  std::vector<Touch>& all = touches[simdgroup];
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const Touch& t : all) (t.write ? machine.counts.device_lines_stored : machine.counts.device_lines_loaded)++;
  all.clear();
  for (unsigned t = simdgroup * EMU_SIMD_WIDTH; t < (simdgroup + 1) * EMU_SIMD_WIDTH; t++) visits[t].clear();
}
