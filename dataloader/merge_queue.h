// The merges that wait while a long piece is encoded: pairs (rank, position), the lowest rank first and the leftmost of
// equal ranks first. Merging from left to right asks for positions of one rank mostly in ascending order, so each rank
// has a list that such positions are appended to at no cost; the few that come out of order go to a heap. A run of ten
// million equal letters takes linear time, and nothing takes more than n log n.
#ifndef DATALOADER_MERGE_QUEUE_H
#define DATALOADER_MERGE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

enum { MERGE_RANKS = 65536 };

typedef struct {
    struct {
        uint32_t first, last;
    } * lists;                               // (ranks) of entries; valid where the rank's bit is set
    uint64_t occupied[MERGE_RANKS / 64];     // one bit for each rank: its list is not empty
    uint64_t summary[MERGE_RANKS / 64 / 64]; // one bit for each word of `occupied`
    struct {
        uint32_t position, next;
    } * entries;                         // (capacity)
    uint32_t used, capacity, free_entry; // entries handed out so far; the chain of those given back
    uint64_t *heap;                      // (heap_capacity), rank << 32 | position
    size_t heap_count, heap_capacity;
} MergeQueue;

MergeQueue *merge_queue_create(size_t ranks); // for ranks below this, at most MERGE_RANKS
void merge_queue_free(MergeQueue *queue);
void merge_queue_push(MergeQueue *queue, uint32_t rank, uint32_t position);
int merge_queue_pop(MergeQueue *queue, uint32_t *rank, uint32_t *position); // 0 when it is empty

#endif
