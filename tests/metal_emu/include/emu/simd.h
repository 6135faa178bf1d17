// Barriers and SIMD-group functions. Every lane hands its operand over in emu_exchange and reads what it needs of the others'.
#pragma once
namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
EMU_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }

EMU_INLINE void threadgroup_barrier(mem_flags flags) { emu_barrier((uint)flags); }
EMU_INLINE void simdgroup_barrier(mem_flags flags) {
  uint value = (uint)flags;
  emu_exchange(&value, sizeof(value), EMU_MEMORY_BARRIER | value);
}

template <class T> EMU_INLINE emu_block* emu_hand_over(T x, uint operation) {
  static_assert(sizeof(T) <= EMU_SLOT, "operand too large");
  return emu_exchange(&x, sizeof(T), operation);
}
template <class T> EMU_INLINE T emu_operand(emu_block* block, uint lane) { return *(T*)block->slot[lane]; }

// Reductions are trees; the first lane to go on computes for all. The addition's order is the harness's own: Metal leaves it open.
template <class T, class F> EMU_INLINE T emu_reduce(emu_block* block, F combine) {
  if (!block->done) {
    T v[EMU_SIMD_WIDTH];
    for (uint i = 0; i < EMU_SIMD_WIDTH; i++) v[i] = emu_operand<T>(block, i);
    for (uint n = EMU_SIMD_WIDTH / 2; n; n /= 2)
      for (uint i = 0; i < n; i++) v[i] = combine(v[i], v[i + n]);
    *(T*)block->result = v[0];
    block->done = 1;
  }
  return *(T*)block->result;
}

// Every function on T, with the lint for half and none for bfloat: NAME(T x, PARAMETERS) { BODY }.
#define EMU_SIMD(NAME, PARAMETERS, BODY)                                        \
  template <class T> EMU_INLINE T NAME(T x EMU_UNPACK PARAMETERS) BODY          \
  template <class T = half> EMU_INLINE EMU_NARROW half NAME(half x EMU_UNPACK PARAMETERS) BODY \
  template <class T = bfloat> void NAME(bfloat x EMU_UNPACK PARAMETERS) = delete;
#define EMU_UNPACK(...) __VA_ARGS__

#define EMU_REDUCTION(NAME, EXPRESSION) \
  EMU_SIMD(NAME, (), { return emu_reduce<T>(emu_hand_over(x, EMU_REDUCE), [](T a, T b) -> T { return EXPRESSION; }); })
EMU_REDUCTION(simd_sum, a + b)
EMU_REDUCTION(simd_product, a * b)
EMU_REDUCTION(simd_max, b > a ? b : a)
EMU_REDUCTION(simd_min, b < a ? b : a)
template <class T> EMU_INLINE T simd_and(T x) { return emu_reduce<T>(emu_hand_over(x, EMU_REDUCE), [](T a, T b) -> T { return a & b; }); }
template <class T> EMU_INLINE T simd_or(T x) { return emu_reduce<T>(emu_hand_over(x, EMU_REDUCE), [](T a, T b) -> T { return a | b; }); }
template <class T> EMU_INLINE T simd_xor(T x) { return emu_reduce<T>(emu_hand_over(x, EMU_REDUCE), [](T a, T b) -> T { return a ^ b; }); }

// A lane that does not exist is an error, where Metal says "undefined".
template <class T> EMU_INLINE T emu_from(emu_block* block, uint lane) {
  if (lane >= EMU_SIMD_WIDTH) emu_bad_lane(lane);
  return emu_operand<T>(block, lane);
}
EMU_SIMD(simd_shuffle, (, ushort lane), { return emu_from<T>(emu_hand_over(x, EMU_SHUFFLE), lane); })
EMU_SIMD(simd_broadcast, (, ushort lane), { return emu_from<T>(emu_hand_over(x, EMU_BROADCAST), lane); })
EMU_SIMD(simd_broadcast_first, (), { return emu_operand<T>(emu_hand_over(x, EMU_FIRST), 0); })
EMU_SIMD(simd_shuffle_xor, (, ushort mask), { return emu_from<T>(emu_hand_over(x, EMU_SHUFFLE_XOR), emu_lane() ^ mask); })
EMU_SIMD(simd_shuffle_rotate_down, (, ushort n), { return emu_operand<T>(emu_hand_over(x, EMU_SHUFFLE_DOWN), (emu_lane() + n) & 31); })
EMU_SIMD(simd_shuffle_rotate_up, (, ushort n), { return emu_operand<T>(emu_hand_over(x, EMU_SHUFFLE_UP), (emu_lane() - n) & 31); })
// Past the end a lane keeps its own value.
EMU_SIMD(simd_shuffle_down, (, ushort n), {
  emu_block* block = emu_hand_over(x, EMU_SHUFFLE_DOWN);
  uint lane = emu_lane() + n;
  return emu_operand<T>(block, lane < EMU_SIMD_WIDTH ? lane : emu_lane());
})
EMU_SIMD(simd_shuffle_up, (, ushort n), {
  emu_block* block = emu_hand_over(x, EMU_SHUFFLE_UP);
  return emu_operand<T>(block, emu_lane() >= n ? emu_lane() - n : emu_lane());
})

template <class T> EMU_INLINE T emu_prefix(emu_block* block, uint end) {
  T sum = (T)0;
  for (uint i = 0; i < end; i++) sum += emu_operand<T>(block, i);
  return sum;
}
EMU_SIMD(simd_prefix_inclusive_sum, (), { return emu_prefix<T>(emu_hand_over(x, EMU_PREFIX), emu_lane() + 1); })
EMU_SIMD(simd_prefix_exclusive_sum, (), { return emu_prefix<T>(emu_hand_over(x, EMU_PREFIX), emu_lane()); })

EMU_SIMD(quad_shuffle_xor, (, ushort mask), { return emu_operand<T>(emu_hand_over(x, EMU_QUAD), emu_lane() ^ (mask & 3)); })
EMU_SIMD(quad_broadcast, (, ushort lane), { return emu_operand<T>(emu_hand_over(x, EMU_QUAD), (emu_lane() & ~3u) + (lane & 3)); })
EMU_SIMD(quad_sum, (), {
  emu_block* block = emu_hand_over(x, EMU_QUAD);
  uint q = emu_lane() & ~3u;
  return (emu_operand<T>(block, q) + emu_operand<T>(block, q + 1)) + (emu_operand<T>(block, q + 2) + emu_operand<T>(block, q + 3));
})
#undef EMU_REDUCTION
#undef EMU_SIMD
#undef EMU_UNPACK

struct simd_vote {
  ulong votes;
  simd_vote() = default;
  explicit simd_vote(ulong v) : votes(v) {}
  explicit operator ulong() const { return votes; }
  bool all() const { return votes == 0xffffffffu; }
  bool any() const { return votes != 0; }
};
EMU_INLINE simd_vote simd_ballot(bool vote) {
  emu_block* block = emu_hand_over(vote, EMU_BALLOT);
  ulong votes = 0;
  for (uint i = 0; i < EMU_SIMD_WIDTH; i++) votes |= (ulong)emu_operand<bool>(block, i) << i;
  return simd_vote(votes);
}
EMU_INLINE bool simd_any(bool vote) { return simd_ballot(vote).any(); }
EMU_INLINE bool simd_all(bool vote) { return simd_ballot(vote).all(); }
EMU_INLINE bool simd_is_first() { return emu_lane() == 0; }

}  // namespace metal
