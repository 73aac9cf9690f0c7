#include "merge_queue.h"
#include "core/base/memory.h"

#include <stdlib.h>

#define NO_ENTRY UINT32_MAX

// The lists are looked at only after they were written: clearing them would cost a short text more than encoding it.
MergeQueue *merge_queue_create(size_t ranks) {
    MergeQueue *queue = memory_allocate_zeroed(1, sizeof(MergeQueue), "the merge queue");
    queue->lists = memory_allocate(ranks, sizeof *queue->lists, "the merge queue");
    queue->free_entry = NO_ENTRY;
    return queue;
}

void merge_queue_free(MergeQueue *queue) {
    if (!queue) return;
    free(queue->lists);
    free(queue->entries);
    free(queue->heap);
    free(queue);
}

// ---- the heap of those that came out of order

static void heap_push(MergeQueue *queue, uint64_t key) {
    if (queue->heap_count == queue->heap_capacity) {
        queue->heap_capacity = queue->heap_capacity ? 2 * queue->heap_capacity : 256;
        queue->heap = memory_resize(queue->heap, queue->heap_capacity, sizeof *queue->heap, "the merge queue");
    }
    size_t at = queue->heap_count++;
    for (size_t parent; at > 0 && queue->heap[parent = (at - 1) / 2] > key; at = parent)
        queue->heap[at] = queue->heap[parent];
    queue->heap[at] = key;
}

static void heap_drop_first(MergeQueue *queue) {
    uint64_t key = queue->heap[--queue->heap_count];
    size_t at = 0, count = queue->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && queue->heap[child + 1] < queue->heap[child]) child++;
        if (queue->heap[child] >= key) break;
        queue->heap[at] = queue->heap[child];
    }
    queue->heap[at] = key;
}

// ---- the lists, one for each rank

static uint32_t take_entry(MergeQueue *queue) {
    uint32_t entry = queue->free_entry;
    if (entry != NO_ENTRY) {
        queue->free_entry = queue->entries[entry].next;
        return entry;
    }
    if (queue->used == queue->capacity) {
        queue->capacity = queue->capacity ? 2 * queue->capacity : 1024;
        queue->entries = memory_resize(queue->entries, queue->capacity, sizeof *queue->entries, "the merge queue");
    }
    return queue->used++;
}

void merge_queue_push(MergeQueue *queue, uint32_t rank, uint32_t position) {
    uint64_t bit = 1ull << rank % 64;
    int occupied = (queue->occupied[rank / 64] & bit) != 0;
    if (occupied && queue->entries[queue->lists[rank].last].position > position) {
        heap_push(queue, (uint64_t)rank << 32 | position);
        return;
    }
    uint32_t entry = take_entry(queue);
    queue->entries[entry].position = position;
    queue->entries[entry].next = NO_ENTRY;
    if (occupied)
        queue->entries[queue->lists[rank].last].next = entry;
    else
        queue->lists[rank].first = entry;
    queue->lists[rank].last = entry;
    queue->occupied[rank / 64] |= bit;
    queue->summary[rank / 64 / 64] |= 1ull << rank / 64 % 64;
}

static uint32_t lowest_rank(const MergeQueue *queue) {
    for (uint32_t i = 0; i < sizeof queue->summary / sizeof *queue->summary; i++) {
        if (!queue->summary[i]) continue;
        uint32_t word = i * 64 + (uint32_t)__builtin_ctzll(queue->summary[i]);
        return word * 64 + (uint32_t)__builtin_ctzll(queue->occupied[word]);
    }
    return MERGE_RANKS;
}

static void list_drop_first(MergeQueue *queue, uint32_t rank) {
    uint32_t entry = queue->lists[rank].first;
    queue->lists[rank].first = queue->entries[entry].next;
    queue->entries[entry].next = queue->free_entry;
    queue->free_entry = entry;
    if (queue->lists[rank].first != NO_ENTRY) return;
    queue->occupied[rank / 64] &= ~(1ull << rank % 64);
    if (!queue->occupied[rank / 64]) queue->summary[rank / 64 / 64] &= ~(1ull << rank / 64 % 64);
}

int merge_queue_pop(MergeQueue *queue, uint32_t *rank, uint32_t *position) {
    uint32_t list = lowest_rank(queue);
    uint64_t key = UINT64_MAX;
    if (list < MERGE_RANKS) key = (uint64_t)list << 32 | queue->entries[queue->lists[list].first].position;
    int from_heap = queue->heap_count > 0 && queue->heap[0] < key;
    if (from_heap) key = queue->heap[0];
    if (key == UINT64_MAX) return 0;
    if (from_heap)
        heap_drop_first(queue);
    else
        list_drop_first(queue, list);
    *rank = (uint32_t)(key >> 32);
    *position = (uint32_t)key;
    return 1;
}
