// favor on the GPU: random projections, relu or exp features. See favor.c.
#include "linear_passes.cuh"

// What both maps are: M features of as many projections, which are packed.
struct FavorProjection {
    static constexpr bool IS_PRODUCT = false, OUTER_IS_FIXED = false, IS_SIGNED = false, IS_NARROW = false;
    LinearShape shape;
    const float *packed;

    // The pieces that have the slice's projections.
    __device__ static int first_piece(LinearPlace place) { return place.first_inner / 16; }
    __device__ static int end_piece(LinearPlace place) { return (place.first_inner + place.inners + 15) / 16; }
    // Projection m's place in the slice; below 0 when it is not there.
    __device__ static int in_slice(LinearPlace place, int m) {
        return m < place.first_inner + place.inners ? m - place.first_inner : -1;
    }
    template <typename Tile> __device__ LinearProjection projection_of(LinearPlace place) const {
        return projection_at(packed, place.head, (shape.inners + 15) / 16, Tile::WIDTH);
    }
};

// ---- relu

struct FavorReluMap : FavorProjection {
    static constexpr bool LOG_SCALED = false;

    static FavorReluMap of(const AttentionConfig *config, const float *packed, const float *) {
        FavorReluMap map;
        map.shape = {};
        map.shape.HS = config->HS, map.shape.outers = 1, map.shape.inners = config->M;
        map.packed = packed;
        return map;
    }

    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        project_rows<Tile>(x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                           [&](int row, int m, float y) {
                               float positive = y > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : y;
                               int p = in_slice(place, m);
                               if (p >= 0) to.set_inner(row, p, y <= 0 ? 0.0f : positive); // NaN stays NaN
                           });
    }

    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile>, const floatX *x,
                             LinearPlace place) const {
        project_gradient<Tile>(dx, x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                               [&](int row, int m, float y, bool) {
                                   int p = in_slice(place, m);
                                   return p < 0 || y <= 0 ? 0.0f : d.inner_at(row, p); // NaN keeps its gradient
                               });
    }
};

// ---- exp: features relative to the row's largest exponent, which is part of its log scale

struct FavorExpMap : FavorProjection {
    static constexpr bool LOG_SCALED = true;
    float coefficient, per_square; // 1 / sqrt(M), 1 / sqrt(HS)

    static FavorExpMap of(const AttentionConfig *config, const float *packed, const float *) {
        FavorExpMap map;
        map.shape = {};
        map.shape.HS = config->HS, map.shape.outers = 1, map.shape.inners = config->M;
        map.shape.scratch = 2 * PARTS_MAX + 2;
        map.packed = packed;
        map.coefficient = 1 / sqrtf((float)config->M);
        map.per_square = 1 / sqrtf((float)config->HS);
        return map;
    }

    // ---- scratch: a row's largest exponent and its place, so far those of each part; a number of each row
    enum { PARTS_MAX = 8 };
    template <typename Tile> __device__ static float *largest_at(LinearPlace place) {
        return place.scratch; // (PARTS, ROWS)
    }
    template <typename Tile> __device__ static int *index_at(LinearPlace place) {
        return (int *)(place.scratch + Tile::PARTS * Tile::ROWS); // (PARTS, ROWS)
    }
    template <typename Tile> __device__ static float *sums_at(LinearPlace place) {
        return place.scratch + 2 * Tile::PARTS * Tile::ROWS; // (ROWS)
    }

    typedef struct {
        float value;
        int index;
    } Largest;

    // The larger of two; of equals the first. NaN is never larger.
    __device__ static Largest larger(Largest a, Largest b) {
        return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
    }
    __device__ static Largest quad_largest(Largest mine) {
        for (int offset = 1; offset < 4; offset *= 2) {
            Largest other = {__shfl_xor_sync(0xffffffffu, mine.value, offset),
                             __shfl_xor_sync(0xffffffffu, mine.index, offset)};
            mine = larger(mine, other);
        }
        return mine;
    }

    // Leaves every row's largest exponent, over all projections, and its place in the first part's scratch. Ends with a
    // barrier.
    template <typename Tile> __device__ void find_largest(const floatX *x, LinearPlace place) const {
        static_assert(Tile::PARTS <= PARTS_MAX, "scratch for every part");
        float *value = largest_at<Tile>(place);
        int *index = index_at<Tile>(place), M = shape.inners, part = part_of_warp<Tile>();
        Largest upper = {-INFINITY, M}, lower = {-INFINITY, M}; // of the lane's two rows
        project_rows<Tile>(x, projection_of<Tile>(place), 0, (M + 15) / 16, [&](int row, int m, float y) {
            Largest found = {m < M ? y : -INFINITY, m};
            if (row % 16 < 8)
                upper = larger(upper, found);
            else
                lower = larger(lower, found);
        });
        for (int half = 0; half < 2; half++) {
            Largest found = quad_largest(half ? lower : upper);
            int at = part * Tile::ROWS + row_tile_of_warp<Tile>() * 16 + sum_row(2 * half);
            if (tile_lane() % 4 == 0) value[at] = found.value, index[at] = found.index;
        }
        __syncthreads();
        for (int row = threadIdx.x; row < Tile::ROWS; row += Tile::THREADS) {
            Largest all = {value[row], index[row]};
            for (int i = 1; i < Tile::PARTS; i++)
                all = larger(all, {value[i * Tile::ROWS + row], index[i * Tile::ROWS + row]});
            value[row] = all.value, index[row] = all.index;
        }
        __syncthreads();
    }

    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        float *largest = largest_at<Tile>(place), *squares = sums_at<Tile>(place);
        sum_rows<Tile>(squares, shape.HS, [&](int row, int c) {
            float number = to_float(x[row * Tile::X_STRIDE + c]);
            return number * number;
        });
        find_largest<Tile>(x, place);
        for (int row = threadIdx.x; row < Tile::ROWS; row += Tile::THREADS)
            to.log_scale[row] = largest[row] - squares[row] * per_square / 2;
        project_rows<Tile>(x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                           [&](int row, int m, float y) {
                               int p = in_slice(place, m);
                               if (p >= 0) to.set_inner(row, p, coefficient * expf(y - largest[row]));
                           });
    }

    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile>, const floatX *x,
                             LinearPlace place) const {
        float *largest = largest_at<Tile>(place), *total = sums_at<Tile>(place), upper = 0, lower = 0;
        const int *index = index_at<Tile>(place);
        find_largest<Tile>(x, place);
        project_gradient<Tile>(dx, x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                               [&](int row, int m, float y, bool is_first) {
                                   int p = in_slice(place, m);
                                   if (p < 0) return 0.0f;
                                   float dy = d.inner_at(row, p) * coefficient * expf(y - largest[row]) +
                                              (m == index[row] ? d.log_scale[row] : 0.0f);
                                   if (is_first) (row % 16 < 8 ? upper : lower) += dy;
                                   return dy;
                               });
        for (int turn = 0; turn < Tile::PARTS; turn++) { // one part after the other: in a fixed order
            for (int half = 0; half < 2; half++) {
                float sum = quad_sum(half ? lower : upper);
                float *at = total + row_tile_of_warp<Tile>() * 16 + sum_row(2 * half);
                if (turn == part_of_warp<Tile>() && tile_lane() % 4 == 0) *at = (turn ? *at : 0.0f) + sum;
            }
            __syncthreads();
        }
        for_each_number<Tile>(shape.HS, [&](int row, int c) {
            dx[row * Tile::DX_STRIDE + c] -= total[row] * per_square * to_float(x[row * Tile::X_STRIDE + c]);
        });
    }
};

// ---- packing

struct FavorOmega {
    const float *constants; // (NH, HS, M)
    int HS, M;
    float scale;
    __device__ float operator()(int head, int m, int c) const {
        return scale * constants[((size_t)head * HS + c) * M + m];
    }
};

static size_t packed_size(const AttentionConfig *config) {
    return (size_t)config->NH * projection_size(config->M, linear_width(config));
}

static void pack(float *packed, const float *constants, const float *, const AttentionConfig *config,
                 cudaStream_t stream) {
    float scale = config->features == FEATURES_EXP ? 1 / sqrtf(sqrtf((float)config->HS)) : 1;
    pack_projections(packed, FavorOmega{constants, config->HS, config->M, scale}, config->M, config, stream);
}

// ---- one of the two

#define BY_FEATURES(name, config, ...)                                                                                 \
    ((config)->features == FEATURES_EXP ? linear_##name<FavorExpMap>(__VA_ARGS__)                                      \
                                        : linear_##name<FavorReluMap>(__VA_ARGS__))

static size_t saved_size(const AttentionConfig *config) {
    return BY_FEATURES(saved_size, config, config);
}
static size_t work_size(const AttentionConfig *config) {
    return BY_FEATURES(work_size, config, config);
}
static size_t cache_size(const AttentionConfig *config) {
    return BY_FEATURES(cache_size, config, config);
}
static void forward(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                    float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_FEATURES(forward, config, out, saved, qkv, packed, parameters, work, config, stream);
}
static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *packed, const float *parameters, float *work,
                     const AttentionConfig *config, cudaStream_t stream) {
    BY_FEATURES(backward, config, dqkv, dparameters, dout, qkv, out, saved, packed, parameters, work, config, stream);
}
static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *packed,
                 const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_FEATURES(step, config, out, cache, pos, n, qkv, packed, parameters, work, config, stream);
}
static void decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *packed,
                   const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_FEATURES(decode, config, out, cache, position, qkv, packed, parameters, work, config, stream);
}

extern "C" const Attention attention_favor;
extern const AttentionGPU attention_gpu_favor;
const AttentionGPU attention_gpu_favor = {
    &attention_favor, saved_size, work_size,    cache_size, forward,
    backward,         step,       linear_check, NULL,       linear_collect_floored_rows,
    packed_size,      pack,       decode,       USES_DECAY | USES_DOCUMENTS};
