// What the thunks that glue.py writes use: built-in inputs as the type a kernel declares, and facts about a parameter's type.
#pragma once

template <class T> struct emu_input {
  static T get(const unsigned* p) { return (T)p[0]; }
};
template <class T> struct emu_input<metal::vec<T, 2>> {
  static metal::vec<T, 2> get(const unsigned* p) { return metal::vec<T, 2>((T)p[0], (T)p[1]); }
};
template <class T> struct emu_input<metal::vec<T, 3>> {
  static metal::vec<T, 3> get(const unsigned* p) { return metal::vec<T, 3>((T)p[0], (T)p[1], (T)p[2]); }
};

// The fields `kind`, `lanes` and `size` of an emu_parameter.
template <class T> struct emu_type {
  static constexpr __constant int kind = 's', lanes = 1, size = sizeof(T);
};
template <> struct emu_type<void> {
  static constexpr __constant int kind = 'v', lanes = 1, size = 1;
};
template <class T, int N> struct emu_type<metal::vec<T, N>> {
  static constexpr __constant int kind = emu_type<T>::kind, lanes = N, size = sizeof(metal::vec<T, N>);
};
template <class T> struct emu_type<metal::atomic<T>> : emu_type<T> {};
#define EMU_KIND(T, KIND)                                          \
  template <> struct emu_type<T> {                                 \
    static constexpr __constant int kind = KIND, lanes = 1, size = sizeof(T); \
  };
EMU_KIND(float, 'f')
EMU_KIND(half, 'h')
EMU_KIND(bfloat, 'b')
EMU_KIND(char, 'i')
EMU_KIND(signed char, 'i')
EMU_KIND(short, 'i')
EMU_KIND(int, 'i')
EMU_KIND(long, 'i')
EMU_KIND(uchar, 'u')
EMU_KIND(ushort, 'u')
EMU_KIND(uint, 'u')
EMU_KIND(ulong, 'u')
EMU_KIND(bool, 'o')
#undef EMU_KIND
