// How ranks share a model: arithmetic only.
//
// The weights of a model lie in one block of memory, and its gradients in another of the same layout. The block is cut
// from its end, where backward begins, into buckets that travel as soon as their gradients are final; each bucket is
// cut into one shard per rank, which that rank sums over all ranks and, with ZeRO, alone updates. No size has to be a
// multiple of anything: the block's first bucket may be smaller, and shards may be unequal or empty.
#ifndef CORE_PARTITION_H
#define CORE_PARTITION_H

#include <stddef.h>
#include <stdint.h>

enum { BUCKET_NUMBERS = 1 << 21 }; // 8 MB of float: long enough for the link's full speed, short enough to overlap

typedef struct {
    size_t size;   // numbers in the block, gaps between tensors included
    size_t bucket; // numbers in a bucket
    int buckets;
    int ranks;
} Partition;

typedef struct {
    size_t start, count; // in numbers of the block, or of what `Part` says
} Range;

typedef struct {         // a piece of one tensor that lies in one shard
    int tensor;          // index in the list of tensors
    size_t start, count; // within the tensor
} Part;

Partition partition_make(size_t size, size_t bucket, int ranks);
// Bucket 0 is the block's end.
Range partition_bucket(const Partition *partition, int bucket);
// Shards begin on cache lines, counted from the bucket's start.
Range partition_shard(const Partition *partition, int bucket, int rank);
// How many buckets, from number 0 on, lie wholly at or after `from`.
int partition_ready(const Partition *partition, size_t from);

// The pieces of tensors that a rank's shards hold, in the order of buckets; free() the list. Tensor i is the
// `counts[i]` numbers from `offsets[i]` on; offsets ascend. *total receives the numbers in all pieces.
Part *partition_parts(const Partition *partition, int rank, const size_t *offsets, const size_t *counts, int tensors,
                      int *part_count, size_t *total);

// Rank `rank`'s share of `rows` rows: consecutive ones, in the order of ranks; shares differ by one row at most.
typedef struct {
    int64_t first, count;
} Rows;
Rows partition_rows(int64_t rows, int rank, int ranks);

#endif
