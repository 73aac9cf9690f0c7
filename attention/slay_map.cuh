// SLAY's features as a map of the linear core on the GPU: see slay_features.c. The vectors are projected as they are,
// by everything the map needs, and the sums are divided by the vectors' lengths; what follows is pointwise in them, but
// for the polynomials that mix their projections (nystrom's whitening, the convolution of tensorsketch).
#ifndef ATTENTION_SLAY_MAP_CUH
#define ATTENTION_SLAY_MAP_CUH

#include "slay_gpu.h"

#include <type_traits>

// Numbers of a row of projections that are mixed: whole pieces.
__host__ __device__ static inline int slay_mixed_stride(const SlayShape *shape) {
    return shape->mixed ? (shape->mixed + 15) / 16 * 16 + 4 : 0;
}

// ---- the map

// IS_PRODUCT: fusion tensor with a polynomial. IS_SIGNED: nystrom, maclaurin, rademacher, tensorsketch.
template <bool IS_PRODUCT_, bool IS_SIGNED_> struct SlayMap {
    static constexpr bool IS_PRODUCT = IS_PRODUCT_, IS_SIGNED = IS_SIGNED_;
    static constexpr bool OUTER_IS_FIXED = false, LOG_SCALED = false, IS_NARROW = false;
    LinearShape shape;
    SlayShape slay;
    SlayPacked packed;

    static SlayMap of(const AttentionConfig *config, const float *packed, const float *) {
        SlayMap map;
        map.slay = slay_shape(config);
        map.packed = slay_packed(packed, &map.slay, config);
        map.shape = {};
        map.shape.HS = config->HS;
        map.shape.outers = IS_PRODUCT ? map.slay.RM : 1;
        map.shape.inners = IS_PRODUCT ? map.slay.P : map.slay.RM;
        map.shape.scratch = 1 + slay_mixed_stride(&map.slay);
        if (map.slay.trains) {
            map.shape.projections = 16 * projection_pieces(map.slay.projections);
            map.shape.scratch += gradient_scratch(linear_width(config));
        }
        return map;
    }

    // Floats per row that project_gradient takes.
    static int gradient_scratch(int width) {
        typedef std::conditional_t<IS_SIGNED, float, floatX> Operand;
        return width == 32   ? dy_scratch<LinearTile<32, Operand, IS_NARROW>>
               : width == 64 ? dy_scratch<LinearTile<64, Operand, IS_NARROW>>
                             : dy_scratch<LinearTile<128, Operand, IS_NARROW>>;
    }

    // Adds the sums over all rows of the projections' gradients, sums (NH, shape.projections, width), to the
    // parameters'.
    void unpack(float *dparameters, const float *sums, const AttentionConfig *config, cudaStream_t stream) const {
        int width = linear_width(config);
        SlayProjectionGradients d = {sums, (size_t)shape.projections * width, width, 0, config->NH};
        slay_add_omega_gradient(dparameters, d, packed.projections, config, stream);
        slay_add_anchor_gradient(dparameters, d, config, stream);
    }

    // ---- what is where

    // The length's inverse for every row of the tile; then the mixed projections.
    template <typename Tile> __device__ static float *inverse_norms_at(LinearPlace place) { return place.scratch; }
    template <typename Tile> __device__ static float *mixed_at(LinearPlace place) { return place.scratch + Tile::ROWS; }
    template <typename Tile> __device__ LinearProjection projection_of(LinearPlace place) const {
        return projection_at(packed.projections, place.head, (slay.projections + 15) / 16, Tile::WIDTH);
    }
    __device__ SlayExponent exponent_of(LinearPlace place, int e) const {
        return packed.exponents[place.head * slay.RM + e];
    }
    // The pieces that have the slice's projections; all of those that are mixed.
    __device__ int first_piece(LinearPlace place) const {
        int pair = slay.fusion == FUSION_FLAT ? 2 : 1;
        return (IS_PRODUCT ? place.first_outer : pair * place.first_inner) / 16;
    }
    __device__ int end_piece(LinearPlace place) const {
        int pair = slay.fusion == FUSION_FLAT || slay.poly == POLY_MACLAURIN ? 2 : 1;
        int end = (IS_PRODUCT ? slay.polynomial : 0) + pair * (place.first_inner + place.inners);
        return ((slay.mixed ? slay.projections : end) + 15) / 16;
    }
    __device__ static bool has_outer(LinearPlace place, int e) {
        return e >= place.first_outer && e < place.first_outer + place.outers;
    }
    __device__ static bool has_inner(LinearPlace place, int p) {
        return p >= place.first_inner && p < place.first_inner + place.inners;
    }

    // ---- unit vectors

    // By all threads, four neighbouring lanes for each row; there after a barrier.
    template <typename Tile> __device__ void find_inverse_norms(float *inverse_norm, const floatX *x) const {
        for (int row = threadIdx.x / 4; row < Tile::ROWS; row += Tile::THREADS / 4) {
            float squares = 0;
#pragma unroll
            for (int c = 2 * (threadIdx.x % 4); c < Tile::WIDTH; c += 8) {
                float2 two = load_two(x + row * Tile::X_STRIDE + c);
                squares += two.x * two.x + two.y * two.y;
            }
            float norm = sqrtf(quad_sum(squares));
            if (threadIdx.x % 4 == 0) inverse_norm[row] = 1 / (norm < NORM_MIN ? NORM_MIN : norm);
        }
    }

    // dx, which is du / |x| so far, becomes (du - u <u, du>) / |x|
    template <typename Tile>
    __device__ void normalise_gradient(float *dx, const floatX *x, const float *inverse_norm) const {
        for (int row = threadIdx.x / 4; row < Tile::ROWS; row += Tile::THREADS / 4) {
            float along = 0, inverse = inverse_norm[row], has_gradient = inverse < 1 / NORM_MIN ? 1.0f : 0.0f;
            const floatX *from = x + row * Tile::X_STRIDE;
            float *to = dx + row * Tile::DX_STRIDE;
#pragma unroll
            for (int c = 2 * (threadIdx.x % 4); c < Tile::WIDTH; c += 8) {
                float2 two = load_two(from + c), d = load_two(to + c);
                along += two.x * inverse * d.x + two.y * inverse * d.y;
            }
            along = quad_sum(along) * inverse;
#pragma unroll
            for (int c = 2 * (threadIdx.x % 4); c < Tile::WIDTH; c += 8) {
                float2 two = load_two(from + c), d = load_two(to + c);
                store_two(to + c, (d.x - two.x * along) * has_gradient, (d.y - two.y * along) * has_gradient);
            }
        }
    }

    // ---- features of a unit vector's projections. Of two rows, `row` and row + 8, and two neighbouring projections, e
    // and e + 1: y[2 i + k] is that of row + 8 i and projection e + k.

    template <typename Tile> __device__ static float exponential(float exponent) {
        const float log2_e = 1.44269504088896341f;
        return sizeof(typename Tile::Operand) == 2 ? exp2_approximately(log2_e * slay_clipped(exponent))
                                                   : expf(slay_clipped(exponent));
    }

    // For the maps that are no products: the feature's square is of another projection, or there is none.
    __device__ float square_of(float y, float neighbour) const {
        return slay.fusion == FUSION_FLAT ? neighbour * neighbour : slay.fusion == FUSION_HADAMARD ? y * y : 1.0f;
    }

    template <typename Tile>
    __device__ void set_exponentials(LinearFactors<Tile> &to, int row, int e, const float (&y)[4],
                                     LinearPlace place) const {
        bool is_flat = !IS_PRODUCT && slay.fusion == FUSION_FLAT; // of two projections the second is the anchor's
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int f = is_flat ? e / 2 : e + k;
            if ((is_flat && k) || !(IS_PRODUCT ? has_outer(place, f) : has_inner(place, f))) continue;
            SlayExponent at = exponent_of(place, f);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float feature = at.coefficient * exponential<Tile>(y[2 * i + k] - at.shift);
                if constexpr (IS_PRODUCT)
                    to.set_outer(row + 8 * i, f - place.first_outer, feature);
                else
                    to.set_inner(row + 8 * i, f - place.first_inner,
                                 feature * square_of(y[2 * i + k], y[2 * i + 1 - k]));
            }
        }
    }

    // What reaches them. That of a product is the feature itself times its gradient, and none where the exponent was
    // clipped. (In bf16 a feature that is rounded to the limit counts as clipped: exponents within 2^-8 of it.)
    template <typename Tile>
    __device__ void outer_slopes(float (&dy)[4], const LinearGradients<Tile> &d, const LinearFactors<Tile> &from,
                                 int row, int e, LinearPlace place) const {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!has_outer(place, e + k)) continue;
            int f = e + k - place.first_outer;
            float coefficient = exponent_of(place, e + k).coefficient;
            typedef typename Tile::Operand Operand;
            float least = to_float(from_float<Operand>(coefficient * exponential<Tile>(-EXPONENT_MAX)));
            float most = to_float(from_float<Operand>(coefficient * exponential<Tile>(EXPONENT_MAX)));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float feature = from.outer_at(row + 8 * i, f);
                bool is_clipped = feature <= least || feature >= most;
                dy[2 * i + k] = is_clipped ? 0.0f : d.outer_at(row + 8 * i, f) * feature;
            }
        }
    }
    template <typename Tile>
    __device__ void inner_slopes(float (&dy)[4], const LinearGradients<Tile> &d, int row, int e, const float (&y)[4],
                                 LinearPlace place) const {
        bool is_flat = slay.fusion == FUSION_FLAT;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int f = is_flat ? e / 2 : e + k;
            bool is_anchor = is_flat && k;
            if (!has_inner(place, f)) continue;
            SlayExponent at = exponent_of(place, f);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float own = y[2 * i + k], neighbour = y[2 * i + 1 - k],
                      exponent = (is_anchor ? neighbour : own) - at.shift;
                float inside = fabsf(exponent) <= EXPONENT_MAX ? 1.0f : 0.0f;
                float slope = is_anchor ? 2 * own : inside * square_of(own, neighbour);
                if (slay.fusion == FUSION_HADAMARD) slope += 2 * own;
                dy[2 * i + k] = d.inner_at(row + 8 * i, f - place.first_inner) * slope * at.coefficient *
                                exponential<Tile>(exponent);
            }
        }
    }

    // ---- the polynomial's, numbers n and n + 1 of its projections

    template <typename Tile>
    __device__ void set_polynomials(LinearFactors<Tile> &to, int row, int n, const float (&y)[4],
                                    LinearPlace place) const {
        bool in_pairs = IS_SIGNED && slay.poly == POLY_MACLAURIN;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row + i / 2 * 8, p = in_pairs ? n / 2 : n + i % 2;
            float number = y[i], neighbour = y[i ^ 1];
            if (IS_SIGNED && slay.mixed) {
                if (n + i % 2 < slay.mixed)
                    mixed_at<Tile>(place)[at * slay_mixed_stride(&slay) + n + i % 2] =
                        slay.poly == POLY_NYSTROM ? slay.factor * number * number : number;
            } else if (has_inner(place, p) && !(in_pairs && i % 2)) {
                to.set_inner(at, p - place.first_inner, slay.factor * number * (in_pairs ? neighbour : number));
            }
        }
    }

    template <typename Tile>
    __device__ void polynomial_slopes(float (&dy)[4], const LinearGradients<Tile> &d, int row, int n,
                                      const float (&y)[4], LinearPlace place) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            dy[i] = polynomial_slope<Tile>(d, row + i / 2 * 8, n + i % 2, y[i], y[i ^ 1], place);
    }
    template <typename Tile>
    __device__ float polynomial_slope(const LinearGradients<Tile> &d, int row, int i, float y, float neighbour,
                                      LinearPlace place) const {
        const float *mixed = mixed_at<Tile>(place) + row * slay_mixed_stride(&slay);
        if (IS_SIGNED && slay.poly == POLY_NYSTROM) return i < slay.P ? 2 * slay.factor * y * mixed[i] : 0.0f;
        if (IS_SIGNED && slay.poly == POLY_TENSORSKETCH)
            return i < 2 * slay.P ? slay.factor * correlation(d, row, i, mixed, place) : 0.0f;
        bool in_pairs = IS_SIGNED && slay.poly == POLY_MACLAURIN;
        int p = in_pairs ? i / 2 : i;
        if (!has_inner(place, p)) return 0;
        return slay.factor * d.inner_at(row, p - place.first_inner) * (in_pairs ? neighbour : 2 * y);
    }

    // ---- tensorsketch: the circular convolution of a row's two sketches, which are one after the other in `mixed`

    template <typename Tile> __device__ void convolve(LinearFactors<Tile> &to, LinearPlace place) const {
        int P = slay.P, stride = slay_mixed_stride(&slay);
        for (int i = threadIdx.x; i < Tile::ROWS * place.inners; i += Tile::THREADS) {
            int row = i / place.inners, n = i % place.inners + place.first_inner;
            const float *a = mixed_at<Tile>(place) + row * stride, *b = a + P;
            float sum = 0;
            for (int m = 0; m < P; m++) sum += a[m] * b[n >= m ? n - m : n - m + P];
            to.set_inner(row, n - place.first_inner, slay.factor * sum);
        }
    }

    // What reaches number i of the two sketches, through the slice's features.
    template <typename Tile>
    __device__ float correlation(const LinearGradients<Tile> &d, int row, int i, const float *sketches,
                                 LinearPlace place) const {
        int P = slay.P, m = i < P ? i : i - P;
        const float *other = sketches + (i < P ? P : 0);
        float sum = 0;
        for (int p = 0; p < place.inners; p++) {
            int n = place.first_inner + p;
            sum += d.inner_at(row, p) * other[n >= m ? n - m : n - m + P];
        }
        return sum;
    }

    // ---- nystrom: the features before whitening are in `mixed`, and their gradients

    // inner = W mixed
    template <typename Tile> __device__ void whiten(LinearFactors<Tile> &to, LinearPlace place) const {
        int pieces = (slay.P + 15) / 16, stride = slay_mixed_stride(&slay), first_row = row_tile_of_warp<Tile>() * 16;
        int end = (place.first_inner + place.inners + 7) / 8;
        for (int octet = place.first_inner / 8 + part_of_warp<Tile>(); octet < end; octet += Tile::PARTS) {
            SumFragment sums = {};
            for (int piece = 0; piece < pieces; piece++) {
                LeftFragment<float> a;
                load_left(a, mixed_at<Tile>(place) + first_row * stride + piece * 16, stride);
                float4 b = packed.whitening[(octet * pieces + piece) * 32 + tile_lane()];
                multiply_add(sums, a, RightFragment<float>{{b.x, b.y, b.z, b.w}});
            }
            for (int k = 0; k < 4; k++) {
                int p = octet * 8 + sum_column(k);
                if (has_inner(place, p)) to.set_inner(first_row + sum_row(k), p - place.first_inner, sums.x[k]);
            }
        }
    }

    // mixed = W^T d_inner
    template <typename Tile> __device__ void whiten_gradient(const LinearGradients<Tile> &d, LinearPlace place) const {
        int pieces = (slay.P + 15) / 16, stride = slay_mixed_stride(&slay), first_row = row_tile_of_warp<Tile>() * 16;
        const float4 *transposed = packed.whitening + pieces * pieces * 2 * 32;
        int end = (place.first_inner + place.inners + 15) / 16, lane = tile_lane();
        for (int octet = part_of_warp<Tile>(); octet < 2 * pieces; octet += Tile::PARTS) {
            SumFragment sums = {};
            for (int piece = place.first_inner / 16; piece < end; piece++) {
                LeftFragment<float> a;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int row = first_row + lane / 4 + i / 2 % 2 * 8, p = piece * 16 + 2 * (lane % 4) + i % 2 + i / 4 * 8;
                    a.x[i] = has_inner(place, p) ? d.inner_at(row, p - place.first_inner) : 0.0f;
                }
                float4 b = transposed[(octet * pieces + piece) * 32 + lane];
                multiply_add(sums, a, RightFragment<float>{{b.x, b.y, b.z, b.w}});
            }
            store_sums(mixed_at<Tile>(place) + first_row * stride + octet * 8, stride, sums);
        }
    }

    // Nothing of what pads a row's projections to whole pieces may reach a product.
    template <typename Tile> __device__ void clear_padding(LinearPlace place) const {
        int stride = slay_mixed_stride(&slay), padding = stride - slay.mixed;
        for (int i = threadIdx.x; i < Tile::ROWS * padding; i += Tile::THREADS)
            mixed_at<Tile>(place)[i / padding * stride + slay.mixed + i % padding] = 0;
    }

    // ---- all of it

    // Calls use(e, unit, half) for both pairs of neighbouring projections that a lane has of a piece, divided by the
    // rows' lengths.
    template <typename Use>
    __device__ static void for_unit_pairs(const SumFragment (&y)[2], int projection, float inverse, float inverse8,
                                          Use use) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *x = y[half].x;
            const float unit[4] = {x[0] * inverse, x[1] * inverse, x[2] * inverse8, x[3] * inverse8};
            use(projection + 8 * half, unit, half);
        }
    }

    // dy (16, 16): what reaches the projections of a piece, over the lengths. Only polynomials, and maps that are no
    // products, need the projections themselves.
    template <typename Tile>
    __device__ void projection_slopes(SumFragment (&dy)[2], const LinearGradients<Tile> &d,
                                      const LinearFactors<Tile> &from, const floatX *x, LinearProjection projection,
                                      const float *inverse_norm, int row, int piece, LinearPlace place) const {
        SumFragment y[1][2] = {};
        float inverse[2] = {inverse_norm[row], inverse_norm[row + 8]};
        if (!IS_PRODUCT || piece * 16 + 15 >= slay.polynomial)
            project_piece<Tile>(y, x + row_tile_of_warp<Tile>() * 16 * Tile::X_STRIDE, projection, piece);
        for_unit_pairs(y[0], piece * 16 + sum_column(0), inverse[0], inverse[1],
                       [&](int e, const float(&unit)[4], int half) {
                           float slope[4] = {};
                           if (!IS_PRODUCT)
                               inner_slopes<Tile>(slope, d, row, e, unit, place);
                           else if (e < slay.RM)
                               outer_slopes<Tile>(slope, d, from, row, e, place);
                           else if (e >= slay.polynomial)
                               polynomial_slopes<Tile>(slope, d, row, e - slay.polynomial, unit, place);
#pragma unroll
                           for (int i = 0; i < 4; i++)
                               dy[half].x[i] = row + i / 2 * 8 < place.present ? slope[i] * inverse[i / 2] : 0.0f;
                       });
    }

    template <typename Tile>
    __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const {
        float *inverse_norm = inverse_norms_at<Tile>(place);
        find_inverse_norms<Tile>(inverse_norm, x);
        __syncthreads();
        project_pieces<Tile>(x, projection_of<Tile>(place), first_piece(place), end_piece(place),
                             [&](int row, int projection, const SumFragment(&y)[2]) {
                                 for_unit_pairs(y, projection, inverse_norm[row], inverse_norm[row + 8],
                                                [&](int e, const float(&unit)[4], int) {
                                                    if (!IS_PRODUCT || e < slay.RM)
                                                        set_exponentials<Tile>(to, row, e, unit, place);
                                                    else if (e >= slay.polynomial)
                                                        set_polynomials<Tile>(to, row, e - slay.polynomial, unit,
                                                                              place);
                                                });
                             });
        if (!IS_SIGNED || !slay.mixed) return;
        clear_padding<Tile>(place);
        __syncthreads();
        if (slay.poly == POLY_NYSTROM)
            whiten<Tile>(to, place);
        else
            convolve<Tile>(to, place);
    }

    template <typename Tile>
    __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile> from, const floatX *x,
                             LinearPlace place) const {
        float *inverse_norm = inverse_norms_at<Tile>(place);
        LinearProjection projection = projection_of<Tile>(place);
        find_inverse_norms<Tile>(inverse_norm, x);
        if (IS_SIGNED && slay.poly == POLY_NYSTROM) whiten_gradient<Tile>(d, place);
        __syncthreads();
        if (IS_SIGNED && slay.poly == POLY_TENSORSKETCH) {
            project_rows<Tile>(x, projection, slay.polynomial / 16, end_piece(place), [&](int row, int e, float y) {
                int i = e - slay.polynomial;
                if (i >= 0 && i < slay.mixed)
                    mixed_at<Tile>(place)[row * slay_mixed_stride(&slay) + i] = y * inverse_norm[row];
            });
            __syncthreads();
        }
        gather_gradient<Tile>(dx, x, projection, first_piece(place), end_piece(place), place.d_projections,
                              mixed_at<Tile>(place) + Tile::ROWS * slay_mixed_stride(&slay),
                              [&](SumFragment(&dy)[2], int row, int piece, bool) {
                                  projection_slopes<Tile>(dy, d, from, x, projection, inverse_norm, row, piece, place);
                              });
        normalise_gradient<Tile>(dx, x, inverse_norm);
    }
};

#endif
