// An arena: many tensors in one block. Requests are collected first, so that the memory plan is known (and printed)
// before anything is allocated. Under the address sanitizer the gaps between tensors are poisoned, so that a read past
// the end of a tensor is noticed even though the block goes on.
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include "core/base/real.h"

#include <stddef.h>

typedef struct {
    const char *what; // for the memory plan and for messages
    real *block;
    size_t total;     // numbers planned so far, gaps included
    struct ArenaRequest *requests;
    int count, capacity;
} Arena;

// Plans `count` numbers; *slot points to them after arena_allocate.
void arena_plan(Arena *arena, real **slot, size_t count);
void arena_allocate(Arena *arena);
void arena_clear(const Arena *arena); // all zeros; costs nothing until they are used
// Gaps between tensors may be read and written from now on, as when the block goes to another process in one piece.
void arena_close_gaps(const Arena *arena);
void arena_free(Arena *arena);
size_t arena_bytes(const Arena *arena);

#endif
