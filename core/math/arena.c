#include "arena.h"
#include "core/base/memory.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define POISON_GAPS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISON_GAPS 1
#endif
#endif

#ifdef POISON_GAPS
#include <sanitizer/asan_interface.h>
#define POISON(pointer, bytes)   ASAN_POISON_MEMORY_REGION(pointer, bytes)
#define UNPOISON(pointer, bytes) ASAN_UNPOISON_MEMORY_REGION(pointer, bytes)
enum { GAP = 64 };
#else
#define POISON(pointer, bytes)   ((void)0)
#define UNPOISON(pointer, bytes) ((void)0)
enum { GAP = 0 };
#endif

enum { ALIGN = 64 / sizeof(real) }; // every tensor starts on a cache line

struct ArenaRequest {
    real **slot;
    size_t offset, count;
};

void arena_plan(Arena *arena, real **slot, size_t count) {
    if (arena->count == arena->capacity) {
        arena->capacity = arena->capacity ? 2 * arena->capacity : 64;
        arena->requests = memory_resize(arena->requests, (size_t)arena->capacity, sizeof *arena->requests, arena->what);
    }
    arena->requests[arena->count++] = (struct ArenaRequest){slot, arena->total, count};
    arena->total += (count + ALIGN - 1) / ALIGN * ALIGN + GAP;
}

static void poison_gaps(const Arena *arena) {
    POISON(arena->block, arena->total * sizeof(real));
    for (int i = 0; i < arena->count; i++)
        UNPOISON(arena->block + arena->requests[i].offset, arena->requests[i].count * sizeof(real));
}

void arena_allocate(Arena *arena) {
    arena->block = memory_allocate(arena->total, sizeof(real), arena->what);
    for (int i = 0; i < arena->count; i++) *arena->requests[i].slot = arena->block + arena->requests[i].offset;
    poison_gaps(arena);
}

void arena_clear(const Arena *arena) {
    UNPOISON(arena->block, arena->total * sizeof(real));
    memory_clear(arena->block, arena->total * sizeof(real));
    poison_gaps(arena);
}

void arena_close_gaps(const Arena *arena) {
    if (arena->block) UNPOISON(arena->block, arena->total * sizeof(real));
}

void arena_free(Arena *arena) {
    if (arena->block) UNPOISON(arena->block, arena->total * sizeof(real));
    free(arena->block);
    free(arena->requests);
    *arena = (Arena){.what = arena->what};
}

size_t arena_bytes(const Arena *arena) {
    return arena->total * sizeof(real);
}
