// cosformer on the GPU: relu features, and as outer factor (cos, sin) of the position's angle. See cosformer.c, whose
// inner and outer features are exchanged here: octets of features are octets of the inner ones.
#include "linear_passes.cuh"

struct CosformerMap {
    static constexpr bool IS_PRODUCT = true, OUTER_IS_FIXED = true, IS_SIGNED = false, LOG_SCALED = false;
    static constexpr bool IS_NARROW = false;
    LinearShape shape;
    float horizon;

    static CosformerMap of(const AttentionConfig *config, const float *, const float *) {
        return {{config->HS, 2, config->HS, 0, 0}, (float)config->max_T};
    }
    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        for_each_number<Tile>(place.inners, [&](int row, int c) {
            float at = to_float(x[row * Tile::X_STRIDE + place.first_inner + c]);
            float positive = at > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : at;
            to.set_inner(row, c, at <= 0 ? 0.0f : positive); // NaN stays NaN
        });
        for (int i = threadIdx.x; i < Tile::ROWS * place.outers; i += Tile::THREADS) {
            float half_turns = 0.5f * (float)(place.position + i % Tile::ROWS) / horizon;
            int e = i / Tile::ROWS;
            to.set_outer(i % Tile::ROWS, e, place.first_outer + e ? sinpif(half_turns) : cospif(half_turns));
        }
    }
    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile> from, const floatX *,
                             LinearPlace place) const {
        for_each_number<Tile>(shape.HS, [&](int row, int c) {
            int p = c - place.first_inner;
            bool has_slope = p >= 0 && p < place.inners && !(from.inner_at(row, p) <= 0); // NaN gets a gradient
            dx[row * Tile::DX_STRIDE + c] = has_slope ? d.inner_at(row, p) : 0.0f;
        });
    }
};
LINEAR_GPU_ATTENTION(cosformer, CosformerMap, NULL, NULL);
