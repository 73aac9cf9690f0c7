// Where the compiler's instrumentation arrives. Kernels are compiled with -fsanitize=thread, which puts a call before
// every memory access, but the sanitizer's library is not linked: these functions stand in for it. The few that are for
// alignment stand in for the undefined-behaviour sanitizer.
#include "checker.h"

using namespace cuda_on_cpu;

#define CALLER __builtin_return_address(0)

#define ACCESSES(size)                                                                                                 \
    void __tsan_read##size(void *address) {                                                                            \
        check_alignment(address, size, AccessKind::read, CALLER);                                                      \
        check_access(address, size, AccessKind::read, CALLER);                                                         \
    }                                                                                                                  \
    void __tsan_write##size(void *address) {                                                                           \
        check_alignment(address, size, AccessKind::write, CALLER);                                                     \
        check_access(address, size, AccessKind::write, CALLER);                                                        \
    }                                                                                                                  \
    void __tsan_unaligned_read##size(void *address) {                                                                  \
        check_range(address, size, AccessKind::read, CALLER);                                                          \
    }                                                                                                                  \
    void __tsan_unaligned_write##size(void *address) {                                                                 \
        check_range(address, size, AccessKind::write, CALLER);                                                         \
    }                                                                                                                  \
    void __tsan_volatile_read##size(void *address) {                                                                   \
        check_access(address, size, AccessKind::read, CALLER);                                                         \
    }                                                                                                                  \
    void __tsan_volatile_write##size(void *address) {                                                                  \
        check_access(address, size, AccessKind::write, CALLER);                                                        \
    }

extern "C" {

void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__real_memmove(void *to, const void *from, size_t bytes);
void *__real_memset(void *to, int value, size_t bytes);

#pragma GCC diagnostic ignored "-Wmissing-declarations"
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *address, unsigned long bytes) {
    check_range(address, bytes, AccessKind::read, CALLER);
}
void __tsan_write_range(void *address, unsigned long bytes) {
    check_range(address, bytes, AccessKind::write, CALLER);
}

// ---- the C library's copies, redirected here by the linker (and by clang under the sanitizer's names)
static void copied(void *to, const void *from, size_t bytes, const void *place) {
    check_range(from, bytes, AccessKind::read, place);
    check_range(to, bytes, AccessKind::write, place);
}
void *__wrap_memcpy(void *to, const void *from, size_t bytes) {
    copied(to, from, bytes, CALLER);
    return __real_memcpy(to, from, bytes);
}
void *__wrap_memmove(void *to, const void *from, size_t bytes) {
    copied(to, from, bytes, CALLER);
    return __real_memmove(to, from, bytes);
}
void *__wrap_memset(void *to, int value, size_t bytes) {
    check_range(to, bytes, AccessKind::write, CALLER);
    return __real_memset(to, value, bytes);
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    copied(to, from, bytes, CALLER);
    return __real_memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    copied(to, from, bytes, CALLER);
    return __real_memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    check_range(to, bytes, AccessKind::write, CALLER);
    return __real_memset(to, value, bytes);
}

// ---- C++ atomics in host code (guards of static variables, reference counts): one thread, so plain operations do
#define ATOMICS(bits, Integer)                                                                                         \
    Integer __tsan_atomic##bits##_load(const volatile Integer *address, int) {                                         \
        return *address;                                                                                               \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile Integer *address, Integer value, int) {                                  \
        *address = value;                                                                                              \
    }                                                                                                                  \
    Integer __tsan_atomic##bits##_exchange(volatile Integer *address, Integer value, int) {                            \
        Integer old = *address;                                                                                        \
        *address = value;                                                                                              \
        return old;                                                                                                    \
    }                                                                                                                  \
    Integer __tsan_atomic##bits##_fetch_add(volatile Integer *address, Integer value, int) {                           \
        Integer old = *address;                                                                                        \
        *address = (Integer)(old + value);                                                                             \
        return old;                                                                                                    \
    }                                                                                                                  \
    Integer __tsan_atomic##bits##_fetch_sub(volatile Integer *address, Integer value, int) {                           \
        Integer old = *address;                                                                                        \
        *address = (Integer)(old - value);                                                                             \
        return old;                                                                                                    \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile Integer *address, Integer *expected, Integer value,     \
                                                      int, int) {                                                      \
        if (*address == *expected) {                                                                                   \
            *address = value;                                                                                          \
            return 1;                                                                                                  \
        }                                                                                                              \
        *expected = *address;                                                                                          \
        return 0;                                                                                                      \
    }                                                                                                                  \
    Integer __tsan_atomic##bits##_compare_exchange_val(volatile Integer *address, Integer expected, Integer value,     \
                                                       int, int) {                                                     \
        Integer old = *address;                                                                                        \
        if (old == expected) *address = value;                                                                         \
        return old;                                                                                                    \
    }
ATOMICS(8, char)
ATOMICS(32, int)
ATOMICS(64, long)
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

// ---- -fsanitize=alignment: a vector load through a pointer that is not aligned for it faults on a GPU
struct TypeMismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
};
static void misaligned(const TypeMismatch *where, const void *address) {
    uintptr_t alignment = (uintptr_t)1 << where->log_alignment;
    if (in_kernel() && (uintptr_t)address % alignment)
        fault("misaligned access", {where->file, (int)where->line}, "address %p is not aligned to %zu bytes", address,
              (size_t)alignment);
}
void __ubsan_handle_type_mismatch_v1(TypeMismatch *where, void *address) {
    misaligned(where, address);
}
void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch *where, void *address) {
    misaligned(where, address);
}

} // extern "C"
