// The insides of the linear core, shared by forward, backward and decoding; linear.h is what mechanisms see.
#ifndef ATTENTION_LINEAR_CORE_H
#define ATTENTION_LINEAR_CORE_H

#include "linear.h"
#include "core/math/vectors.h"

#include <stddef.h>

_Static_assert(TILE_LANES % LANES == 0, "lanes are whole vectors");

// The length of a row of n numbers that products have as columns: whole vectors.
static inline int tile_stride(int n) {
    return (int)round_up((size_t)n, LANES);
}

static inline int chunks_of(int rows, int chunk) {
    return (rows + chunk - 1) / chunk;
}

static inline int tiles_of(int rows) {
    return chunks_of(rows, TILE);
}

// Width of phi.
static inline size_t linear_feature_count(const LinearMap *map) {
    return (size_t)map->outer * (size_t)max_int(map->inner, 1);
}

static inline const real *row_at(const real *rows, int row, int stride) {
    return rows + (size_t)row * (size_t)stride;
}

// ---- scratch

typedef struct { // hands out pieces of a block; without a block it only counts
    real *base;
    size_t used;
} Layout;

typedef struct { // a tile of keys and values
    LinearFeatures features;
    real *v; // (TILE, HS); rows of HS numbers are `stride` apart here
    // for the backward pass
    LinearFeatures d;                  // gradients of the features ...
    real *d_outer_rows, *d_inner_rows; // ... and their part that comes from pairs: (TILE, outer), (TILE, inner)
    real *dv;                          // (TILE, HS)
} KeyTile;

typedef struct { // sum of phi(k) v^T (F, HS) and phi(k) (F), or of phi(q) gamma^T and phi(q) beta
    real *matrix, *vector;
    real *log_scale; // (1) of log_scaled maps: the true sums are exp(log_scale) times these
} State;

typedef struct { // what one thread works with
    const LinearMap *map;
    const AttentionConfig *config;
    const real *constants, *parameters; // the layer's
    int HS, stride; // the size of a head, and the same in whole vectors
    int backward;
    int chunk;            // rows
    real log_decay;       // of the current head; 0 without decay
    int fades;            // scores are multiplied by powers of its decay; log_scaled maps keep them in their scales
    real *powers;         // (3 TILE) decay^(i - TILE), 0 for i < TILE
    real *far_powers;     // (3 TILE) the same for a pair of tiles that are not neighbours
    real *packed;         // the constants of the current head
    real *d_packed;       // the gradient of its parameters
    real *x;              // (HS, TILE) an input or its gradient, feature-major
    LinearFeatures q;     // of the current tile of queries
    real *phi, *d_phi;    // (max(PHI_ROWS, inner), TILE) a block of phi
    real *inner_scores;   // (TILE keys, TILE queries) <inner, inner>, for the pair of tiles at hand
    real *scores;         // (TILE, TILE) <outer, outer>, then times the above: <phi(k_j), phi(q_i)>
    real *numerator;      // (TILE, HS)
    real *denominator;    // (TILE)
    real *running_max;    // (TILE) log_scaled maps: the largest log scale of any key so far, by query
    real *keys;           // the key tiles of a chunk
    size_t key_tile_size; // in numbers
    State state;          // over the keys before the chunk
    // for the backward pass
    LinearFeatures dq;
    real *q_outer_rows, *q_inner_rows; // (TILE, outer), (TILE, inner) the queries' features, row-major
    real *gamma;                       // (TILE, HS) gradient of the numerator
    real *gamma_features;              // (HS, TILE) the same, feature-major
    real *beta;                        // (TILE) gradient of Z
    real *d_scores;                    // (TILE, TILE) gradient of the scores
    real *d_inner_scores;              // (TILE, TILE) what reaches inner_scores, then inner
    double d_log_decay;                // of a learned decay: of the rows so far
    State query_sums;                  // U: over the queries after the chunk ...
    double fading;                     // ... and its factor for the chunk
    real *states;                      // the state before each chunk of the segment
} Worker;

// Places everything in `base` for segments of `rows` rows; returns the size in numbers. base may be NULL.
size_t linear_lay_out(Worker *worker, real *base, const LinearMap *map, int rows, int chunk, int backward,
                      const AttentionConfig *config);
size_t linear_key_tile_size(const LinearMap *map, int HS, int backward);
KeyTile linear_key_tile(const Worker *worker, int index);

// ---- the inputs of one head; a task is one head of one sequence

typedef struct { // rows of q, k, v, leading dimension `stride`
    const real *q, *k, *v;
    int stride;
} HeadInput;

HeadInput linear_head_input(const real *qkv, int task, const AttentionConfig *config);
void linear_pack(Worker *worker, int task);

// Tiles of rows that begin at row `row` of the input.
void linear_load_key_tile(Worker *worker, KeyTile *tile, HeadInput input, int row, LinearRows rows);
void linear_load_keys(Worker *worker, HeadInput input, int start, int count);
void linear_load_queries(Worker *worker, HeadInput input, int row, LinearRows rows);

// ---- decay: a score is multiplied by decay^distance
//
// A state counts every key as seen from the last row before the chunk. So a query of the chunk multiplies what it reads
// by decay^(1 + rows of the chunk before it), a key enters with decay^(rows of the chunk after it), and the state
// itself fades by decay^(rows of the chunk). The sums over queries mirror this. No power exceeds 1, and exponents are
// distances, never positions.

void linear_set_decay(Worker *worker, int task);
double linear_power(const Worker *worker, int distance); // 1 where nothing fades
// power (TILE) of a tile's queries, with `before` rows of the chunk before them, or of a tile's keys, with `after` rows
// of the chunk after them
void linear_query_powers(real *power, const Worker *worker, int before);
void linear_key_powers(real *power, const Worker *worker, int rows, int after);
// rows (n, HS) times the power of each; x (width, TILE) likewise
void linear_fade_rows(real *rows, const real *power, int n, int stride);
void linear_fade_columns(real *faded, const real *x, const real *power, int width, int lanes);
// The power of key j and query i, which is `distance` + i rows below the first key, is at [i - j].
const real *linear_pair_powers(Worker *worker, int distance);

// ---- phi = outer (x) inner, a block of it at a time

// Outer features in one block.
int linear_block_outers(const LinearMap *map);
// Block of phi for the outer features [from, from + count): (count * inner, TILE). Without inner it exists already.
const real *linear_expand(real *phi, const LinearFeatures *features, int from, int count, int lanes, int inner);

// ---- states

size_t linear_state_size(const LinearMap *map, int HS);
State linear_state_at(real *base, const LinearMap *map, int HS);
void linear_clear_state(State state, const LinearMap *map, int HS);
// The factor of a state for `rows` more rows; a log_scaled map's state is relative to `log_scale` afterwards.
double linear_fading(const Worker *worker, State state, int rows, real log_scale);
// matrix = factor * matrix + phi^T right, vector = factor * vector + phi^T weights, for features of `rows` rows with
// right (rows, HS), weights (rows) or all ones.
void linear_add_to_state(Worker *worker, State state, double factor, const LinearFeatures *features, const real *right,
                         const real *weights, int rows);
// Adds the chunk's keys, already loaded, to a state.
void linear_absorb_keys(Worker *worker, State state, int count);
// inner of a log_scaled map: the factor exp(sign (scale - reference)) between a row and a state, with its decay for
// `distance` rows in the first column, one less for every further key (sign 1), one more for every query (sign -1).
// Never above 1.
void linear_set_relative_scale(const Worker *worker, LinearFeatures *features, const real *scale, int sign,
                               real reference, int distance, int lanes);

// ---- pairs of tiles

// scores[j][i] = <outer(k_j), outer(q_i)> and inner_scores likewise, without the powers of `fades`. The query of column
// i is `distance` + i rows below the tile's first key; with distance 0 only i >= j is computed.
void linear_pair_scores(Worker *worker, const LinearFeatures *keys, int key_rows, int lanes, int distance);
// A query must not see later keys.
void linear_mask_future(real *tile, int key_rows, int lanes, int distance);

// ---- denominators

// Whether the floor has replaced a row's sum.
int linear_is_floored(real g, const LinearMap *map, const AttentionConfig *config);

// ---- segments: when there are fewer heads than threads, the rows of a head are shared out too

typedef struct {
    int count; // segments of a sequence
    int rows;  // rows of a segment (the last one may have fewer), a multiple of the chunk
} Segments;

// Whether `rows` rows of all heads take longer than it takes to wake other threads.
int linear_is_worth_threads(const LinearMap *map, int rows, int chunk, const AttentionConfig *config);
Segments linear_segments(const LinearMap *map, int chunk, const AttentionConfig *config);
// Numbers that the states at the segments' boundaries take, one for each segment of each head.
size_t linear_boundary_size(const LinearMap *map, Segments segments, const AttentionConfig *config);
State linear_boundary(real *boundaries, int task, int segment, Segments segments, const Worker *worker);
// Scratch, in numbers, for the gradients of the heads' decays and of what they packed.
size_t linear_decay_size(Segments segments, const AttentionConfig *config);
size_t linear_packed_gradient_size(const LinearMap *map, const AttentionConfig *config);
// Fills in the states before each segment. All threads of a parallel region call it together.
void linear_sum_keys(Worker *worker, real *boundaries, Segments segments, const real *qkv);
// a += b, which is `rows` rows farther away.
void linear_add_states(Worker *worker, State a, State b, int rows);

#endif
