#include "fiber.h"

#include <cstdint>
#include <cstring>

#if EMU_OWN_SWITCH

extern "C" void emu_switch(void** save, void* load);

#if defined(__x86_64__)
// Saves what the System V ABI asks a callee to keep; the floating-point modes never change here.
static const int SAVED = 6, RETURN_SLOT = 6, PADDING = 1;
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
#else
// x19..x30 and the low halves of v8..v15, as AAPCS64 asks; x30 (slot 11) is where `ret` goes.
static const int SAVED = 19, RETURN_SLOT = 11, PADDING = 0;
asm(R"(
.text
.globl emu_switch
.type emu_switch,%function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch,.-emu_switch
)");
#endif

void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
  auto top = reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t(63);
  // The padding leaves the stack as a call would: 8 bytes off a multiple of 16 on x86-64.
  void** frame = reinterpret_cast<void**>(top) - PADDING - (SAVED + 1);
  memset(frame, 0, sizeof(void*) * (SAVED + 1));
  frame[RETURN_SLOT] = reinterpret_cast<void*>(entry);
  context.stack_pointer = frame;
}

void switch_to(Context& from, Context& to) { emu_switch(&from.stack_pointer, to.stack_pointer); }

#else

void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack;
  context.saved.uc_stack.ss_size = size;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}

void switch_to(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }

#endif
