#define _GNU_SOURCE
#include "memory.h"
#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

__attribute__((noreturn)) static void out_of_memory(size_t count, size_t size, const char *what) {
    die("out of memory: %s needs %.1f MB; free some memory or make the model, batch or context smaller", what,
        (double)count * (double)size / 1e6);
}

void *memory_allocate(size_t count, size_t size, const char *what) {
    uint64_t bytes = 0;
    if (size_multiply(count, size, &bytes) || bytes > SIZE_MAX / 2) out_of_memory(count, size, what);
    // Big blocks start on a huge page, so that the kernel can back them with huge pages from the first byte.
    size_t alignment = bytes >= 4 * (uint64_t)HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    void *block = NULL;
    if (posix_memalign(&block, alignment, bytes ? bytes : 1) != 0) out_of_memory(count, size, what);
    if (alignment == HUGE_PAGE) madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

void *memory_allocate_zeroed(size_t count, size_t size, const char *what) {
    void *block = memory_allocate(count, size, what);
    memset(block, 0, count * size);
    return block;
}

void *memory_resize(void *block, size_t count, size_t size, const char *what) {
    uint64_t bytes = 0;
    if (size_multiply(count, size, &bytes) || bytes > SIZE_MAX / 2) out_of_memory(count, size, what);
    void *resized = realloc(block, bytes ? bytes : 1);
    if (!resized) out_of_memory(count, size, what);
    return resized;
}

// The bytes of whole pages inside a block, which begin at *first.
static size_t whole_pages(void *block, size_t bytes, char **first) {
    const uintptr_t page = 4096;
    uintptr_t start = ((uintptr_t)block + page - 1) / page * page, end = ((uintptr_t)block + bytes) / page * page;
    *first = (char *)start;
    return end > start ? end - start : 0;
}

void memory_discard(void *block, size_t bytes) {
    char *first;
    size_t whole = whole_pages(block, bytes, &first);
    if (whole) madvise(first, whole, MADV_DONTNEED);
}

void memory_clear(void *block, size_t bytes) {
    const size_t large = 1 << 20; // below that the system call costs more than writing
    char *first, *start = block;
    size_t whole = bytes < large ? 0 : whole_pages(block, bytes, &first);
    if (whole == 0 || madvise(first, whole, MADV_DONTNEED) != 0) { // small, locked in memory, or not ordinary pages
        memset(block, 0, bytes);
        return;
    }
    memset(start, 0, (size_t)(first - start));
    memset(first + whole, 0, (size_t)(start + bytes - (first + whole)));
}

char *memory_copy_string(const char *text) {
    size_t size = strlen(text) + 1;
    return memcpy(memory_resize(NULL, size, 1, "a string"), text, size);
}

int size_multiply(uint64_t a, uint64_t b, uint64_t *result) {
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return -1;
    *result = product;
    return 0;
}

int size_add(uint64_t a, uint64_t b, uint64_t *result) {
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return -1;
    *result = sum;
    return 0;
}

// A number in one of the files in which control groups state their limits; "max" and a missing file are no limit.
static uint64_t limit_in_file(const char *path) {
    unsigned long long limit = UINT64_MAX;
    FILE *file = fopen(path, "r");
    if (!file) return UINT64_MAX;
    if (fscanf(file, "%llu", &limit) != 1) limit = UINT64_MAX;
    fclose(file);
    return limit;
}

uint64_t memory_machine_bytes(void) {
    struct rlimit address_space;
    uint64_t limits[] = {(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
                         limit_in_file("/sys/fs/cgroup/memory.max"),
                         limit_in_file("/sys/fs/cgroup/memory/memory.limit_in_bytes"), UINT64_MAX};
    if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY)
        limits[3] = address_space.rlim_cur;
    uint64_t least = limits[0];
    for (int i = 1; i < 4; i++) least = limits[i] < least ? limits[i] : least;
    return least;
}

size_t memory_peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}
