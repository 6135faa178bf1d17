// A context switch between fibers: own code on x86-64 and aarch64 (Linux), ucontext elsewhere.
#pragma once
#include <cstddef>

#if defined(EMU_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#define EMU_OWN_SWITCH 0
#include <ucontext.h>
#else
#define EMU_OWN_SWITCH 1
#endif

struct Context {
#if EMU_OWN_SWITCH
  void* stack_pointer;
#else
  ucontext_t saved;
#endif
};

// The next switch_to(context) starts `entry` on the stack; entry must never return.
void prepare(Context& context, char* stack, size_t size, void (*entry)());
// Saves the running fiber in `from` and resumes `to`.
void switch_to(Context& from, Context& to);
