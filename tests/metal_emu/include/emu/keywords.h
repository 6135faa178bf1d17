// Metal's address spaces, last: the headers before this one use OpenCL's own names for them.
#pragma once
#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant
