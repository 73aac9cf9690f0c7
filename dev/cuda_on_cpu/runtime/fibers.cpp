// Stacks for CUDA threads and switching between them: only callee-saved registers change hands.
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/mman.h>
#include <vector>

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ADDRESS_SANITIZER 1
#else
#define WITH_ADDRESS_SANITIZER 0
#endif
#ifdef CUDA_ON_CPU_VALGRIND
#include <valgrind/valgrind.h>
#endif

extern "C" void cuda_on_cpu_switch_stack(void **save_stack_pointer, void *new_stack_pointer);
asm(R"(
.text
.globl cuda_on_cpu_switch_stack
.type cuda_on_cpu_switch_stack, @function
cuda_on_cpu_switch_stack:
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
.size cuda_on_cpu_switch_stack, . - cuda_on_cpu_switch_stack
)");

namespace cuda_on_cpu {

static constexpr size_t page = 4096;
static constexpr size_t stack_bytes = WITH_ADDRESS_SANITIZER ? 512 << 10 : 128 << 10;
static constexpr size_t slot_bytes = stack_bytes + page; // a guard page below each stack
static constexpr size_t slots = max_threads + 8;

Fiber host_fiber, *current_fiber = &host_fiber;
static char *stacks;
static std::vector<Fiber *> &idle = *new std::vector<Fiber *>; // never destroyed: work may still run at exit

static Fiber *new_fiber() {
    static size_t used = 0;
    if (!stacks) {
        void *memory = mmap(nullptr, slots * slot_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) fault("runtime", nowhere, "no address space for %zu stacks", slots);
        stacks = (char *)memory;
    }
    if (used == slots) fault("runtime", nowhere, "more than %zu fibers at once", slots);
    char *guard = stacks + used++ * slot_bytes;
    mprotect(guard, page, PROT_NONE);
    Fiber *fiber = new Fiber();
    fiber->stack = guard + page;
    fiber->stack_bytes = stack_bytes;
#ifdef CUDA_ON_CPU_VALGRIND
    VALGRIND_STACK_REGISTER(fiber->stack, fiber->stack + stack_bytes);
#endif
    return fiber;
}

bool is_fiber_stack_guard(const void *address) {
    const char *byte = (const char *)address;
    return stacks && byte >= stacks && byte < stacks + slots * slot_bytes &&
           (size_t)(byte - stacks) % slot_bytes < page;
}

Fiber *fiber_take(void (*entry)()) {
    Fiber *fiber;
    if (idle.empty()) {
        fiber = new_fiber();
    } else {
        fiber = idle.back();
        idle.pop_back();
    }
    // Stacks a multiple of the page apart would fall on the same cache lines; each begins a little lower.
    size_t slot = (size_t)(fiber->stack - stacks) / slot_bytes;
    void **top = (void **)(fiber->stack + stack_bytes - 64 - slot * 320 % 16384);
#if WITH_ADDRESS_SANITIZER // what the previous thread's last frames, never returned from, left marked
    ASAN_UNPOISON_MEMORY_REGION((char *)top - 4096, (size_t)(fiber->stack + stack_bytes - (char *)top) + 4096);
#endif
    *--top = nullptr; // no caller to return to; keeps the stack aligned as at a call
    *--top = (void *)entry;
    for (int registers = 0; registers < 6; registers++) *--top = nullptr;
    fiber->stack_pointer = top;
    fiber->sanitizer_state = nullptr;
    return fiber;
}

void fiber_give_back(Fiber *fiber) {
    idle.push_back(fiber);
}

#if WITH_ADDRESS_SANITIZER
static void find_host_stack() {
    if (host_fiber.stack) return;
    pthread_attr_t attributes;
    void *lowest;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &lowest, &host_fiber.stack_bytes);
    pthread_attr_destroy(&attributes);
    host_fiber.stack = (char *)lowest;
}
#endif

void fiber_switch(Fiber *to, bool current_is_done) {
    Fiber *from = current_fiber;
    current_fiber = to;
#if WITH_ADDRESS_SANITIZER
    find_host_stack();
    __sanitizer_start_switch_fiber(current_is_done ? nullptr : &from->sanitizer_state, to->stack, to->stack_bytes);
#endif
    cuda_on_cpu_switch_stack(&from->stack_pointer, to->stack_pointer);
#if WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(from->sanitizer_state, nullptr, nullptr);
#endif
    (void)current_is_done;
}

void fiber_started() {
#if WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

} // namespace cuda_on_cpu
