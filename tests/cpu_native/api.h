// The functions of csrc/api.cpp, as ctypes declares them in library.py.
#pragma once

#include <cstdint>

extern "C" {
const char* lowbit_set(int i, int* usable_here);
int lowbit_choose(int i);
const char* lowbit_chosen();
void lowbit_linear(const void* x, int x_kind, int64_t count, const uint8_t* packed, const void* scales, const void* zeros, int64_t rows, int64_t length,
                   int64_t group_size, int bits, int kind, const void* bias, int bias_kind, void* y, int threads);
void lowbit_decode(const int64_t* indices, int64_t count, const uint8_t* packed, const void* scales, const void* zeros, int64_t rows, int64_t length,
                   int64_t group_size, int bits, int kind, void* out, int out_kind, int threads);
void lowbit_unpack(const uint8_t* packed, int64_t rows, int64_t length, int bits, uint8_t* codes, int threads);
void lowbit_pack(const uint8_t* codes, int64_t rows, int64_t length, int bits, uint8_t* packed, int threads);
}
