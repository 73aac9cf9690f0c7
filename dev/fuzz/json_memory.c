#define _GNU_SOURCE
#include "json_memory.h"
#include "fuzz.h"

#include <jansson.h>

#if defined(__has_include)
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum { GAP = 16, AGAIN_BYTES = 256 << 10 }; // before each block, with its size; and when all are free, the start again

static _Alignas(GAP) char memory[4 << 20];
static size_t used, blocks;

static size_t padded(size_t size) {
    return (size + GAP - 1) / GAP * GAP;
}

static int is_ours(const char *block) {
    return block >= memory && block < memory + sizeof memory;
}

// What does not fit comes from malloc.
__attribute__((no_sanitize("address"))) static void *take(size_t size) {
    if (size > sizeof memory / 2 || used + padded(size) + 2 * GAP > sizeof memory) return malloc(size);
    char *block = memory + used + GAP;
    *(size_t *)(void *)(block - GAP) = size;
    used += GAP + padded(size);
    blocks++;
    ASAN_UNPOISON_MEMORY_REGION(block, size);
    return block;
}

__attribute__((no_sanitize("address"))) static void give_back(void *pointer) {
    char *block = pointer;
    if (!block || !is_ours(block)) {
        free(block);
        return;
    }
    size_t *size = (size_t *)(void *)(block - GAP);
    EXPECT(*size != SIZE_MAX); // given back twice
    ASAN_POISON_MEMORY_REGION(block, padded(*size));
    *size = SIZE_MAX;
    if (--blocks == 0 && used > AGAIN_BYTES) used = 0;
}

// Called by libFuzzer and by replay.c, after core/base/json.c has chosen its memory.
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    ASAN_POISON_MEMORY_REGION(memory, sizeof memory);
    json_set_alloc_funcs(take, give_back);
    return 0;
}

void json_memory_check(void) {
    EXPECT(blocks == 0);
}

// In the place of jansson's: who asks for text gives it back to free().
char *json_dumps(const json_t *json, size_t flags) {
    size_t size = json_dumpb(json, NULL, 0, flags);
    char *text = size ? malloc(size + 1) : NULL;
    if (!text) return NULL;
    json_dumpb(json, text, size, flags);
    text[size] = 0;
    return text;
}
