// Code for one instruction set within a file that is compiled for any: LOWBIT_TARGET("avx2,fma") ... LOWBIT_TARGET_END
#pragma once

#define LOWBIT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define LOWBIT_TARGET(features) LOWBIT_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define LOWBIT_TARGET_END LOWBIT_PRAGMA(clang attribute pop)
#else
#define LOWBIT_TARGET(features) LOWBIT_PRAGMA(GCC push_options) LOWBIT_PRAGMA(GCC target(features))
#define LOWBIT_TARGET_END LOWBIT_PRAGMA(GCC pop_options)
#endif

#define LOWBIT_INLINE inline __attribute__((always_inline))
