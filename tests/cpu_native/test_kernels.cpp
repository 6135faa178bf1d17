// Every instruction set of this machine against plain loops in double precision, every buffer against a guard page.
// `test_kernels [--full]`: one line a set, exit 1 at the first case that is wrong. `--plant past|before|value` must fail: what is planted is found.
#include <csignal>
#include <string>

#include "api.h"
#include "checks.h"

Case current{};

static const int64_t LENGTHS[] = {0, 1, 7, 8, 33, 64, 65, 72, 100, 520, 1000};
static const int64_t GROUPS[] = {16, 32, 64, 128, 192, 256, 0};  // 0: a whole row
static const int64_t COUNTS[] = {1, 2, 3, 4, 5, 16};
static const int KINDS[] = {HALF, BFLOAT, FLOAT};
static const Guard GUARDS[] = {Guard::AFTER, Guard::BEFORE};

struct Run {
  const char* set;
  bool full;
  Buffers& buffers;
  long seen = 0, ran = 0;

  // All cases, or every 59th: as no grid below has a side of 59, that goes through every value of every side, and every pair of values.
  bool skip() { return seen++ % 59 != 0 && !full; }

  void check(void (*f)(const Case&, Buffers&), Case c) {
    c.set = set;
    c.seed = uint64_t(seen);
    if (c.group == 0 || c.group > c.length) c.group = c.length ? c.length : 1;
    f(c, buffers);
    ran++;
  }
};

template <class Body>
static void for_layouts(const Body& body) {
  for (int bits = 1; bits <= 8; bits++)
    for (int64_t group : GROUPS)
      for (int64_t length : LENGTHS)
        for (int params : KINDS)
          for (int kind : KINDS)
            for (Guard guard : GUARDS) body(bits, group, length, params, kind, guard);
}

static void run_linear(Run& run) {
  for_layouts([&](int bits, int64_t group, int64_t length, int params, int kind, Guard guard) {
    for (int64_t count : COUNTS)
      for (bool biased : {false, true}) {
        if (run.skip()) continue;
        const int bias = biased ? int((run.seen + count) % 3) : -1, style = int(run.seen / 2 % 3);
        run.check(check_linear, {"", "linear", bits, group, length, 3, count, params, kind, bias, false, style, 1, guard, 0});
      }
  });
}

static void run_decode(Run& run) {
  for_layouts([&](int bits, int64_t group, int64_t length, int params, int kind, Guard guard) {
    for (bool indices : {false, true})
      if (!run.skip()) run.check(check_decode, {"", "decode", bits, group, length, 3, indices ? 5 : 3, params, kind, -1, indices, MIXED, 1, guard, 0});
  });
}

static void run_codes(Run& run) {
  for (int bits = 1; bits <= 8; bits++)
    for (int64_t length : LENGTHS)
      for (int64_t rows : {1, 3})
        for (Guard guard : GUARDS) {
          run.seen++;
          run.check(check_codes, {"", "codes", bits, 64, length, rows, 0, HALF, HALF, -1, false, MIXED, 1, guard, 0});
        }
}

// Rows as long as those of large models, where chains of additions are.
static void run_long(Run& run) {
  for (int bits = 1; bits <= 8; bits++)
    for (int64_t group : {16, 64, 256, 0})
      for (int64_t count : {1, 5})
        for (int style : {MIXED, POSITIVE, CONSTANT})
          if (!run.skip()) run.check(check_linear, {"", "linear", bits, group, 14336, 1, count, HALF, FLOAT, -1, false, style, 1, Guard::AFTER, 0});
}

// Work enough to be shared among threads.
static void run_threads(Run& run) {
  for (int bits = 1; bits <= 8; bits++)
    for (int threads : {2, 3}) {
      const Guard guard = GUARDS[threads % 2];
      run.seen++;
      run.check(check_linear, {"", "linear", bits, 64, 1000, 67, bits % 5 + 1, HALF, FLOAT, FLOAT, false, MIXED, threads, guard, 0});
      run.check(check_decode, {"", "decode", bits, 64, 1000, 67, 67, HALF, FLOAT, -1, threads == 2, MIXED, threads, guard, 0});
      run.check(check_codes, {"", "codes", bits, 64, 1000, 67, 0, HALF, HALF, -1, false, MIXED, threads, guard, 0});
    }
}

// Says which case touched a guard page, then lets whoever was there before deal with it.
static struct sigaction previous[2];
static const int SIGNALS[2] = {SIGSEGV, SIGBUS};

static void touched(int) {
  std::fprintf(stderr, "touched a guard page: ");
  describe(stderr, current);
  std::fprintf(stderr, "\n");
  for (int i = 0; i < 2; i++) sigaction(SIGNALS[i], &previous[i], nullptr);
}

static void report_signals() {
  struct sigaction action {};
  action.sa_handler = touched;
  for (int i = 0; i < 2; i++) sigaction(SIGNALS[i], &action, &previous[i]);
}

// A fault of each kind that this program is there to find.
static int plant(const std::string& fault, Buffers& buffers) {
  Case c{lowbit_chosen(), "linear", 4, 64, 100, 3, 1, HALF, FLOAT, -1, false, MIXED, 1, fault == "before" ? Guard::BEFORE : Guard::AFTER, 1};
  current = c;
  volatile uint8_t* buffer = buffers.packed.take<uint8_t>(7, c.guard);
  if (fault == "past") return buffer[7];
  if (fault == "before") return buffer[-1];
  c.bits = 9;  // a width that there is not: no kernel runs
  check_linear(c, buffers);
  return 0;
}

int main(int count, char** arguments) {
  const std::string option = count > 1 ? arguments[1] : "";
  report_signals();
  static Buffers buffers;
  if (option == "--plant" && count > 2) return plant(arguments[2], buffers);
  if (!option.empty() && option != "--full") return 2;
  int usable = 0;
  for (int i = 0; const char* set = lowbit_set(i, &usable); i++) {
    if (!usable) continue;
    if (!lowbit_choose(i) || std::string(lowbit_chosen()) != set) return 2;
    Run run{set, option == "--full", buffers};
    run_linear(run);
    run_decode(run);
    run_codes(run);
    run_long(run);
    run_threads(run);
    std::printf("%s: %ld cases\n", set, run.ran);
    std::fflush(stdout);
  }
  return 0;
}
