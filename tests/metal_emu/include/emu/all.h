// The part of the Metal Shading Language that kernels of number crunching use, on clang's "C++ for OpenCL 2021".
// Where Metal's rules are unclear or its compilers differ, the stricter reading is taken.
#pragma once
#include "../../runtime/abi.h"
#include "language.h"
#include "traits.h"
#include "swizzles.h"
#include "vector.h"
#include "operators.h"
#include "math.h"
#include "integer.h"
#include "simd.h"
#include "simdgroup_matrix.h"
#include "atomic.h"
#include "glue.h"
#include "keywords.h"
