// The product of two 8x8 matrices, in float32 and in one order, as a SIMD-group's lanes handed them over.
#include "abi.h"

// Every lane's operands are two elements of a, then two of b; the product goes to the block's result, row by row.
extern "C" void emu_multiply(emu_block* block) {
  float a[8][8], b[8][8];
  for (unsigned lane = 0; lane < EMU_SIMD_WIDTH; lane++) {
    const float* operands = reinterpret_cast<const float*>(block->slot[lane]);
    for (unsigned i = 0; i < 2; i++) {
      a[EMU_ROW(lane)][EMU_COLUMN(lane) + i] = operands[i];
      b[EMU_ROW(lane)][EMU_COLUMN(lane) + i] = operands[2 + i];
    }
  }
  float* product = reinterpret_cast<float*>(block->result);
  for (int i = 0; i < 8; i++) {
    float sums[8] = {};
    for (int k = 0; k < 8; k++)
      for (int j = 0; j < 8; j++) sums[j] += a[i][k] * b[k][j];
    for (int j = 0; j < 8; j++) product[i * 8 + j] = sums[j];
  }
}
