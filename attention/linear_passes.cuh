// The functions of struct AttentionGPU for a map (linear_map.cuh). Each is a few launches, whatever the batch:
//     forward     the sum over every segment, the scan over segments, the walk
//     backward    the same for the queries' gradients, and from the end to the beginning for the keys' and the values'
// Where batch and heads fill the GPU there is one segment, and only the walks are left.
#ifndef ATTENTION_LINEAR_PASSES_CUH
#define ATTENTION_LINEAR_PASSES_CUH

#include "linear_decode.cuh"

#include <stdint.h>

// ---- how a pass is cut up

template <typename Walk, typename Map> static LinearSlice slice_of(const Map &map, int outers, int inners) {
    LinearSlice slice = {0, outers, 0, inners, 0, 0};
    slice.inner_octets = round_up_to(inners, Map::IS_PRODUCT ? (inners <= 8 ? 8 : Walk::INNER_STEP) : 16) / 8;
    slice.octets = outers * slice.inner_octets;
    (void)map;
    return slice;
}

static inline int device_attribute(cudaDeviceAttr attribute) {
    int value, device;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

template <typename Map, int WIDTH> static bool slice_fits(const Map &map, LinearSlice slice, size_t shared) {
    typedef LinearWalk<Map, WIDTH> Walk;
    return slice.octets <= Walk::MOST_OCTETS &&
           shared_layout<Walk>(KEY_GRADIENT, slice, map.shape.scratch, Map::IS_PRODUCT).total <= (int)shared;
}

// The largest slice that a block has room for, from the first features on.
template <typename Map, int WIDTH> static LinearSlice largest_slice(const Map &map) {
    typedef LinearWalk<Map, WIDTH> Walk;
    size_t shared = (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    int outers = map.shape.outers, inners = map.shape.inners;
    while (outers > 1 && !slice_fits<Map, WIDTH>(map, slice_of<Walk>(map, outers, inners), shared)) outers--;
    while (inners > 8 && !slice_fits<Map, WIDTH>(map, slice_of<Walk>(map, outers, inners), shared))
        inners = (inners - 1) / 8 * 8;
    return slice_of<Walk>(map, outers, inners);
}

typedef struct {         // the same for every slice
    LinearSlice largest; // the first slice
    int across, count;   // slices of inner features; of all
    size_t state_size;   // numbers of a slice's state
    int tasks, segments, segment_rows;
    int most_segments; // of this length or any shorter one
} LinearPlan;

template <typename Map, int WIDTH>
static LinearPlan make_plan(const Map &map, int B, int T, const AttentionConfig *config) {
    typedef LinearWalk<Map, WIDTH> Walk;
    LinearPlan plan;
    plan.largest = largest_slice<Map, WIDTH>(map);
    plan.across = (map.shape.inners + plan.largest.inners - 1) / plan.largest.inners;
    plan.count = plan.across * ((map.shape.outers + plan.largest.outers - 1) / plan.largest.outers);
    plan.state_size = (size_t)round_up_to(plan.largest.octets, 2) * 8 * Walk::COLUMNS;
    plan.tasks = B * config->NH;
    // narrow blocks have room beside another one
    int blocks = device_attribute(cudaDevAttrMultiProcessorCount) * 8 / Walk::WARPS;
    int chunks = round_up_to(T, Walk::ROWS) / Walk::ROWS;
    int wanted = plan.tasks >= blocks ? 1 : blocks / plan.tasks;
    plan.segment_rows =
        round_up_to(config->chunk ? config->chunk : (chunks + wanted - 1) / wanted * Walk::ROWS, Walk::ROWS);
    plan.segments = (T + plan.segment_rows - 1) / plan.segment_rows;
    plan.most_segments = config->chunk || chunks < wanted ? chunks : wanted;
    return plan;
}

template <typename Map, int WIDTH> static LinearSlice slice_at(const Map &map, const LinearPlan &plan, int index) {
    int first_outer = index / plan.across * plan.largest.outers,
        first_inner = index % plan.across * plan.largest.inners;
    int outers = map.shape.outers - first_outer, inners = map.shape.inners - first_inner;
    LinearSlice slice =
        slice_of<LinearWalk<Map, WIDTH>>(map, outers < plan.largest.outers ? outers : plan.largest.outers,
                                         inners < plan.largest.inners ? inners : plan.largest.inners);
    slice.first_outer = first_outer, slice.first_inner = first_inner;
    return slice;
}

// ---- scratch

typedef struct { // hands out pieces of a block; without a block it only counts
    float *base;
    size_t used;
} LinearArena;

static inline float *take(LinearArena *arena, size_t count) {
    float *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count + 31) / 32 * 32;
    return piece;
}

typedef struct {
    float *states;                                     // (tasks, segments, state_size)
    float *partial, *partial_dx;                       // if there are several slices
    float *running_max, *shares, *dq_scale, *dk_scale; // (tasks, T) log_scaled maps
    float *d_projections;                              // (tasks * segments, projections, width) trained ones
    float *projection_sums;                            // (NH, projections, width)
    DecayShare *d_log_decay;                           // (tasks, chunks) a learned decay
    float *faded;                                      // (tasks, T) the same, with log scales
} LinearWork;

template <typename Map, int WIDTH>
static LinearWork lay_out_work(LinearArena *arena, const Map &map, const LinearPlan &plan, int T, bool is_backward,
                               const AttentionConfig *config) {
    typedef LinearWalk<Map, WIDTH> Walk;
    size_t rows = (size_t)plan.tasks * T, scales = Map::LOG_SCALED ? rows : 0;
    size_t projections = (size_t)map.shape.projections * WIDTH, chunks = (T + Walk::ROWS - 1) / Walk::ROWS;
    bool learns_decay = config->decay == DECAY_LEARNED;
    LinearWork work = {};
    work.states = take(arena, (size_t)plan.tasks * plan.most_segments * plan.state_size);
    work.partial = take(arena, plan.count > 1 ? rows * Walk::COLUMNS : 0);
    work.running_max = take(arena, scales);
    if (!is_backward) return work;
    work.partial_dx = plan.count > 1 ? take(arena, rows * WIDTH) : NULL;
    work.shares = take(arena, scales), work.dq_scale = take(arena, scales), work.dk_scale = take(arena, scales);
    work.d_projections = take(arena, plan.tasks * plan.segments * projections);
    work.projection_sums = take(arena, config->NH * projections);
    if (!learns_decay) return work;
    work.d_log_decay = (DecayShare *)take(arena, plan.tasks * chunks * sizeof(DecayShare) / sizeof(float));
    work.faded = Map::LOG_SCALED ? take(arena, rows) : NULL;
    return work;
}

// ---- launches

// Segments, heads, sequences.
static inline dim3 walk_grid(const WalkPass &pass, int tasks) {
    return dim3((unsigned)pass.segments, (unsigned)pass.NH, (unsigned)(tasks / pass.NH));
}

template <typename Map, int WIDTH, WalkMode MODE>
static void launch_walk(const Map &map, WalkPass pass, int tasks, cudaStream_t stream) {
    typedef LinearWalk<Map, WIDTH> Walk;
    pass.layout = shared_layout<Walk>(MODE, pass.slice, map.shape.scratch, Map::IS_PRODUCT);
    int shared = pass.layout.total;
    cuda_check(
        cudaFuncSetAttribute(walk_kernel<Map, WIDTH, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    walk_kernel<Map, WIDTH, MODE><<<walk_grid(pass, tasks), Walk::Tile::THREADS, shared, stream>>>(map, pass);
    launch_check();
}

// The states before each segment (or after), by a pass over the other side.
template <typename Map, int WIDTH, WalkMode SUM>
static void sum_segments(const Map &map, WalkPass pass, const LinearPlan &plan, float *states, const float *initial,
                         float *final, cudaStream_t stream) {
    size_t size = (size_t)round_up_to(pass.slice.octets, 2) * 8 * LinearWalk<Map, WIDTH>::COLUMNS;
    pass.carry_in = NULL, pass.carry_out = states;
    launch_walk<Map, WIDTH, SUM>(map, pass, plan.tasks, stream);
    scan_kernel<<<scale_blocks(plan.tasks * size), SCALE_THREADS, 0, stream>>>(states, initial, final, size, plan.tasks,
                                                                               walks_backwards(SUM), pass);
    launch_check();
}

template <typename Map> static DenominatorRule denominator_rule(const AttentionConfig *config) {
    DenominatorRule rule = {config->delta, config->denominator == DENOMINATOR_CLAMP, Map::IS_SIGNED};
    return rule;
}

static inline LinearDecay linear_decay(const AttentionConfig *config, const float *parameters) {
    LinearDecay decay = {config->decay, config->NH, config->decay_shortest, config->decay_longest, parameters};
    return decay;
}

template <typename Map>
static WalkPass walk_pass(const LinearPlan &plan, int T, const floatX *qkv, const float *parameters,
                          const AttentionConfig *config) {
    WalkPass pass = {};
    pass.T = T, pass.NH = config->NH, pass.HS = config->HS;
    pass.segments = plan.segments, pass.segment_rows = plan.segment_rows;
    pass.qkv = qkv;
    pass.decay = linear_decay(config, parameters);
    pass.rule = denominator_rule<Map>(config);
    return pass;
}

static inline void select_slice(WalkPass *pass, LinearSlice slice, int index, int count) {
    pass->slice = slice;
    pass->is_first_slice = index == 0, pass->is_last_slice = index + 1 == count;
}

// ---- forward

// log_scaled maps: the running maximum, which goes to `to`.
template <typename Map, int WIDTH>
static void measure_keys(const Map &map, WalkPass *pass, const LinearPlan &plan, float *to, cudaStream_t stream) {
    typedef LinearWalk<Map, WIDTH> Walk;
    if constexpr (Map::LOG_SCALED) {
        select_slice(pass, slice_at<Map, WIDTH>(map, plan, 0), 0, plan.count);
        pass->layout = shared_layout<Walk>(SUM_KEYS, pass->slice, map.shape.scratch, Map::IS_PRODUCT);
        int shared = pass->layout.total;
        cuda_check(
            cudaFuncSetAttribute(measure_keys_kernel<Map, WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        measure_keys_kernel<Map, WIDTH>
            <<<walk_grid(*pass, plan.tasks), Walk::Tile::THREADS, shared, stream>>>(to, map, *pass);
        launch_check();
        running_max_kernel<<<(unsigned)plan.tasks, SCALE_THREADS, 0, stream>>>(to, pass->max_before, *pass);
        launch_check();
        pass->running_max = to;
    }
}

// The walk over all rows; `carried` is the state before the first row and after the last, NULL: there is none, and
// none is wanted.
template <typename Map, int WIDTH>
static void walk_forward(const Map &map, WalkPass pass, const LinearPlan &plan, const LinearWork &work, float *carried,
                         bool is_continued, cudaStream_t stream) {
    pass.partial = work.partial;
    for (int i = 0; i < plan.count; i++) {
        float *state = carried ? carried + i * plan.tasks * plan.state_size : NULL;
        select_slice(&pass, slice_at<Map, WIDTH>(map, plan, i), i, plan.count);
        if (plan.segments > 1 || carried) {
            sum_segments<Map, WIDTH, SUM_KEYS>(map, pass, plan, work.states, is_continued ? state : NULL, state,
                                               stream);
            pass.carry_in = work.states;
        }
        launch_walk<Map, WIDTH, FORWARD>(map, pass, plan.tasks, stream);
    }
}

template <typename Map, int WIDTH>
static void forward_width(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                          float *scratch, const AttentionConfig *config, cudaStream_t stream) {
    Map map = Map::of(config, packed, parameters);
    LinearPlan plan = make_plan<Map, WIDTH>(map, config->B, config->T, config);
    LinearArena arena = {scratch, 0};
    LinearWork work = lay_out_work<Map, WIDTH>(&arena, map, plan, config->T, false, config);
    WalkPass pass = walk_pass<Map>(plan, config->T, qkv, parameters, config);
    pass.to = out, pass.denominators = saved, pass.positions = config->positions;
    measure_keys<Map, WIDTH>(map, &pass, plan, saved ? saved + (size_t)plan.tasks * config->T : work.running_max,
                             stream);
    walk_forward<Map, WIDTH>(map, pass, plan, work, NULL, false, stream);
}

// ---- backward

// One side's gradients: the walk over the rows, slice by slice.
template <typename Map, int WIDTH, WalkMode SUM, WalkMode MODE>
static void backward_side(const Map &map, WalkPass pass, const LinearPlan &plan, const LinearWork &work,
                          const float *d_log_scale, cudaStream_t stream) {
    pass.d_log_scale = d_log_scale;
    for (int i = 0; i < plan.count; i++) {
        select_slice(&pass, slice_at<Map, WIDTH>(map, plan, i), i, plan.count);
        if (plan.segments > 1) {
            sum_segments<Map, WIDTH, SUM>(map, pass, plan, work.states, NULL, NULL, stream);
            pass.carry_in = work.states;
        }
        launch_walk<Map, WIDTH, MODE>(map, pass, plan.tasks, stream);
    }
}

// log_scaled maps: the gradients that reach the log scales.
template <typename Map>
static void share_scales(const WalkPass &pass, const LinearPlan &plan, const LinearWork &work, cudaStream_t stream) {
    size_t rows = (size_t)plan.tasks * pass.T;
    if constexpr (Map::LOG_SCALED) {
        scale_shares_kernel<<<scale_blocks(rows * 32), SCALE_THREADS, 0, stream>>>(work.shares, pass, rows);
        launch_check();
        scale_gradient_kernel<<<scale_blocks(rows * 32), SCALE_THREADS, 0, stream>>>(
            work.dq_scale, work.dk_scale, work.faded, work.shares, pass, rows);
        launch_check();
    }
}

// What a map does with the gradients of its projections: its `unpack`, for maps that train them.
template <typename Map>
static auto unpack_projections(const Map &map, float *dparameters, const float *sums, const AttentionConfig *config,
                               cudaStream_t stream, int) -> decltype(map.unpack(dparameters, sums, config, stream)) {
    map.unpack(dparameters, sums, config, stream);
}
template <typename Map>
static void unpack_projections(const Map &, float *, const float *, const AttentionConfig *, cudaStream_t, long) {}

// What the walks have gathered for the layer's parameters.
template <typename Map, int WIDTH>
static void add_parameter_gradients(float *dparameters, const Map &map, const WalkPass &pass, const LinearWork &work,
                                    const AttentionConfig *config, cudaStream_t stream) {
    size_t size = (size_t)map.shape.projections * WIDTH;
    if (work.d_log_decay) {
        decay_gradient_kernel<<<(unsigned)config->NH, SCALE_THREADS, 0, stream>>>(
            dparameters, work.d_log_decay, work.faded, config->B, LinearWalk<Map, WIDTH>::ROWS, pass);
        launch_check();
    }
    if (!size) return;
    sum_projections_kernel<<<scale_blocks(config->NH * size), SCALE_THREADS, 0, stream>>>(
        work.projection_sums, work.d_projections, size, config->B, pass);
    launch_check();
    unpack_projections(map, dparameters, work.projection_sums, config, stream, 0);
}

template <typename Map, int WIDTH>
static void backward_width(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                           const float *saved, const float *packed, const float *parameters, float *scratch,
                           const AttentionConfig *config, cudaStream_t stream) {
    Map map = Map::of(config, packed, parameters);
    LinearPlan plan = make_plan<Map, WIDTH>(map, config->B, config->T, config);
    LinearArena arena = {scratch, 0};
    LinearWork work = lay_out_work<Map, WIDTH>(&arena, map, plan, config->T, true, config);
    WalkPass pass = walk_pass<Map>(plan, config->T, qkv, parameters, config);
    size_t gathered = (size_t)plan.tasks * plan.segments * map.shape.projections * WIDTH;
    pass.dout = dout, pass.out = out, pass.to = dqkv, pass.denominators = (float *)saved;
    pass.positions = config->positions;
    pass.partial = work.partial, pass.partial_dx = work.partial_dx;
    pass.d_projections = gathered ? work.d_projections : NULL;
    pass.d_log_decay = work.d_log_decay;
    if (Map::LOG_SCALED) pass.running_max = saved + (size_t)plan.tasks * config->T;
    if (gathered) cuda_check(cudaMemsetAsync(work.d_projections, 0, gathered * sizeof(float), stream));
    share_scales<Map>(pass, plan, work, stream);
    backward_side<Map, WIDTH, SUM_KEYS, QUERY_GRADIENT>(map, pass, plan, work, work.dq_scale, stream);
    backward_side<Map, WIDTH, SUM_QUERIES, KEY_GRADIENT>(map, pass, plan, work, work.dk_scale, stream);
    add_parameter_gradients<Map, WIDTH>(dparameters, map, pass, work, config, stream);
}

// ---- decoding

// Places the parts of a cache after one another; returns their size in numbers. base may be NULL.
template <typename Map, int WIDTH>
static size_t lay_out_cache(DecodeCache *cache, float *base, const Map &map, const AttentionConfig *config) {
    LinearPlan plan = make_plan<Map, WIDTH>(map, 1, 1, config);
    LinearArena arena = {base, 0};
    size_t NH = (size_t)config->NH, keys = NH * PENDING_KEYS;
    *cache = {};
    cache->outers = Map::IS_PRODUCT ? map.shape.outers : 0, cache->inners = map.shape.inners;
    cache->NH = config->NH, cache->HS = config->HS, cache->width = WIDTH;
    cache->is_log_scaled = Map::LOG_SCALED;
    cache->slice = plan.largest, cache->slices = plan.count, cache->across = plan.across;
    cache->state_size = plan.state_size;
    cache->states = take(&arena, NH * plan.count * plan.state_size);
    cache->scales = take(&arena, Map::LOG_SCALED ? NH : 0);
    cache->outer = take(&arena, keys * cache->outers);
    cache->inner = take(&arena, keys * cache->inners);
    cache->values = take(&arena, keys * config->HS);
    cache->log_scale = take(&arena, Map::LOG_SCALED ? keys : 0);
    return arena.used;
}

// Whole tiles of positions, as in the forward pass: the states in the cache are what is carried in and out.
template <typename Map, int WIDTH>
static void step_tiles(const Map &map, floatX *out, const DecodeCache &cache, int pos, int n, const floatX *qkv,
                       const float *parameters, float *scratch, const AttentionConfig *config, cudaStream_t stream) {
    LinearPlan plan = make_plan<Map, WIDTH>(map, 1, n, config);
    LinearArena arena = {scratch, 0};
    LinearWork work = lay_out_work<Map, WIDTH>(&arena, map, plan, n, false, config);
    WalkPass pass = walk_pass<Map>(plan, n, qkv, parameters, config);
    pass.to = out, pass.position = pos;
    pass.max_before = Map::LOG_SCALED && pos ? cache.scales : NULL;
    measure_keys<Map, WIDTH>(map, &pass, plan, work.running_max, stream);
    walk_forward<Map, WIDTH>(map, pass, plan, work, cache.states, pos > 0, stream);
    if (!Map::LOG_SCALED) return;
    keep_scale_kernel<<<scale_blocks(config->NH), SCALE_THREADS, 0, stream>>>(cache.scales, pass);
    launch_check();
}

// n positions that all fall into one tile of the sequence; the first is cache.first, or in device memory.
template <typename Map, int WIDTH>
static void step_pending(const Map &map, floatX *out, const DecodeCache &cache, int n, const floatX *qkv,
                         float *scratch, bool may_fill_tile, cudaStream_t stream) {
    typedef DecodeTile<Map, WIDTH> Tile;
    typedef LinearWalk<Map, WIDTH> Walk;
    size_t shared = Tile::shared_bytes(cache.slice, map.shape.scratch);
    DecodeQueries q = {scratch, scratch + (size_t)n * cache.NH * cache.outers};
    dim3 blocks((unsigned)cache.NH, (unsigned)round_up_to(n, 16) / 16), rows((unsigned)cache.NH, (unsigned)n);
    cuda_check(
        cudaFuncSetAttribute(remember_kernel<Map, WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    remember_kernel<Map, WIDTH><<<blocks, Tile::Tile::THREADS, shared, stream>>>(q, cache, map, qkv, n);
    launch_check();
    decode_kernel<Walk::COLUMNS><<<rows, DECODE_THREADS, 0, stream>>>(out, cache, q, n, Walk::INNER_STEP);
    launch_check();
    if (!may_fill_tile) return;
    dim3 columns((unsigned)cache.NH, (unsigned)round_up_to(Walk::COLUMNS, 32) / 32);
    fold_kernel<<<columns, DECODE_THREADS, 0, stream>>>(cache, n, Walk::INNER_STEP);
    launch_check();
    if (!Map::LOG_SCALED) return;
    fold_scale_kernel<<<scale_blocks(cache.NH), SCALE_THREADS, 0, stream>>>(cache, n);
    launch_check();
}

template <typename Map, int WIDTH>
static DecodeCache cache_at(const Map &map, float *base, const float *parameters, const AttentionConfig *config) {
    DecodeCache cache;
    lay_out_cache<Map, WIDTH>(&cache, base, map, config);
    cache.decay = linear_decay(config, parameters);
    cache.rule = denominator_rule<Map>(config);
    return cache;
}

template <typename Map, int WIDTH>
static void step_width(floatX *out, float *base, int pos, int n, const floatX *qkv, const float *packed,
                       const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Map map = Map::of(config, packed, parameters);
    DecodeCache cache = cache_at<Map, WIDTH>(map, base, parameters, config);
    for (int row = 0, rows; row < n; row += rows) {
        int column = (pos + row) % PENDING_KEYS, left = n - row;
        bool is_whole = column == 0 && left >= PENDING_KEYS; // begins with a whole tile
        rows = is_whole ? left - left % PENDING_KEYS : min(left, PENDING_KEYS - column);
        const floatX *from = qkv + (size_t)row * 3 * config->C;
        floatX *to = out + (size_t)row * config->C;
        cache.first = pos + row;
        if (is_whole)
            step_tiles<Map, WIDTH>(map, to, cache, pos + row, rows, from, parameters, work, config, stream);
        else
            step_pending<Map, WIDTH>(map, to, cache, rows, from, work, column + rows == PENDING_KEYS, stream);
    }
}

template <typename Map, int WIDTH>
static void decode_width(floatX *out, float *base, const int *position, const floatX *qkv, const float *packed,
                         const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Map map = Map::of(config, packed, parameters);
    DecodeCache cache = cache_at<Map, WIDTH>(map, base, parameters, config);
    cache.position = position;
    step_pending<Map, WIDTH>(map, out, cache, 1, qkv, work, true, stream);
}

// ---- sizes

template <typename Map, int WIDTH> static size_t cache_size_width(const AttentionConfig *config) {
    DecodeCache cache;
    return lay_out_cache<Map, WIDTH>(&cache, NULL, Map::of(config, NULL, NULL), config);
}

template <typename Map, int WIDTH> static size_t work_size_width(const AttentionConfig *config) {
    Map map = Map::of(config, NULL, NULL);
    size_t largest = (size_t)config->NH * min(config->T, (int)PENDING_KEYS) * (map.shape.outers + map.shape.inners);
    for (int is_backward = 0; is_backward < 2; is_backward++) { // a prefill has more segments than a batch may have
        LinearArena arena = {NULL, 0};
        LinearPlan plan = make_plan<Map, WIDTH>(map, is_backward ? config->B : 1, config->T, config);
        lay_out_work<Map, WIDTH>(&arena, map, plan, config->T, is_backward, config);
        if (arena.used > largest) largest = arena.used;
    }
    return largest;
}

// ---- the functions of struct AttentionGPU

// CALL<Map, width>(arguments) for the width of the configuration's heads
#define LINEAR_BY_WIDTH(function, Map, config, ...)                                                                    \
    (linear_width(config) == 32   ? function<Map, 32>(__VA_ARGS__)                                                     \
     : linear_width(config) == 64 ? function<Map, 64>(__VA_ARGS__)                                                     \
                                  : function<Map, 128>(__VA_ARGS__))

template <typename Map> static size_t linear_saved_size(const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T * (Map::LOG_SCALED ? 2 : 1);
}
template <typename Map> static size_t linear_work_size(const AttentionConfig *config) {
    return LINEAR_BY_WIDTH(work_size_width, Map, config, config);
}
template <typename Map>
static void linear_forward(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                           float *work, const AttentionConfig *config, cudaStream_t stream) {
    LINEAR_BY_WIDTH(forward_width, Map, config, out, saved, qkv, packed, parameters, work, config, stream);
}
template <typename Map>
static void linear_backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                            const float *saved, const float *packed, const float *parameters, float *work,
                            const AttentionConfig *config, cudaStream_t stream) {
    LINEAR_BY_WIDTH(backward_width, Map, config, dqkv, dparameters, dout, qkv, out, saved, packed, parameters, work,
                    config, stream);
}

template <typename Map> static size_t linear_cache_size(const AttentionConfig *config) {
    return LINEAR_BY_WIDTH(cache_size_width, Map, config, config);
}
template <typename Map>
static void linear_step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *packed,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    LINEAR_BY_WIDTH(step_width, Map, config, out, cache, pos, n, qkv, packed, parameters, work, config, stream);
}
template <typename Map>
static void linear_decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *packed,
                          const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    LINEAR_BY_WIDTH(decode_width, Map, config, out, cache, position, qkv, packed, parameters, work, config, stream);
}

// Wider heads do not fit on chip.
static int linear_check(const AttentionConfig *config, char *why, size_t size) {
    if (config->HS <= 128) return 0;
    snprintf(why, size, "heads have %d channels, the GPU's kernels take at most 128; use more heads (--heads)",
             config->HS);
    return -1;
}

// The rows that this file's kernels have counted.
static void linear_collect_floored_rows(cudaStream_t stream) {
    static unsigned long long collected;
    unsigned long long rows;
    cuda_check(cudaMemcpyFromSymbolAsync(&rows, floored_rows, sizeof rows, 0, cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    linear_count_floored_rows(rows - collected);
    collected = rows;
}

// Defines attention_gpu_NAME.
#define LINEAR_GPU_ATTENTION(name, Map, packed_size, pack)                                                             \
    extern "C" const Attention attention_##name;                                                                       \
    extern const AttentionGPU attention_gpu_##name;                                                                    \
    const AttentionGPU attention_gpu_##name = {&attention_##name,                                                      \
                                               linear_saved_size<Map>,                                                 \
                                               linear_work_size<Map>,                                                  \
                                               linear_cache_size<Map>,                                                 \
                                               linear_forward<Map>,                                                    \
                                               linear_backward<Map>,                                                   \
                                               linear_step<Map>,                                                       \
                                               linear_check,                                                           \
                                               NULL,                                                                   \
                                               linear_collect_floored_rows,                                            \
                                               packed_size,                                                            \
                                               pack,                                                                   \
                                               linear_decode<Map>,                                                     \
                                               USES_DECAY | USES_DOCUMENTS}

#endif
