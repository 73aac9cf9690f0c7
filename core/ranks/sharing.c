#include "sharing.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

// ---- parts

static Part *parts_of(const Sharing *sharing, int rank, int *part_count, size_t *total) {
    return partition_parts(&sharing->partition, rank, sharing->offsets, sharing->counts, sharing->count, part_count,
                           total);
}

static void list_own_parts(Sharing *sharing, Arena *moments) {
    size_t total, at = 0;
    Part *parts = parts_of(sharing, parallel_rank(), &sharing->own_count, &total);
    sharing->own = memory_allocate((size_t)sharing->own_count, sizeof *sharing->own, "the list of shards");
    if (sharing->zero) {
        arena_plan(moments, &sharing->m, total), arena_plan(moments, &sharing->v, total);
        arena_allocate(moments);
        arena_clear(moments);
    }
    for (int k = 0; k < sharing->own_count; at += parts[k].count, k++) {
        Parameter *own = &sharing->own[k];
        *own = sharing->parameters[parts[k].tensor];
        own->count = parts[k].count;
        own->value += parts[k].start, own->gradient += parts[k].start;
        own->m = sharing->zero ? sharing->m + at : own->m + parts[k].start;
        if (own->v || sharing->zero) own->v = sharing->zero ? sharing->v + at : own->v + parts[k].start;
    }
    free(parts);
}

// Gaps between tensors travel with them: they must hold numbers.
static void clear_gaps(const Sharing *sharing) {
    for (int i = 0; i + 1 < sharing->count; i++) {
        size_t end = sharing->offsets[i] + sharing->counts[i], gap = sharing->offsets[i + 1] - end;
        memset(sharing->parameters[0].value + end, 0, gap * sizeof(real));
        memset(sharing->parameters[0].gradient + end, 0, gap * sizeof(real));
    }
}

Sharing *sharing_create(Parameter *parameters, int count, int zero, Arena *moments) {
    Sharing *sharing = memory_allocate_zeroed(1, sizeof *sharing, "the sharing of the model");
    sharing->parameters = parameters, sharing->count = count, sharing->zero = zero;
    sharing->offsets = memory_allocate((size_t)count, sizeof *sharing->offsets, "the tensors' places");
    sharing->counts = memory_allocate((size_t)count, sizeof *sharing->counts, "the tensors' sizes");
    for (int i = 0; i < count; i++) {
        sharing->offsets[i] = (size_t)(parameters[i].gradient - parameters[0].gradient);
        sharing->counts[i] = parameters[i].count;
    }
    size_t size = sharing->offsets[count - 1] + sharing->counts[count - 1];
    sharing->partition = partition_make(size, BUCKET_NUMBERS, parallel_ranks());
    clear_gaps(sharing);
    list_own_parts(sharing, moments);
    sharing->exchange = exchange_create(&sharing->partition, parameters[0].value, parameters[0].gradient, !zero);
    return sharing;
}

void sharing_free(Sharing *sharing) {
    if (!sharing) return;
    exchange_free(sharing->exchange);
    free(sharing->offsets), free(sharing->counts), free(sharing->own), free(sharing);
}

void sharing_ready(Sharing *sharing, int first) {
    exchange_ready(sharing->exchange, sharing->offsets[first]);
}

// ---- moments, whole and in parts

// Copies between whole moments and a rank's parts of them, `m` and `v` (total).
static void copy_parts(const Sharing *sharing, int rank, real *m, real *v, int to_parts) {
    int part_count;
    size_t total, at = 0;
    Part *parts = parts_of(sharing, rank, &part_count, &total);
    for (int k = 0; k < part_count; at += parts[k].count, k++) {
        const Parameter *p = &sharing->parameters[parts[k].tensor];
        real *pairs[2][2] = {{p->m + parts[k].start, m + at}, {p->v + parts[k].start, v + at}};
        for (int moment = 0; moment < 2; moment++)
            memcpy(pairs[moment][to_parts], pairs[moment][!to_parts], parts[k].count * sizeof(real));
    }
    free(parts);
}

// Rank 0: the parts of one other rank, one moment after the other.
static void receive_parts(const Sharing *sharing, int rank) {
    int part_count;
    size_t total;
    free(parts_of(sharing, rank, &part_count, &total));
    real *both = memory_allocate(2 * total, sizeof *both, "another rank's moments");
    parallel_collect(both, total, rank);
    parallel_collect(both + total, total, rank);
    copy_parts(sharing, rank, both, both + total, 0);
    free(both);
}

static void send_parts(const Sharing *sharing) {
    int part_count;
    size_t total;
    free(parts_of(sharing, parallel_rank(), &part_count, &total));
    parallel_collect(sharing->m, total, parallel_rank());
    parallel_collect(sharing->v, total, parallel_rank());
}

void sharing_join_moments(Sharing *sharing, int fill) {
    if (!sharing->zero) return;
    int holds = !fill || parallel_rank() == 0;
    for (int i = 0; holds && i < sharing->count; i++) {
        Parameter *p = &sharing->parameters[i];
        p->m = memory_allocate_zeroed(p->count, sizeof(real), "whole moments");
        p->v = memory_allocate_zeroed(p->count, sizeof(real), "whole moments");
    }
    if (!fill) return;
    if (parallel_rank() > 0) {
        send_parts(sharing);
        return;
    }
    copy_parts(sharing, 0, sharing->m, sharing->v, 0);
    for (int r = 1; r < parallel_ranks(); r++) receive_parts(sharing, r);
}

void sharing_split_moments(Sharing *sharing, int keep) {
    if (!sharing->zero) return;
    if (keep) copy_parts(sharing, parallel_rank(), sharing->m, sharing->v, 1);
    for (int i = 0; i < sharing->count; i++) {
        Parameter *p = &sharing->parameters[i];
        free(p->m), free(p->v);
        p->m = p->v = NULL;
    }
}
