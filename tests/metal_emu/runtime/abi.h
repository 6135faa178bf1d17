// What compiled kernels (OpenCL C++) and the runtime (host C++) share: plain C layouts, no functions.
#pragma once

#define EMU_BUFFERS 31    // Metal's limit on buffer arguments
#define EMU_SIMD_WIDTH 32
#define EMU_SLOT 64       // bytes one lane can hand over in one SIMD-group operation
#define EMU_MEMORY_BARRIER 0x100

// The built-in inputs of one simulated thread, and the addresses bound to the buffer slots.
struct emu_thread {
  unsigned position_in_grid[3];
  unsigned position_in_threadgroup[3];
  unsigned threadgroup_position[3];
  unsigned threads_per_grid[3];
  unsigned threads_per_threadgroup[3];           // smaller at the edge of the grid
  unsigned dispatch_threads_per_threadgroup[3];  // as launched
  unsigned threadgroups_per_grid[3];
  unsigned index_in_threadgroup, lane, simdgroup, simdgroups, dispatch_simdgroups, simd_width;
  unsigned quad_lane, quadgroup;
  unsigned long buffer[EMU_BUFFERS];
};

// Where the lanes of a SIMD-group hand over their operands; valid until the lane's next operation.
struct emu_block {
  unsigned active;  // one bit a lane that took part
  unsigned done;    // a lane has left a result for all in `result`
  __attribute__((aligned(64))) char result[512];
  __attribute__((aligned(64))) char slot[EMU_SIMD_WIDTH][EMU_SLOT];
};

// The place in an 8x8 matrix of a lane's first element; the second is to the right of it.
#define EMU_ROW(lane) ((lane) / 4 % 8 / 4 * 4 + (lane) / 2 % 4)
#define EMU_COLUMN(lane) ((lane) / 8 % 2 * 4 + (lane) % 2 * 2)

// A buffer parameter of a kernel, read by the Python side (library.py, class Parameter).
struct emu_parameter {
  int index;      // buffer slot
  int reference;  // `T&`, else `T*`
  int in_constant;   // in the constant address space, else device
  int writable;
  int kind;       // 'f' float, 'h' half, 'b' bfloat, 'i' signed, 'u' unsigned, 'o' bool, 's' struct, 'v' void
  int lanes;      // components of a vector, else 1
  int size;       // bytes of T
};

// One exchange operation; the runtime compares them to find divergence, and counts them.
enum emu_operation {
  EMU_REDUCE = 1, EMU_SHUFFLE, EMU_SHUFFLE_XOR, EMU_SHUFFLE_UP, EMU_SHUFFLE_DOWN, EMU_BROADCAST, EMU_FIRST,
  EMU_PREFIX, EMU_BALLOT, EMU_QUAD, EMU_MATRIX_LOAD, EMU_MATRIX_STORE, EMU_MATRIX_MULTIPLY
};
