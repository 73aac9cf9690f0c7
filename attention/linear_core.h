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

real *linear_take(Layout *layout, size_t count);

// A tile of keys or of queries. Backward treats both alike: a key has its value v beside it and the number 1, a query
// the gradient gamma of its numerator and the gradient beta of its denominator. The score of a query and a key has the
// gradient <gamma, v> + beta * 1.
typedef struct {
    LinearFeatures features;
    real *extended; // (TILE, HS) v or gamma; rows of HS numbers are `stride` apart here
    real *weights;  // (TILE) 1 or beta; 0 past the last row
    real *scale;    // (TILE) log_scaled maps: a key's log scale; for queries, the largest one so far
    // for the backward pass
    real *d_scale;    // (TILE) log_scaled maps: what the rows' denominators give to the scales
    LinearFeatures d; // gradients of the features, where the tile has any ...
    real *dv;         // ... (TILE, HS) and of the values
} RowTile;

typedef struct { // sum of phi(k) v^T (F, HS) and phi(k) (F), or of phi(q) gamma^T and phi(q) beta
    real *matrix, *vector;
    real *log_scale; // (1) of log_scaled maps: the true sums are exp(log_scale) times these
} State;

// What a pass over a sequence is for. It goes from row to row of one side and meets the other side's rows, those of the
// same chunk in pairs, all before (for keys: after) them in a state.
typedef enum {
    WALK_FORWARD, // outputs
    WALK_QUERIES, // gradients of queries, from the first row to the last
    WALK_KEYS,    // gradients of keys and values, from the last row to the first
    WALK_BOTH     // all gradients, where there is one chunk and no state
} Walk;

static inline int rows_are_keys(Walk walk) {
    return walk == WALK_KEYS;
}

typedef struct { // what one thread works with
    const LinearMap *map;
    const AttentionConfig *config;
    const real *constants, *parameters; // the layer's
    int HS, stride;                     // the size of a head, and the same in whole vectors
    Walk walk;
    int T;                // rows of the sequence at hand
    int chunk;            // rows of its chunks
    real log_decay;       // of the current head; 0 without decay
    int fades;            // scores are multiplied by powers of its decay; log_scaled maps keep them in their scales
    real *powers;         // (3 TILE) decay^(i - TILE), 0 for i < TILE
    real *far_powers;     // (3 TILE) the same for other pairs of tiles, or mirrored
    real *packed;         // the constants of the current head
    real *d_packed;       // the gradient of its parameters
    real *x;              // (HS, TILE) an input or its gradient, feature-major
    real *tape;           // for features without a gradient: any place will do
    RowTile rows;         // the current tile of rows
    real *phi;            // (max(PHI_ROWS, inner), TILE) a block of phi or its gradient
    real *inner_scores;   // (TILE others, TILE rows) <inner, inner>, for the pair of tiles at hand
    real *scores;         // (TILE, TILE) <outer, outer>, then times the above: <phi(k_j), phi(q_i)>
    real *numerator;      // (TILE, HS) of the rows
    real *denominator;    // (TILE)
    real *others;         // the tiles of the other side, of a chunk
    size_t other_size;    // of each, in numbers
    State state;          // over the others before the chunk, or after it
    real *extended;       // (HS, TILE) the rows' extended ones, feature-major
    real *d_scores;       // (TILE, TILE) gradient of the scores
    real *d_inner_scores; // (TILE, TILE) what reaches inner_scores, then inner
    real *turned;         // (TILE, TILE) one of them, transposed
    double d_log_decay;   // of a learned decay: of the rows so far
    double *crossing;     // (chunks, 2) the same, of pairs that are chunks apart
} Worker;

// Places everything in `base`; returns the size in numbers. base may be NULL. For sequences of config->T rows in chunks
// of `chunk`.
size_t linear_lay_out(Worker *worker, real *base, const LinearMap *map, int chunk, Walk walk,
                      const AttentionConfig *config);
// The same worker for another pass; one laid out for WALK_BOTH has room for all of them.
void linear_set_walk(Worker *worker, Walk walk);
RowTile linear_other(const Worker *worker, int index);

// ---- the inputs of one head; a task is one head of one row of the batch

typedef struct { // rows of q, k, v, leading dimension `stride`
    const real *q, *k, *v;
    int stride, rows;
} HeadInput;

HeadInput linear_head_input(const real *qkv, Span span, int head, const AttentionConfig *config);
// The whole row of a task, and where a layer keeps a number of each of its tokens, (B, NH, T).
static inline Span linear_row_of(int task, const AttentionConfig *config) {
    return (Span){task / config->NH * config->T, config->T};
}
static inline size_t linear_kept_place(Span span, int head, const AttentionConfig *config) {
    size_t T = (size_t)config->T, row = (size_t)span.first / T;
    return (row * (size_t)config->NH + (size_t)head) * T + (size_t)span.first % T;
}
void linear_pack(Worker *worker, int task);

// Tiles of rows that begin at row `row` of the input. Their features take the numerator's place on the way.
void linear_load_keys(Worker *worker, RowTile *tile, HeadInput input, int row, LinearRows rows);
void linear_load_queries(Worker *worker, RowTile *tile, HeadInput input, int row, LinearRows rows);
// Has the memory fetch a tile's rows meanwhile: they lie far apart. Rows that are not there are left out.
void linear_fetch(const real *rows, int stride, int HS, int row, int end);
// All keys of a chunk, as the other side.
void linear_load_chunk_of_keys(Worker *worker, HeadInput input, int start, int count);

// ---- decay: a score is multiplied by decay^distance
//
// A state counts every key as seen from the last row before the chunk. So a query of the chunk multiplies what it reads
// by decay^(1 + rows of the chunk before it), a key enters with decay^(rows of the chunk after it), and the state
// itself fades by decay^(rows of the chunk). The sums over queries mirror this. No power exceeds 1, and exponents are
// distances, never positions.

void linear_set_decay(Worker *worker, int task);
// power (TILE) of a tile's queries, with `before` rows of the chunk before them, or of a tile's keys, with `after` rows
// of the chunk after them
void linear_query_powers(real *power, const Worker *worker, int before);
void linear_key_powers(real *power, const Worker *worker, int rows, int after);
// rows (n, HS) times the power of each; x (width, TILE) likewise
void linear_fade_rows(real *rows, const real *power, int n, int stride);
void linear_fade_columns(real *faded, const real *x, const real *power, int width, int lanes);
// The power of row i and other row j is at [i - j]; the tiles' first rows are `distance` rows apart.
const real *linear_pair_powers(Worker *worker, int distance);

// ---- phi = outer (x) inner, a block of it at a time

// Outer features in one block.
int linear_block_outers(const LinearMap *map);

// ---- states

size_t linear_state_size(const LinearMap *map, int HS);
State linear_state_at(real *base, const LinearMap *map, int HS);
void linear_clear_state(State state, const LinearMap *map, int HS);
// The factor of a state for `rows` more rows; a log_scaled map's state is relative to `log_scale` afterwards.
double linear_fading(const Worker *worker, State state, int rows, real log_scale);
// matrix = factor * matrix + phi^T extended, vector = factor * vector + phi^T weights, for a tile's first `rows` rows
void linear_add_to_state(Worker *worker, State state, double factor, const RowTile *tile, int rows);
// Adds the chunk's keys, the other side, to a state. Overwrites their values by faded ones.
void linear_absorb_keys(Worker *worker, State state, int count);
// numerator (rows, HS) += phi matrix of the current rows; denominator (TILE) += phi vector unless it is NULL
void linear_read_state(Worker *worker, real *denominator, int rows);
// inner of a log_scaled map: the factor exp(sign (scale - reference)) between a row and a state, with its decay for
// `distance` rows in the first column, one less for every further key (sign 1), one more for every query (sign -1).
// Never above 1.
void linear_set_relative_scale(const Worker *worker, LinearFeatures *features, const real *scale, int sign,
                               real reference, int distance, int lanes);

// ---- pairs of tiles

// scores[j][i] = <outer, outer> of other row j and row i, and inner_scores likewise, without the powers of `fades`. The
// tiles' first rows are `distance` rows apart; with distance 0 only what is not in the future is computed.
void linear_pair_scores(Worker *worker, const RowTile *others, int other_rows, int rows, int distance);
// A query must not see later keys.
void linear_mask_future(const Worker *worker, real *tile, int other_rows, int lanes, int distance);
// numerator (rows, HS) += scores^T extended
void linear_add_pairs(Worker *worker, const RowTile *others, int other_rows, int rows, int distance);

// ---- denominators

// Whether the floor has replaced a row's sum.
int linear_is_floored(real g, const LinearMap *map, const AttentionConfig *config);

// ---- segments: when there are fewer heads than threads, the rows of a head are shared out too

typedef struct {
    int count; // segments of a row
    int rows;  // rows of a segment (the last one may have fewer), a multiple of the chunk
    int alone; // the second of two, forward: whoever has it sums up the first one's keys too and waits for nobody
} Segments;

typedef struct { // how a call shares out its work
    int chunk;   // rows; where rows are cut into documents, at most
    int walks;   // passes over each head that do not wait for each other
    // Of one sequence, each goes on from the state at its boundary. Of a row that is cut into documents, a segment is
    // whatever documents begin in it.
    Segments segments;
} Division;

Division linear_divide(const LinearMap *map, int is_backward, int has_documents, const AttentionConfig *config);
// Whether `rows` rows of all heads take longer than it takes to wake other threads.
int linear_is_worth_threads(const LinearMap *map, int rows, int chunk, const AttentionConfig *config);
// Numbers that the states at the segments' boundaries take, one for each segment of each head, where there are any.
size_t linear_boundary_size(const LinearMap *map, Segments segments, const AttentionConfig *config);
State linear_boundary(real *boundaries, int task, int segment, Segments segments, const Worker *worker);
// Adds the keys of rows [start, end) to a state, chunk by chunk.
void linear_add_keys(Worker *worker, State state, HeadInput input, int start, int end);
// Fills in the states before each segment. All threads of a parallel region call it together.
void linear_sum_keys(Worker *worker, real *boundaries, Segments segments, const real *qkv);
// Passes over a head of T rows in backward.
static inline int linear_backward_walks(int chunk, int T) {
    return chunk < T ? 2 : 1;
}
static inline Walk linear_backward_walk(int walks) {
    return walks == 2 ? WALK_KEYS : WALK_BOTH; // as far as its scratch goes, WALK_QUERIES is the same
}
// Scratch of the backward pass for what the heads' parameters receive, in numbers.
size_t linear_parameter_work_size(const LinearMap *map, Division division, int has_documents,
                                  const AttentionConfig *config);
// a += b, which is `rows` rows farther away.
void linear_add_states(Worker *worker, State a, State b, int rows);

#endif
