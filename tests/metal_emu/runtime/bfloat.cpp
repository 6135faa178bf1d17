// float -> bfloat, round to nearest even, for machines without the instruction: clang calls __truncsfbf2, and takes the result from
// the low 16 bits of the register in which a float would be returned.
#include <cstdint>
#include <cstring>

extern "C" float emu_round_to_bfloat(float value) __asm__("__truncsfbf2");

extern "C" float emu_round_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits = nan ? (bits >> 16) | 64 : (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  memcpy(&value, &bits, 4);
  return value;
}
