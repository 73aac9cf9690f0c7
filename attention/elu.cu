// elu on the GPU: phi(x) = x + 1 for x > 0, exp(x) below. See elu.c.
#include "linear_passes.cuh"

struct EluMap {
    static constexpr bool IS_PRODUCT = false, OUTER_IS_FIXED = false, IS_SIGNED = false, LOG_SCALED = false;
    static constexpr bool IS_NARROW = true;
    LinearShape shape;

    static EluMap of(const AttentionConfig *config, const float *, const float *) {
        return {{config->HS, 1, config->HS, 0, 0}};
    }
    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        for_each_number<Tile>(place.inners, [&](int row, int c) {
            float at = to_float(x[row * Tile::X_STRIDE + place.first_inner + c]);
            float above = at < LINEAR_FEATURE_MAX ? at : LINEAR_FEATURE_MAX;
            to.set_inner(row, c, at > 0 ? above + 1 : expf(at));
        });
    }
    // The slope is 1 above zero, where phi > 1, and phi itself below.
    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile> from, const floatX *,
                             LinearPlace place) const {
        for_each_number<Tile>(shape.HS, [&](int row, int c) {
            int p = c - place.first_inner;
            bool is_there = p >= 0 && p < place.inners;
            float phi = is_there ? from.inner_at(row, p) : 0.0f;
            dx[row * Tile::DX_STRIDE + c] = is_there ? d.inner_at(row, p) * (phi > 1 ? 1.0f : phi) : 0.0f;
        });
    }
};
LINEAR_GPU_ATTENTION(elu, EluMap, NULL, NULL);
