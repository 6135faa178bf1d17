// The canonical bit stream (docs/format.md, 3) and the parameters: what every kernel shares.
//
// A run is 8 codes, which fill exactly BITS bytes at every width. A row starts at a byte, its run r at byte r * BITS.

#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

constant constexpr int RUN = 8;
constant constexpr int LANES = 32;

// How parameters and biases are stored; the branch is uniform, so that one kernel serves all dtypes.
constant constexpr int KIND_NONE = -1;
constant constexpr int KIND_HALF = 0;
constant constexpr int KIND_BFLOAT = 1;

METAL_FUNC float load_float(device const uchar* values, ulong index, int kind) {
  if (kind == KIND_HALF) return float(((device const half*)values)[index]);
  if (kind == KIND_BFLOAT) return float(((device const bfloat*)values)[index]);
  return ((device const float*)values)[index];
}

METAL_FUNC int ceil_div(int a, int b) { return (a + b - 1) / b; }

METAL_FUNC ulong row_bytes(int length, int bits) { return (ulong(length) * ulong(bits) + 7) / 8; }

// Codes 0 to 3 of a run lie in its bytes before FIRST_END, codes 4 to 7 in those from SECOND on, SKIP bits into them.
template <int BITS>
struct Layout {
  static constant constexpr int FIRST_END = (BITS + 1) / 2;
  static constant constexpr int SECOND = BITS / 2;
  static constant constexpr int SKIP = 4 * BITS - 8 * SECOND;
};

// Bytes `from` to `to` of a run as one little-endian word. `wide`: the run starts at an even address.
METAL_FUNC uint load_word(device const uchar* run, int from, int to, bool wide) {
  uint word = 0;
  if (wide && from % 2 == 0 && to % 2 == 0) {
    for (int i = from; i < to; i += 2) word |= uint(*(device const ushort*)(run + i)) << (8 * (i - from));
  } else {
    for (int i = from; i < to; i++) word |= uint(run[i]) << (8 * (i - from));
  }
  return word;
}

// The 8 codes of a run of which `bytes` bytes are there, as floats; codes beyond them are 0.
template <int BITS>
METAL_FUNC void decode_run(device const uchar* run, int bytes, bool wide, thread float* codes) {
  uint first = 0, second = 0;
  if (bytes >= BITS) {
    first = load_word(run, 0, Layout<BITS>::FIRST_END, wide);
    second = load_word(run, Layout<BITS>::SECOND, BITS, wide);
  } else {
    first = load_word(run, 0, min(bytes, Layout<BITS>::FIRST_END), false);
    second = load_word(run, Layout<BITS>::SECOND, max(bytes, Layout<BITS>::SECOND), false);
  }
  for (int j = 0; j < 4; j++) {
    codes[j] = float(extract_bits(first, uint(j * BITS), uint(BITS)));
    codes[j + 4] = float(extract_bits(second, uint(Layout<BITS>::SKIP + j * BITS), uint(BITS)));
  }
}

// `BITS` bytes of a run from 8 codes; `bytes` of them are written, by this thread alone.
template <int BITS>
METAL_FUNC void encode_run(thread const uint* codes, int bytes, device uchar* run) {
  uint first = 0, second = 0;
  for (int j = 0; j < 4; j++) {
    first |= codes[j] << (j * BITS);
    second |= codes[j + 4] << (j * BITS);
  }
  // The first word's last 4 bits and the second's first share a byte where the width is odd.
  const ulong all = ulong(first) | (ulong(second) << (4 * BITS));
  for (int i = 0; i < bytes; i++) run[i] = uchar((all >> (8 * i)) & 0xff);
}

// Bytes that are there of run `index` of a row of `length` codes.
template <int BITS>
METAL_FUNC int run_bytes(int index, int length) {
  return (min(RUN, length - index * RUN) * BITS + 7) / 8;
}
