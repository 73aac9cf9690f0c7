#include "partition.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"

#include <string.h>

enum { LINE = 16 }; // floats in a cache line

Partition partition_make(size_t size, size_t bucket, int ranks) {
    size_t buckets = (size + bucket - 1) / bucket;
    return (Partition){.size = size, .bucket = bucket, .buckets = (int)buckets, .ranks = ranks};
}

Range partition_bucket(const Partition *partition, int bucket) {
    size_t end = partition->size - (size_t)bucket * partition->bucket;
    size_t count = min_size(partition->bucket, end);
    return (Range){end - count, count};
}

Range partition_shard(const Partition *partition, int bucket, int rank) {
    Range range = partition_bucket(partition, bucket);
    size_t ranks = (size_t)partition->ranks;
    size_t width = round_up((range.count + ranks - 1) / ranks, LINE);
    size_t begin = min_size(range.count, width * (size_t)rank), end = min_size(range.count, begin + width);
    return (Range){range.start + begin, end - begin};
}

int partition_ready(const Partition *partition, size_t from) {
    if (from == 0) return partition->buckets;
    return from >= partition->size ? 0 : (int)((partition->size - from) / partition->bucket);
}

// The pieces of tensors within one range of the block, in ascending order; counts them when `parts` is NULL.
static int list_range(Part *parts, Range range, const size_t *offsets, const size_t *counts, int tensors,
                      size_t *total) {
    int found = 0;
    for (int i = 0; i < tensors; i++) {
        size_t begin = offsets[i] > range.start ? offsets[i] : range.start;
        size_t end = min_size(offsets[i] + counts[i], range.start + range.count);
        if (begin >= end) continue;
        if (parts) parts[found] = (Part){i, begin - offsets[i], end - begin};
        *total += end - begin;
        found++;
    }
    return found;
}

Part *partition_parts(const Partition *partition, int rank, const size_t *offsets, const size_t *counts, int tensors,
                      int *part_count, size_t *total) {
    int found = 0;
    *total = 0;
    for (int b = 0; b < partition->buckets; b++)
        found += list_range(NULL, partition_shard(partition, b, rank), offsets, counts, tensors, total);
    Part *parts = memory_allocate((size_t)found, sizeof *parts, "the list of shards");
    *part_count = 0;
    *total = 0;
    for (int b = 0; b < partition->buckets; b++)
        *part_count +=
            list_range(parts + *part_count, partition_shard(partition, b, rank), offsets, counts, tensors, total);
    return parts;
}

Rows partition_rows(int64_t rows, int rank, int ranks) {
    int64_t first = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    return (Rows){first, end - first};
}
