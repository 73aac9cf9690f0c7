// rff on the GPU: random Fourier features phi(x) = sqrt(2/M) cos(<omega_m, x> + b_m). See rff.c.
#include "linear_passes.cuh"

constexpr float PI = 3.14159265358979f;

// Projections and biases are packed in half turns, in which cosines of large angles need no more care than others.
struct RffMap {
    static constexpr bool IS_PRODUCT = false, OUTER_IS_FIXED = false, IS_SIGNED = true, LOG_SCALED = false;
    static constexpr bool IS_NARROW = false;
    LinearShape shape;
    const float *packed, *bias; // (NH, M)
    float coefficient;

    static RffMap of(const AttentionConfig *config, const float *packed, const float *) {
        RffMap map;
        map.shape = {};
        map.shape.HS = config->HS, map.shape.outers = 1, map.shape.inners = config->M;
        map.packed = packed;
        map.bias = packed + (size_t)config->NH * projection_size(config->M, linear_width(config));
        map.coefficient = sqrtf(2 / (float)config->M);
        return map;
    }

    // The pieces that have the slice's projections.
    __device__ static int first_piece(LinearPlace place) { return place.first_inner / 16; }
    __device__ static int end_piece(LinearPlace place) { return (place.first_inner + place.inners + 15) / 16; }
    __device__ static bool has(LinearPlace place, int m) {
        return m >= place.first_inner && m < place.first_inner + place.inners;
    }
    template <typename Tile> __device__ LinearProjection projection_of(LinearPlace place) const {
        return projection_at(packed, place.head, (shape.inners + 15) / 16, Tile::WIDTH);
    }

    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        const float *b = bias + place.head * shape.inners;
        project_rows<Tile>(x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                           [&](int row, int m, float y) {
                               if (has(place, m))
                                   to.set_inner(row, m - place.first_inner, coefficient * cospif(y + b[m]));
                           });
    }

    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile>, const floatX *x,
                             LinearPlace place) const {
        const float *b = bias + place.head * shape.inners;
        project_gradient<Tile>(dx, x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                               [&](int row, int m, float y, bool) {
                                   if (!has(place, m)) return 0.0f;
                                   return d.inner_at(row, m - place.first_inner) * -coefficient * PI * sinpif(y + b[m]);
                               });
    }
};

// ---- packing

struct RffOmega {
    const float *constants; // (NH, HS, M)
    int HS, M;
    __device__ float operator()(int head, int m, int c) const {
        return constants[((size_t)head * HS + c) * M + m] / PI;
    }
};

__global__ static void pack_bias_kernel(float *packed, const float *bias, int count) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) packed[i] = bias[i] / PI;
}

static size_t packed_size(const AttentionConfig *config) {
    return (size_t)config->NH * (projection_size(config->M, linear_width(config)) + config->M);
}

static void pack(float *packed, const float *constants, const float *, const AttentionConfig *config,
                 cudaStream_t stream) {
    const int count = config->NH * config->M, threads = 256;
    pack_projections(packed, RffOmega{constants, config->HS, config->M}, config->M, config, stream);
    pack_bias_kernel<<<(count + threads - 1) / threads, threads, 0, stream>>>(
        packed + (size_t)config->NH * projection_size(config->M, linear_width(config)),
        constants + (size_t)count * config->HS, count);
    launch_check();
}
LINEAR_GPU_ATTENTION(rff, RffMap, packed_size, pack);
