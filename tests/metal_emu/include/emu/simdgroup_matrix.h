// simdgroup_matrix 8x8: lane l holds the elements (row, column) and (row, column + 1) of emu_row(l), emu_column(l), as Apple's GPUs do.
#pragma once
namespace metal {

EMU_INLINE uint emu_row(uint lane) { return EMU_ROW(lane); }
EMU_INLINE uint emu_column(uint lane) { return EMU_COLUMN(lane); }

template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "a simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "a simdgroup_matrix is of float, half or bfloat");
  typedef vec<T, 2> storage_type;
  storage_type elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    uint lane = emu_lane();
    for (uint i = 0; i < 2; i++) elements.s[i] = emu_row(lane) == emu_column(lane) + i ? diagonal : (T)0;
  }
  __private storage_type& thread_elements() __private { return elements; }
  const __private storage_type& thread_elements() const __private { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C = R> EMU_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m;
  m.elements = vec<T, 2>(value);
  return m;
}

// Where element i of this lane lies in memory. The origin is (column, row).
EMU_INLINE ulong emu_element(uint i, ulong elements_per_row, ulong2 origin, bool transpose) {
  uint lane = emu_lane(), row = emu_row(lane), column = emu_column(lane) + i;
  return (origin.s[1] + (transpose ? column : row)) * elements_per_row + origin.s[0] + (transpose ? row : column);
}

template <class P> struct emu_pointee;
template <class T> struct emu_pointee<const __global T*> { typedef T type; };
template <class T> struct emu_pointee<__global T*> { typedef T type; };
template <class T> struct emu_pointee<const __local T*> { typedef T type; };
template <class T> struct emu_pointee<__local T*> { typedef T type; };

template <class T, class P>
EMU_INLINE void simdgroup_load(__private simdgroup_matrix<T, 8, 8>& m, P source, ulong elements_per_row = 8, ulong2 origin = 0,
                               bool transpose = false) {
  static_assert(is_same_v<typename emu_pointee<P>::type, T>, "simdgroup_load from a pointer to another type");
  emu_hand_over(0u, EMU_MATRIX_LOAD);
  for (uint i = 0; i < 2; i++) m.elements.s[i] = source[emu_element(i, elements_per_row, origin, transpose)];
}

template <class T, class P>
EMU_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P target, ulong elements_per_row = 8, ulong2 origin = 0,
                                bool transpose = false) {
  static_assert(is_same_v<typename emu_pointee<P>::type, T>, "simdgroup_store to a pointer to another type");
  emu_hand_over(0u, EMU_MATRIX_STORE);
  for (uint i = 0; i < 2; i++) target[emu_element(i, elements_per_row, origin, transpose)] = m.elements.s[i];
}

// d = a * b + c
template <class D, class A, class B, class C>
EMU_INLINE void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>& d, const __private simdgroup_matrix<A, 8, 8>& a,
                                              const __private simdgroup_matrix<B, 8, 8>& b, const __private simdgroup_matrix<C, 8, 8>& c) {
  static_assert(is_same_v<C, D>, "the accumulators' types differ");
  vec<float, 4> operands((float)a.elements.s[0], (float)a.elements.s[1], (float)b.elements.s[0], (float)b.elements.s[1]);
  emu_block* block = emu_hand_over(operands, EMU_MATRIX_MULTIPLY);
  if (!block->done) {
    emu_multiply(block);
    block->done = 1;
  }
  const float* product = (const float*)block->result + emu_row(emu_lane()) * 8 + emu_column(emu_lane());
  for (uint i = 0; i < 2; i++) d.elements.s[i] = (D)(product[i] + (float)c.elements.s[i]);
}
template <class D, class A, class B>
EMU_INLINE void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>& d, const __private simdgroup_matrix<A, 8, 8>& a,
                                   const __private simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_matrix<D, 8, 8> zero = make_filled_simdgroup_matrix<D, 8, 8>((D)0);
  simdgroup_multiply_accumulate(d, a, b, zero);
}

}  // namespace metal
