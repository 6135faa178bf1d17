// The kernels, written once for all instruction sets. The including file defines, in its own namespace: `V`, a vector of WIDTH floats;
// load, load_half, load_bfloat, store, set1, fma, mul, add, total over lanes, prefetch; and `decode_block<BITS>(bytes, V*)`, 64 codes as floats.

constexpr int VECTORS = BLOCK / WIDTH;
// Sums have levels: CHAIN additions, CHAIN sums of these, and so on. One long chain exceeds the bound where its rounding errors go one way,
// as with constant x.
constexpr int CHAIN = 16;
constexpr int FOLD = CHAIN * WIDTH;  // codes whose products are summed before they are scaled
static_assert(FOLD % BLOCK == 0 && BLOCK % WIDTH == 0 && 16 % WIDTH == 0, "");

template <int ROWS>
LOWBIT_INLINE void fold(V* part, V* totals) {
  for (int m = 0; m < ROWS; m++) {
    totals[m] = add(totals[m], part[m]);
    part[m] = set1(0);
  }
}

// Block `b` of a row: straight from it, or, where the row ends within, from a copy padded with zeros.
template <int BITS>
LOWBIT_INLINE void decode_at(const uint8_t* row, int64_t b, int64_t length, V* codes) {
  const uint8_t* at = row + b * (8 * BITS);
  if ((b + 1) * BLOCK <= length) return decode_block<BITS>(at, codes);
  uint8_t padded[BLOCK] = {};
  std::memcpy(padded, at, row_bytes(size_t(length - b * BLOCK), BITS));
  decode_block<BITS>(padded, codes);
}

LOWBIT_INLINE void load_parameters(const void* values, size_t first, int64_t count, int kind, float* out) {
  int64_t i = 0;
  const uint16_t* halves = static_cast<const uint16_t*>(values) + first;
  if (kind == HALF)
    for (; i + WIDTH <= count; i += WIDTH) store(out + i, load_half(halves + i));
  if (kind == BFLOAT)
    for (; i + WIDTH <= count; i += WIDTH) store(out + i, load_bfloat(halves + i));
  for (; i < count; i++) out[i] = load_float(values, first + size_t(i), kind);
}

// One row of the weight times ROWS rows of x. Groups of 64 codes and more: products are summed over at most FOLD codes, then scaled.
template <int BITS, int ROWS>
LOWBIT_INLINE void multiply_long(const Weight& w, const uint8_t* row, const float* scales, const float* x, int64_t stride, V* totals) {
  const int64_t blocks = (w.length + BLOCK - 1) / BLOCK;
  const int64_t group_blocks = std::min((w.group_size + BLOCK - 1) / BLOCK, blocks);
  V sums[ROWS], part[ROWS];
  for (int64_t b = 0, group = 0, group_end = group_blocks; b < blocks;) {
    for (int m = 0; m < ROWS; m++) part[m] = set1(0);
    for (int chain = 0; chain < CHAIN && b < blocks; chain++) {
      for (int m = 0; m < ROWS; m++) sums[m] = set1(0);
      for (const int64_t end = std::min({b + FOLD / BLOCK, group_end, blocks}); b < end; b++) {
        V codes[VECTORS];
        prefetch(row + b * (8 * BITS) + 1024);
        decode_at<BITS>(row, b, w.length, codes);
        for (int m = 0; m < ROWS; m++)
          for (int i = 0; i < VECTORS; i++) sums[m] = fma(codes[i], load(x + m * stride + b * BLOCK + i * WIDTH), sums[m]);
      }
      const V scale = set1(scales[group]);
      for (int m = 0; m < ROWS; m++) part[m] = fma(scale, sums[m], part[m]);
      if (b == group_end) group++, group_end += group_blocks;
    }
    for (int m = 0; m < ROWS; m++) totals[m] = add(totals[m], part[m]);
  }
}

// Groups of 16 or 32 codes: several within a block.
template <int BITS, int ROWS>
LOWBIT_INLINE void multiply_short(const Weight& w, const uint8_t* row, const float* scales, const float* x, int64_t stride, V* totals) {
  const int64_t blocks = (w.length + BLOCK - 1) / BLOCK;
  const int per = int(w.group_size) / WIDTH;  // vectors a group: WIDTH divides 16
  V sums[ROWS], part[ROWS];
  for (int m = 0; m < ROWS; m++) sums[m] = part[m] = set1(0);
  for (int64_t b = 0; b < blocks; b++) {
    V codes[VECTORS];
    prefetch(row + b * (8 * BITS) + 1024);
    decode_at<BITS>(row, b, w.length, codes);
    const float* first = scales + b * (BLOCK / w.group_size);
    for (int i = 0; i < VECTORS; i++) {
      const V scaled = mul(set1(first[i / per]), codes[i]);
      for (int m = 0; m < ROWS; m++) sums[m] = fma(scaled, load(x + m * stride + b * BLOCK + i * WIDTH), sums[m]);
    }
    const int64_t done = (b + 1) * BLOCK;
    if (done % FOLD == 0) fold<ROWS>(sums, part);
    if (done % (FOLD * CHAIN) == 0) fold<ROWS>(part, totals);
  }
  fold<ROWS>(sums, part);
  fold<ROWS>(part, totals);
}

// What the zeros of a row of the weight add to its product with row `m` of x.
LOWBIT_INLINE float shift(const Rows& x, int64_t m, const float* zeros) {
  const float* sums = x.sums + m * x.group_stride;
  V part[1] = {set1(0)}, totals[1] = {set1(0)};
  for (int64_t g = 0; g < x.group_stride; g += WIDTH) {
    part[0] = fma(load(zeros + g), load(sums + g), part[0]);
    if ((g + WIDTH) % FOLD == 0) fold<1>(part, totals);
  }
  return total(add(totals[0], part[0]));
}

template <int BITS, int ROWS>
LOWBIT_INLINE void multiply_rows(const Weight& w, const Rows& x, int64_t m, int64_t n, const float* scales, const float* zeros, float* y) {
  const uint8_t* row = w.packed + size_t(n) * row_bytes(size_t(w.length), BITS);
  V totals[ROWS];
  for (int r = 0; r < ROWS; r++) totals[r] = set1(0);
  if (w.group_size >= BLOCK || w.groups == 1) multiply_long<BITS, ROWS>(w, row, scales, x.x + m * x.stride, x.stride, totals);
  else multiply_short<BITS, ROWS>(w, row, scales, x.x + m * x.stride, x.stride, totals);
  for (int r = 0; r < ROWS; r++) {
    y[(m + r) * w.rows + n] = total(totals[r]) + shift(x, m + r, zeros);
  }
}

// Many rows: one row of the weight is decoded into memory of the nearest cache, then multiplied with each row of x.
template <int BITS>
LOWBIT_INLINE void multiply_decoded(const Weight& w, const Rows& x, int64_t n, const float* values, float* y) {
  for (int64_t m = 0; m < x.count; m++) {
    V sums[4] = {set1(0), set1(0), set1(0), set1(0)};
    const float* row = x.x + m * x.stride;
    double all = 0;
    for (int64_t k = 0; k < x.stride;) {
      for (const int64_t end = std::min<int64_t>(k + 4 * FOLD, x.stride); k < end; k += 4 * WIDTH)
        for (int i = 0; i < 4; i++) sums[i] = fma(load(values + k + i * WIDTH), load(row + k + i * WIDTH), sums[i]);
      all += total(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
      for (int i = 0; i < 4; i++) sums[i] = set1(0);
    }
    y[m * w.rows + n] = float(all);
  }
}

// scale * code + zero of a row, [blocks * 64] of float32; what lies past its end means nothing.
template <int BITS>
LOWBIT_INLINE void decode_row(const Weight& w, int64_t n, const float* scales, const float* zeros, float* out) {
  const uint8_t* row = w.packed + size_t(n) * row_bytes(size_t(w.length), BITS);
  const int64_t blocks = (w.length + BLOCK - 1) / BLOCK;
  for (int64_t b = 0; b < blocks; b++) {
    V codes[VECTORS];
    decode_at<BITS>(row, b, w.length, codes);
    for (int i = 0; i < VECTORS; i++) {
      const int64_t k = b * BLOCK + i * WIDTH, group = k < w.length ? k / w.group_size : w.groups - 1;
      store(out + k, fma(set1(scales[group]), codes[i], set1(zeros[group])));
    }
  }
}

struct Scratch {  // of one thread: parameters of a row, padded to whole vectors, and one decoded row
  float* scales;
  float* zeros;
  float* values;
  Scratch(const Weight& w, bool decoded) {
    const size_t groups = size_t(w.groups + 31) / 16 * 16, length = size_t(w.length + BLOCK - 1) / BLOCK * BLOCK;
    scales = new float[2 * groups + (decoded ? length : 0)]();
    zeros = scales + groups;
    values = zeros + groups;
  }
  ~Scratch() { delete[] scales; }
  void load(const Weight& w, int64_t n) {
    load_parameters(w.scales, size_t(n) * size_t(w.groups), w.groups, w.kind, scales);
    load_parameters(w.zeros, size_t(n) * size_t(w.groups), w.groups, w.kind, zeros);
  }
};

template <int BITS>
void multiply_range(const Weight& w, const Rows& x, float* y, int64_t first, int64_t last) {
  Scratch scratch(w, x.count > 4);
  for (int64_t n = first; n < last; n++) {
    scratch.load(w, n);
    if (x.count > 4) {
      decode_row<BITS>(w, n, scratch.scales, scratch.zeros, scratch.values);
      multiply_decoded<BITS>(w, x, n, scratch.values, y);
      continue;
    }
    if (x.count == 1) multiply_rows<BITS, 1>(w, x, 0, n, scratch.scales, scratch.zeros, y);
    if (x.count == 2) multiply_rows<BITS, 2>(w, x, 0, n, scratch.scales, scratch.zeros, y);
    if (x.count == 3) multiply_rows<BITS, 3>(w, x, 0, n, scratch.scales, scratch.zeros, y);
    if (x.count == 4) multiply_rows<BITS, 4>(w, x, 0, n, scratch.scales, scratch.zeros, y);
  }
}

template <int BITS>
void decode_to(const Weight& w, int64_t n, void* out, int kind) {
  Scratch scratch(w, true);
  scratch.load(w, n);
  decode_row<BITS>(w, n, scratch.scales, scratch.zeros, scratch.values);
  for (int64_t k = 0; k < w.length; k++) store_float(out, size_t(k), kind, scratch.values[k]);
}

template <int BITS>
void unpack_row(const uint8_t* packed, int64_t length, uint8_t* codes) {
  float values[BLOCK];
  for (int64_t b = 0; b * BLOCK < length; b++) {
    V block[VECTORS];
    decode_at<BITS>(packed, b, length, block);
    for (int i = 0; i < VECTORS; i++) store(values + i * WIDTH, block[i]);
    for (int64_t k = b * BLOCK; k < length && k < (b + 1) * BLOCK; k++) codes[k] = uint8_t(values[k - b * BLOCK]);
  }
}

// `f<bits>(arguments)` for a width that is known when it runs.
#define LOWBIT_BY_WIDTH(bits, f, ...)  \
  switch (bits) {                      \
    case 1: return f<1>(__VA_ARGS__);  \
    case 2: return f<2>(__VA_ARGS__);  \
    case 3: return f<3>(__VA_ARGS__);  \
    case 4: return f<4>(__VA_ARGS__);  \
    case 5: return f<5>(__VA_ARGS__);  \
    case 6: return f<6>(__VA_ARGS__);  \
    case 7: return f<7>(__VA_ARGS__);  \
    case 8: return f<8>(__VA_ARGS__);  \
  }

void multiply(const Weight& w, const Rows& x, float* y, int64_t first, int64_t last) { LOWBIT_BY_WIDTH(w.bits, multiply_range, w, x, y, first, last) }
void decode(const Weight& w, int64_t n, void* out, int kind) { LOWBIT_BY_WIDTH(w.bits, decode_to, w, n, out, kind) }
void unpack(const uint8_t* packed, int bits, int64_t length, uint8_t* codes) { LOWBIT_BY_WIDTH(bits, unpack_row, packed, length, codes) }
