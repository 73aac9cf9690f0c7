// Gradients over MPI. A bucket's way: every rank sends each other rank that one's shard (MPI_Ialltoallv), sums its own
// shard over all ranks, and, where every rank needs all gradients, the sums go round (MPI_Iallgatherv).
//
// Both parts of an all-reduce are written out here, rather than left to MPI_Iallreduce, for the sake of the sum in the
// middle: it is in the order of ranks, so that a run can be repeated to the bit, and ZeRO, which stops after it, gives
// the same bits as plain data parallelism. The bytes on the wire are those of a ring all-reduce.
#ifdef HAVE_MPI
#include "parallel_mpi.h"
#include "core/base/memory.h"
#include "core/base/profile.h"

#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 8 };      // buckets under way at once: each has a buffer
enum { FULL, SHORT, SIZES }; // of the buckets, and the first of the block, which may be smaller

typedef enum { SPREADING, GATHERING, DONE } Stage;

typedef struct { // what MPI wants to know of one bucket, per rank
    int *send_counts, *send_offsets, *receive_counts, *receive_offsets; // of the spreading
    int *gather_counts, *gather_offsets;
    Range own; // this rank's shard, from the bucket's start
} Layout;

typedef struct {
    Stage stage;
    MPI_Request request;
    real *received; // (ranks, own shard)
} Flight;

struct Exchange {
    Partition partition;
    real *values, *gradients;
    int rank, whole;
    Layout layouts[SIZES];
    Flight flights[IN_FLIGHT];  // bucket b is in flights[b % IN_FLIGHT]
    int launched, summed, done; // buckets: done <= summed <= launched
};

// ---- plan

static int *layout_list(int ranks) {
    return memory_allocate_zeroed((size_t)ranks, sizeof(int), "the layout of a bucket");
}

static Layout layout_make(const Partition *partition, int bucket, int rank) {
    int ranks = partition->ranks;
    Range range = partition_bucket(partition, bucket), own = partition_shard(partition, bucket, rank);
    Layout layout = {layout_list(ranks),
                     layout_list(ranks),
                     layout_list(ranks),
                     layout_list(ranks),
                     layout_list(ranks),
                     layout_list(ranks),
                     {own.start - range.start, own.count}};
    for (int r = 0; r < ranks; r++) {
        Range shard = partition_shard(partition, bucket, r);
        layout.gather_counts[r] = (int)shard.count;
        layout.gather_offsets[r] = layout.send_offsets[r] = (int)(shard.start - range.start);
        layout.receive_offsets[r] = r * (int)own.count;
        if (r == rank) continue; // what is here already
        layout.send_counts[r] = (int)shard.count;
        layout.receive_counts[r] = (int)own.count;
    }
    return layout;
}

static void layout_free(Layout *layout) {
    free(layout->send_counts), free(layout->send_offsets), free(layout->receive_counts);
    free(layout->receive_offsets), free(layout->gather_counts), free(layout->gather_offsets);
}

int exchange_exists(void) {
    return mpi_carries();
}

Exchange *exchange_create(const Partition *partition, real *values, real *gradients, int whole) {
    if (!exchange_exists()) {
        parallel_tell("on the CPU gradients travel by MPI: start with scripts/train_mpi.sh instead of --rendezvous");
        exit(1);
    }
    Exchange *exchange = memory_allocate_zeroed(1, sizeof *exchange, "the exchange");
    exchange->partition = *partition;
    exchange->values = values, exchange->gradients = gradients;
    exchange->rank = parallel_rank(), exchange->whole = whole;
    exchange->layouts[FULL] = layout_make(partition, 0, exchange->rank);
    exchange->layouts[SHORT] = layout_make(partition, partition->buckets - 1, exchange->rank);
    // The last rank's shard of a short bucket may be longer than that of a full one: shards are whole cache lines.
    size_t full = exchange->layouts[FULL].own.count, last = exchange->layouts[SHORT].own.count;
    size_t room = (size_t)partition->ranks * (full > last ? full : last);
    for (int i = 0; i < IN_FLIGHT && i < partition->buckets; i++)
        exchange->flights[i].received = memory_allocate(room, sizeof(real), "buffers between ranks");
    return exchange;
}

void exchange_free(Exchange *exchange) {
    if (!exchange) return;
    for (int i = 0; i < SIZES; i++) layout_free(&exchange->layouts[i]);
    for (int i = 0; i < IN_FLIGHT; i++) free(exchange->flights[i].received);
    free(exchange);
}

static const Layout *layout_of(const Exchange *exchange, int bucket) {
    return &exchange->layouts[bucket == exchange->partition.buckets - 1 ? SHORT : FULL];
}

// ---- a bucket's way

static void launch(Exchange *exchange, int bucket) {
    const Layout *layout = layout_of(exchange, bucket);
    Flight *flight = &exchange->flights[bucket % IN_FLIGHT];
    real *gradients = exchange->gradients + partition_bucket(&exchange->partition, bucket).start;
    flight->stage = SPREADING;
    MPI_Ialltoallv(gradients, layout->send_counts, layout->send_offsets, MPI_REAL_NUMBER, flight->received,
                   layout->receive_counts, layout->receive_offsets, MPI_REAL_NUMBER, mpi_comm_spreading,
                   &flight->request);
}

// own (count) += the other ranks' numbers, received (ranks,count), all in the order of ranks
static void sum_ranks(real *own, const real *received, size_t count, int rank, int ranks) {
    enum { BLOCK = 1024 };
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t n = count - first < BLOCK ? count - first : BLOCK;
        real sum[BLOCK] = {0};
        for (int r = 0; r < ranks; r++) {
            const real *term = r == rank ? own + first : received + (size_t)r * count + first;
            for (size_t i = 0; i < n; i++) sum[i] = r == 0 ? term[i] : sum[i] + term[i];
        }
        memcpy(own + first, sum, n * sizeof(real));
    }
}

static void finish_spreading(Exchange *exchange, int bucket) {
    const Layout *layout = layout_of(exchange, bucket);
    Flight *flight = &exchange->flights[bucket % IN_FLIGHT];
    real *gradients = exchange->gradients + partition_bucket(&exchange->partition, bucket).start;
    sum_ranks(gradients + layout->own.start, flight->received, layout->own.count, exchange->rank,
              exchange->partition.ranks);
    flight->stage = exchange->whole ? GATHERING : DONE;
    if (exchange->whole)
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, gradients, layout->gather_counts, layout->gather_offsets,
                        MPI_REAL_NUMBER, mpi_comm_gathering, &flight->request);
}

static int has_arrived(Flight *flight) {
    int arrived = 0;
    MPI_Test(&flight->request, &arrived, MPI_STATUS_IGNORE);
    return arrived;
}

// Moves every bucket on as far as it goes now; sums, and with them the gatherings, begin in the order of buckets.
// Returns whether anything moved.
static int move_on(Exchange *exchange) {
    int summed = exchange->summed, done = exchange->done;
    while (exchange->summed < exchange->launched && has_arrived(&exchange->flights[exchange->summed % IN_FLIGHT]))
        finish_spreading(exchange, exchange->summed++);
    while (exchange->done < exchange->summed) {
        Flight *flight = &exchange->flights[exchange->done % IN_FLIGHT];
        if (flight->stage == GATHERING && !has_arrived(flight)) break;
        exchange->done++;
    }
    return exchange->summed > summed || exchange->done > done;
}

static void wait_until_done(Exchange *exchange, int buckets) {
    for (int tries = 0; exchange->done < buckets; tries++)
        if (move_on(exchange))
            tries = 0;
        else
            mpi_pause(tries, "gradients");
    parallel_wait(0);
}

void exchange_ready(Exchange *exchange, size_t from) {
    profile_work(WORK_COMMUNICATION);
    int ready = partition_ready(&exchange->partition, from);
    for (; exchange->launched < ready; exchange->launched++) {
        wait_until_done(exchange, exchange->launched - IN_FLIGHT + 1);
        launch(exchange, exchange->launched);
    }
    move_on(exchange);
    profile_work(WORK_OTHER);
}

void exchange_finish(Exchange *exchange) {
    exchange_ready(exchange, 0);
    profile_work(WORK_COMMUNICATION);
    wait_until_done(exchange, exchange->partition.buckets);
    exchange->launched = exchange->summed = exchange->done = 0;
    profile_work(WORK_OTHER);
}

// block (partition->size): every rank gets all shards
static void gather(Exchange *exchange, real *block) {
    profile_work(WORK_COMMUNICATION);
    MPI_Request requests[IN_FLIGHT];
    int buckets = exchange->partition.buckets;
    for (int b = 0; b < buckets + IN_FLIGHT; b++) {
        if (b >= IN_FLIGHT && b - IN_FLIGHT < buckets) mpi_wait(&requests[b % IN_FLIGHT]);
        if (b >= buckets) continue;
        const Layout *layout = layout_of(exchange, b);
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL,
                        block + partition_bucket(&exchange->partition, b).start, layout->gather_counts,
                        layout->gather_offsets, MPI_REAL_NUMBER, mpi_comm_gathering, &requests[b % IN_FLIGHT]);
    }
    profile_work(WORK_OTHER);
}

void exchange_values(Exchange *exchange) {
    gather(exchange, exchange->values);
}

void exchange_gradients(Exchange *exchange) {
    gather(exchange, exchange->gradients);
}
#endif
