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

METAL_FUNC int parameter_size(int kind) { return kind == KIND_HALF || kind == KIND_BFLOAT ? 2 : 4; }

METAL_FUNC float load_float(device const uchar* values, int index, int kind) {
  if (kind == KIND_HALF) return float(((device const half*)values)[index]);
  if (kind == KIND_BFLOAT) return float(((device const bfloat*)values)[index]);
  return ((device const float*)values)[index];
}

METAL_FUNC int ceil_div(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }

// log2 of a group size, -1 where it is no power of two; then `group_of` needs no division, which GPUs are slow at.
METAL_FUNC int group_shift(int group_size) { return (group_size & (group_size - 1)) == 0 ? 31 - int(clz(uint(group_size))) : -1; }

METAL_FUNC int group_of(int k, int group_size, int shift) { return shift >= 0 ? k >> shift : k / group_size; }

METAL_FUNC ulong row_bytes(int length, int bits) { return (ulong(length) * ulong(bits) + 7) / 8; }

// The bytes of a run as two little-endian words, of which `bytes` bytes are there. `align` is what the address of every run is a multiple
// of: 1, 2 or 4; the wider the loads, the fewer.
template <int BITS>
METAL_FUNC void load_run(device const uchar* run, int bytes, int align, thread uint& low, thread uint& high) {
  low = 0;
  high = 0;
  if (bytes < BITS) {  // the end of a row
    for (int i = 0; i < min(bytes, 4); i++) low |= uint(run[i]) << (8 * i);
    for (int i = 4; i < bytes; i++) high |= uint(run[i]) << (8 * i - 32);
  } else if (BITS % 4 == 0 && align == 4) {
    low = *(device const uint*)run;
    if (BITS == 8) high = *(device const uint*)(run + 4);
  } else if (BITS % 2 == 0 && align >= 2) {
    for (int i = 0; i < BITS && i < 4; i += 2) low |= uint(*(device const ushort*)(run + i)) << (8 * i);
    for (int i = 4; i < BITS; i += 2) high |= uint(*(device const ushort*)(run + i)) << (8 * i - 32);
  } else {
    for (int i = 0; i < BITS && i < 4; i++) low |= uint(run[i]) << (8 * i);
    for (int i = 4; i < BITS; i++) high |= uint(run[i]) << (8 * i - 32);
  }
}

// The 8 codes of a run, as floats; those past the bytes that are there are 0. Codes 0 to 3 lie in the low word at every width.
template <int BITS>
METAL_FUNC void decode_run(device const uchar* run, int bytes, int align, thread float* codes) {
  uint low = 0, high = 0;
  load_run<BITS>(run, bytes, align, low, high);
  uint second = high;
  if (BITS < 8) second = (low >> (4 * BITS % 32)) | (BITS > 4 ? high << (32 - 4 * BITS % 32) : 0);
  for (int j = 0; j < 4; j++) {
    codes[j] = float(extract_bits(low, uint(j * BITS), uint(BITS)));
    codes[j + 4] = float(extract_bits(second, uint(j * BITS), uint(BITS)));
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
