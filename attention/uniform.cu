// uniform on the GPU: every row is the plain average of the values so far. See uniform.c.
#include "linear_passes.cuh"

struct UniformMap {
    static constexpr bool IS_PRODUCT = false, OUTER_IS_FIXED = false, IS_SIGNED = false, LOG_SCALED = false;
    static constexpr bool IS_NARROW = true;
    LinearShape shape;

    static UniformMap of(const AttentionConfig *config, const float *, const float *) {
        return {{config->HS, 1, 1, 1, 0}};
    }
    // 1, unless x holds NaN, which must not disappear.
    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        sum_rows<Tile>(place.scratch, shape.HS, [&](int row, int c) {
            float at = to_float(x[row * Tile::X_STRIDE + c]);
            return at - at;
        });
        __syncthreads();
        for (int row = threadIdx.x; row < Tile::ROWS; row += Tile::THREADS)
            to.set_inner(row, 0, 1 + place.scratch[row]);
    }
    // 0, except for NaN.
    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile>, const floatX *,
                             LinearPlace) const {
        for_each_number<Tile>(shape.HS,
                              [&](int row, int c) { dx[row * Tile::DX_STRIDE + c] = 0 * d.inner_at(row, 0); });
    }
};
LINEAR_GPU_ATTENTION(uniform, UniformMap, NULL, NULL);
