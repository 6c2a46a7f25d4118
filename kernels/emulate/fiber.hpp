// Fibers: one per CUDA thread. Switching costs some nanoseconds on x86-64 (callee-saved registers and the stack pointer);
// elsewhere, or with CKV_UCONTEXT, it goes through ucontext.
#pragma once
#include <sys/mman.h>
#if !defined(__x86_64__) || defined(CKV_UCONTEXT)
#define CKV_UCONTEXT 1
#include <ucontext.h>
#endif

namespace ckv_emulate {

constexpr u32 MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 128 << 10, GUARD_BYTES = 16 << 10;

#if !defined(CKV_UCONTEXT)
extern "C" __attribute__((visibility("hidden"))) void ckv_fiber_switch(void** from, void* to);
asm(R"(
    .text
    .p2align 4
    .type ckv_fiber_switch, @function
ckv_fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size ckv_fiber_switch, . - ckv_fiber_switch
)");

struct Context {
    void* stack_pointer = nullptr;
    // Prepares a first switch into entry, which must not return.
    void prepare(u8* top, void (*entry)()) {
        void** slots = (void**)top - 8;  // six registers, the entry, and a slot that aligns the stack as a call would
        for (int i = 0; i < 8; ++i) slots[i] = nullptr;
        slots[6] = (void*)entry;
        stack_pointer = slots;
    }
};
static inline void switch_context(Context& from, Context& to) { ckv_fiber_switch(&from.stack_pointer, to.stack_pointer); }
#else
struct Context {
    ucontext_t saved;
    void prepare(u8* top, void (*entry)()) {
        getcontext(&saved);
        saved.uc_stack.ss_sp = top - STACK_BYTES / 2;
        saved.uc_stack.ss_size = STACK_BYTES / 2;
        saved.uc_link = nullptr;
        makecontext(&saved, entry, 0);
    }
};
static inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
#endif

// Stacks that this launch runs on, MAX_THREADS of them, made as they are needed. The caller's, so that libraries share them: each is two mappings, of which a process
// has a limited number.
static u8** stacks = nullptr;

// The top of the stack of fiber `index`; guard pages lie between stacks. The tops are staggered, so that the hot lines of 1024
// stacks do not fall into the same sets of the cache.
static u8* stack_top(u32 index) {
    if (!stacks[index]) {
        const size_t bytes = STACK_BYTES + GUARD_BYTES;
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return nullptr;
        mprotect(p, GUARD_BYTES, PROT_NONE);
        stacks[index] = (u8*)p + bytes;
    }
    return stacks[index] - (index * 320u) % 8192u / 64u * 64u;
}

}  // namespace ckv_emulate
