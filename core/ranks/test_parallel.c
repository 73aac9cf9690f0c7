// Messages between ranks. Alone it tests that one rank needs nobody; scripts/test_parallel.sh runs it under mpirun.
#include "parallel.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <stdlib.h>

static int rank, ranks;

static void small_messages(void) {
    double sums[3] = {rank, 1, 0.1 * rank}, expected = 0;
    parallel_sum(sums, 3);
    for (int r = 0; r < ranks; r++) expected += 0.1 * r;
    CHECK(sums[0] == ranks * (ranks - 1) / 2 && sums[1] == ranks && sums[2] == expected);
    int64_t number = rank == 0 ? 42 : -1;
    parallel_broadcast(&number, sizeof number);
    CHECK(number == 42);
}

// The lowest rank that failed is named; when all failed alike, none.
static void verdicts(void) {
    Error error;
    CHECK(parallel_agree(0, &error) == 0);
    int fails = rank == ranks - 1;
    if (fails) error_set(&error, "a bad shard");
    CHECK(parallel_agree(fails ? -1 : 0, &error) == -1);
    char expected[64] = "a bad shard";
    if (ranks > 1) snprintf(expected, sizeof expected, "rank %d: a bad shard", ranks - 1);
    CHECK(!strcmp(error.text, expected));
    error_set(&error, "everywhere");
    CHECK(parallel_agree(-1, &error) == -1);
    CHECK(!strcmp(error.text, "everywhere"));
}

static void comparisons(void) {
    Error error = {""};
    json_t *same = json_pack("{s:f, s:s, s:b}", "lr", 0.1, "out", "runs/x", "quiet", 1);
    CHECK(parallel_compare(same, "option --", &error) == 0);
    json_object_set_new(same, "out", json_string(rank == ranks - 1 && ranks > 1 ? "runs/y" : "runs/x"));
    int status = parallel_compare(same, "option --", &error);
    CHECK(status == (ranks > 1 ? -1 : 0));
    if (ranks > 1) CHECK_CONTAINS(error.text, "option --out differs between ranks: rank 0 has \"runs/x\"");
    json_decref(same);
}

static real gradient_of(int r, size_t i) {
    return (real)random_normal(7 + (uint64_t)r, i);
}

// The sum over ranks, in their order.
static real summed(size_t i) {
    real sum = gradient_of(0, i);
    for (int r = 1; r < ranks; r++) sum += gradient_of(r, i);
    return sum;
}

// Gradients become final piece by piece, from the end; then each rank "updates" its shards and all get them. Twice, as
// in two steps. More buckets than fit into flight at once, none of a round size.
static void check_exchange(size_t size, size_t bucket, int whole) {
    Partition partition = partition_make(size, bucket, ranks);
    real *values = calloc(size, sizeof *values), *gradients = calloc(size, sizeof *gradients);
    Exchange *exchange = exchange_create(&partition, values, gradients, whole);
    for (int step = 0; step < 2; step++) {
        for (size_t end = size; end > 0;) {
            size_t from = end > size / 7 + 1 ? end - size / 7 - 1 : 0;
            for (size_t i = from; i < end; i++) gradients[i] = gradient_of(rank, i);
            exchange_ready(exchange, from);
            end = from;
        }
        exchange_finish(exchange);
        for (int b = 0; b < partition.buckets; b++) {
            Range own = partition_shard(&partition, b, rank);
            for (size_t i = own.start; i < own.start + own.count; i++) {
                CHECK(gradients[i] == summed(i));
                values[i] = (real)(step + 1) * gradients[i];
            }
        }
        for (size_t i = 0; whole && i < size; i++) CHECK(gradients[i] == summed(i));
        exchange_values(exchange);
        for (size_t i = 0; i < size; i++) CHECK(values[i] == (real)(step + 1) * summed(i));
    }
    exchange_free(exchange);
    free(values), free(gradients);
}

static void exchanges(void) {
    if (ranks == 1) SKIP("one rank exchanges nothing; scripts/test_parallel.sh starts several");
    if (!exchange_exists()) SKIP("gradients travel by MPI alone");
    const size_t sizes[][2] = {{1003, 64}, {5, 64}, {64, 64}, {5000, 100}, {200000, 1 << 14}, {3, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int whole = 0; whole < 2; whole++) check_exchange(sizes[i][0], sizes[i][1], whole);
}

static void collection(void) {
    if (ranks == 1) SKIP("one rank collects nothing; scripts/test_parallel.sh starts several");
    real numbers[1000];
    for (int from = 1; from < ranks; from++) {
        if (rank != 0 && rank != from) continue;
        for (size_t i = 0; i < 1000; i++) numbers[i] = rank == from ? gradient_of(from, i) : 0;
        parallel_collect(numbers, 1000, from);
        for (size_t i = 0; i < 1000; i++) CHECK(numbers[i] == gradient_of(from, i));
    }
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    parallel_start(argc, argv);
    rank = parallel_rank(), ranks = parallel_ranks();
    RUN(small_messages);
    RUN(verdicts);
    RUN(comparisons);
    RUN(exchanges);
    RUN(collection);
    double failures = test_failed;
    parallel_sum(&failures, 1); // the other ranks are silent
    test_failed = (int)failures;
    int result = test_summary();
    parallel_end();
    return result;
}
