#include "partition.h"
#include "core/base/test.h"

#include <stdlib.h>

// Every number of the block belongs to exactly one bucket and one rank, whatever the sizes.
static void check_cover(size_t size, size_t bucket, int ranks) {
    Partition partition = partition_make(size, bucket, ranks);
    unsigned char *owners = calloc(size + 1, 1);
    size_t end = size;
    for (int b = 0; b < partition.buckets; b++) {
        Range range = partition_bucket(&partition, b);
        CHECK(range.count > 0 && range.start + range.count == end);
        end = range.start;
        for (int r = 0; r < ranks; r++) {
            Range shard = partition_shard(&partition, b, r);
            CHECK(shard.start >= range.start && shard.start + shard.count <= range.start + range.count);
            for (size_t i = shard.start; i < shard.start + shard.count; i++) owners[i]++;
        }
    }
    CHECK(end == 0);
    for (size_t i = 0; i < size; i++) CHECK(owners[i] == 1);
    free(owners);
}

static void every_number_has_one_owner(void) {
    const size_t sizes[] = {1, 5, 15, 16, 17, 100, 1000, 1023, 4096, 5003};
    const size_t buckets[] = {1, 7, 16, 64, 1000, 8192};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t b = 0; b < sizeof buckets / sizeof *buckets; b++)
            for (int ranks = 1; ranks <= 9; ranks++) check_cover(sizes[s], buckets[b], ranks);
}

// A bucket counts as ready only when its first number is at or after the last final one; all are ready at 0.
static void buckets_wait_for_their_gradients(void) {
    Partition partition = partition_make(1000, 64, 3);
    for (size_t from = 0; from <= 1000; from++) {
        int ready = partition_ready(&partition, from);
        CHECK(ready >= 0 && ready <= partition.buckets);
        if (ready > 0) CHECK(partition_bucket(&partition, ready - 1).start >= from);
        if (ready < partition.buckets) CHECK(partition_bucket(&partition, ready).start < from);
    }
    CHECK(partition_ready(&partition, 0) == partition.buckets);
    CHECK(partition_ready(&partition, 1000) == 0);
}

// Three tensors with gaps between them: all ranks' pieces together hold each number of each tensor once, no gap.
static void pieces_of_tensors(void) {
    const size_t offsets[] = {0, 48, 160}, counts[] = {33, 100, 7};
    for (int ranks = 1; ranks <= 7; ranks++) {
        Partition partition = partition_make(167, 50, ranks);
        int seen[3][100] = {{0}};
        for (int r = 0; r < ranks; r++) {
            int part_count;
            size_t total, sum = 0;
            Part *parts = partition_parts(&partition, r, offsets, counts, 3, &part_count, &total);
            for (int k = 0; k < part_count; k++) {
                CHECK(parts[k].count > 0 && parts[k].start + parts[k].count <= counts[parts[k].tensor]);
                for (size_t i = 0; i < parts[k].count; i++) seen[parts[k].tensor][parts[k].start + i]++;
                sum += parts[k].count;
            }
            CHECK(sum == total);
            free(parts);
        }
        for (int i = 0; i < 3; i++)
            for (size_t j = 0; j < counts[i]; j++) CHECK(seen[i][j] == 1);
    }
}

// Shares of rows follow each other, differ by one at most and hold all rows.
static void rows_are_shared_evenly(void) {
    for (int64_t rows = 0; rows <= 40; rows++) {
        for (int ranks = 1; ranks <= 12; ranks++) {
            int64_t next = 0;
            for (int r = 0; r < ranks; r++) {
                Rows share = partition_rows(rows, r, ranks);
                CHECK(share.first == next);
                CHECK(share.count == rows / ranks || share.count == rows / ranks + 1);
                next += share.count;
            }
            CHECK(next == rows);
        }
    }
    CHECK(partition_rows((int64_t)1 << 40, 1023, 1024).count == (int64_t)1 << 30);
}

int main(void) {
    RUN(every_number_has_one_owner);
    RUN(buckets_wait_for_their_gradients);
    RUN(pieces_of_tensors);
    RUN(rows_are_shared_evenly);
    return test_summary();
}
