// The swizzles of vec<T, N> as members of its union: all pairs, all orders of three and four different components, and splats.
#pragma once
#define EMU_SWIZZLES_2(T) \
  emu_swizzle<T, 2, 0, 0> xx; emu_swizzle<T, 2, 0, 1> xy; emu_swizzle<T, 2, 1, 0> yx; emu_swizzle<T, 2, 1, 1> yy; \
  emu_swizzle<T, 2, 0, 0, 0> xxx; emu_swizzle<T, 2, 1, 1, 1> yyy; emu_swizzle<T, 2, 0, 0, 0, 0> xxxx; \
  emu_swizzle<T, 2, 1, 1, 1, 1> yyyy; emu_swizzle<T, 2, 0, 1> rg;
#define EMU_SWIZZLES_3(T) \
  emu_swizzle<T, 3, 0, 0> xx; emu_swizzle<T, 3, 0, 1> xy; emu_swizzle<T, 3, 0, 2> xz; emu_swizzle<T, 3, 1, 0> yx; \
  emu_swizzle<T, 3, 1, 1> yy; emu_swizzle<T, 3, 1, 2> yz; emu_swizzle<T, 3, 2, 0> zx; emu_swizzle<T, 3, 2, 1> zy; \
  emu_swizzle<T, 3, 2, 2> zz; emu_swizzle<T, 3, 0, 1, 2> xyz; emu_swizzle<T, 3, 0, 2, 1> xzy; emu_swizzle<T, 3, 1, 0, 2> yxz; \
  emu_swizzle<T, 3, 1, 2, 0> yzx; emu_swizzle<T, 3, 2, 0, 1> zxy; emu_swizzle<T, 3, 2, 1, 0> zyx; emu_swizzle<T, 3, 0, 0, 0> xxx; \
  emu_swizzle<T, 3, 1, 1, 1> yyy; emu_swizzle<T, 3, 2, 2, 2> zzz; emu_swizzle<T, 3, 0, 0, 0, 0> xxxx; \
  emu_swizzle<T, 3, 1, 1, 1, 1> yyyy; emu_swizzle<T, 3, 2, 2, 2, 2> zzzz; emu_swizzle<T, 3, 0, 1> rg; emu_swizzle<T, 3, 0, 1, 2> rgb;
#define EMU_SWIZZLES_4(T) \
  emu_swizzle<T, 4, 0, 0> xx; emu_swizzle<T, 4, 0, 1> xy; emu_swizzle<T, 4, 0, 2> xz; emu_swizzle<T, 4, 0, 3> xw; \
  emu_swizzle<T, 4, 1, 0> yx; emu_swizzle<T, 4, 1, 1> yy; emu_swizzle<T, 4, 1, 2> yz; emu_swizzle<T, 4, 1, 3> yw; \
  emu_swizzle<T, 4, 2, 0> zx; emu_swizzle<T, 4, 2, 1> zy; emu_swizzle<T, 4, 2, 2> zz; emu_swizzle<T, 4, 2, 3> zw; \
  emu_swizzle<T, 4, 3, 0> wx; emu_swizzle<T, 4, 3, 1> wy; emu_swizzle<T, 4, 3, 2> wz; emu_swizzle<T, 4, 3, 3> ww; \
  emu_swizzle<T, 4, 0, 1, 2> xyz; emu_swizzle<T, 4, 0, 1, 3> xyw; emu_swizzle<T, 4, 0, 2, 1> xzy; emu_swizzle<T, 4, 0, 2, 3> xzw; \
  emu_swizzle<T, 4, 0, 3, 1> xwy; emu_swizzle<T, 4, 0, 3, 2> xwz; emu_swizzle<T, 4, 1, 0, 2> yxz; emu_swizzle<T, 4, 1, 0, 3> yxw; \
  emu_swizzle<T, 4, 1, 2, 0> yzx; emu_swizzle<T, 4, 1, 2, 3> yzw; emu_swizzle<T, 4, 1, 3, 0> ywx; emu_swizzle<T, 4, 1, 3, 2> ywz; \
  emu_swizzle<T, 4, 2, 0, 1> zxy; emu_swizzle<T, 4, 2, 0, 3> zxw; emu_swizzle<T, 4, 2, 1, 0> zyx; emu_swizzle<T, 4, 2, 1, 3> zyw; \
  emu_swizzle<T, 4, 2, 3, 0> zwx; emu_swizzle<T, 4, 2, 3, 1> zwy; emu_swizzle<T, 4, 3, 0, 1> wxy; emu_swizzle<T, 4, 3, 0, 2> wxz; \
  emu_swizzle<T, 4, 3, 1, 0> wyx; emu_swizzle<T, 4, 3, 1, 2> wyz; emu_swizzle<T, 4, 3, 2, 0> wzx; emu_swizzle<T, 4, 3, 2, 1> wzy; \
  emu_swizzle<T, 4, 0, 0, 0> xxx; emu_swizzle<T, 4, 1, 1, 1> yyy; emu_swizzle<T, 4, 2, 2, 2> zzz; emu_swizzle<T, 4, 3, 3, 3> www; \
  emu_swizzle<T, 4, 0, 1, 2, 3> xyzw; emu_swizzle<T, 4, 0, 1, 3, 2> xywz; emu_swizzle<T, 4, 0, 2, 1, 3> xzyw; \
  emu_swizzle<T, 4, 0, 2, 3, 1> xzwy; emu_swizzle<T, 4, 0, 3, 1, 2> xwyz; emu_swizzle<T, 4, 0, 3, 2, 1> xwzy; \
  emu_swizzle<T, 4, 1, 0, 2, 3> yxzw; emu_swizzle<T, 4, 1, 0, 3, 2> yxwz; emu_swizzle<T, 4, 1, 2, 0, 3> yzxw; \
  emu_swizzle<T, 4, 1, 2, 3, 0> yzwx; emu_swizzle<T, 4, 1, 3, 0, 2> ywxz; emu_swizzle<T, 4, 1, 3, 2, 0> ywzx; \
  emu_swizzle<T, 4, 2, 0, 1, 3> zxyw; emu_swizzle<T, 4, 2, 0, 3, 1> zxwy; emu_swizzle<T, 4, 2, 1, 0, 3> zyxw; \
  emu_swizzle<T, 4, 2, 1, 3, 0> zywx; emu_swizzle<T, 4, 2, 3, 0, 1> zwxy; emu_swizzle<T, 4, 2, 3, 1, 0> zwyx; \
  emu_swizzle<T, 4, 3, 0, 1, 2> wxyz; emu_swizzle<T, 4, 3, 0, 2, 1> wxzy; emu_swizzle<T, 4, 3, 1, 0, 2> wyxz; \
  emu_swizzle<T, 4, 3, 1, 2, 0> wyzx; emu_swizzle<T, 4, 3, 2, 0, 1> wzxy; emu_swizzle<T, 4, 3, 2, 1, 0> wzyx; \
  emu_swizzle<T, 4, 0, 0, 0, 0> xxxx; emu_swizzle<T, 4, 1, 1, 1, 1> yyyy; emu_swizzle<T, 4, 2, 2, 2, 2> zzzz; \
  emu_swizzle<T, 4, 3, 3, 3, 3> wwww; emu_swizzle<T, 4, 0, 1> rg; emu_swizzle<T, 4, 0, 1, 2> rgb; emu_swizzle<T, 4, 0, 1, 2, 3> rgba;
