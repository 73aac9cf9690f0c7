// Memory: allocation that cannot fail silently, size arithmetic that cannot wrap.
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

// `count * size` bytes, uninitialised, aligned to 64 bytes. Ends the program with a message naming `what` when there
// is no memory: every caller would do just that. Free with free().
void *memory_allocate(size_t count, size_t size, const char *what);
// The same, zeroed.
void *memory_allocate_zeroed(size_t count, size_t size, const char *what);
// realloc with the same promise (alignment 16). The growth policy is the caller's.
void *memory_resize(void *block, size_t count, size_t size, const char *what);
// Gives the pages inside a block back to the system: its contents are lost, the block itself is still to be freed.
void memory_discard(void *block, size_t bytes);
// Makes a large block's bytes zero at no cost now: its whole pages go back to the system, which has a zeroed one for
// the thread that first touches it.
void memory_clear(void *block, size_t bytes);
char *memory_copy_string(const char *text);

// Checked arithmetic for sizes that come from files: 0, or -1 on overflow with *result untouched.
int size_multiply(uint64_t a, uint64_t b, uint64_t *result);
int size_add(uint64_t a, uint64_t b, uint64_t *result);

// The most memory that this process may use: the machine's, or less where a container or `ulimit -v` allows less.
uint64_t memory_machine_bytes(void);

// The process's peak resident set so far, in bytes.
size_t memory_peak_bytes(void);

#endif
