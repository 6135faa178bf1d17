// Each runs one case through the library, compares with plain loops, and ends the program where they differ.
#pragma once

#include "cases.h"

void check_linear(const Case& c, Buffers& buffers);
void check_decode(const Case& c, Buffers& buffers);
void check_codes(const Case& c, Buffers& buffers);  // lowbit_unpack and lowbit_pack
