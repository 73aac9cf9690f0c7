#include "slay_features.h"
#include "range.h"
#include "core/base/vector_math.h"

#include <string.h>

#define EXPONENT_MAX ((real)20)    // exponents are clipped to +-20, without a gradient beyond
#define NORM_MIN     ((real)1e-12) // shorter vectors are divided by this, and get no gradient

int slay_polynomial(const AttentionConfig *config) {
    if (config->fusion != FUSION_TENSOR) return POLY_NONE;
    return config->poly == POLY_RADEMACHER ? POLY_MACLAURIN : config->poly;
}

// ---- constants by name

extern const Attention attention_slay;

SlayConstants slay_constants_at(const real *constants, const real *parameters, const AttentionConfig *config) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    SlayConstants found = {0};
    const struct {
        const char *name;
        const real **place;
    } places[] = {{"omega", &found.omega},
                  {"quad_nodes", &found.nodes},
                  {"quad_weights", &found.weights},
                  {"anchor_vectors", &found.anchors},
                  {"nystrom_anchors", &found.anchors},
                  {"flat_anchors", &found.anchors},
                  {"flat_scales", &found.scales},
                  {"nystrom_W", &found.whitening},
                  {"rm_r1", &found.factor1},
                  {"rm_r2", &found.factor2},
                  {"ts_hash1", &found.hash1},
                  {"ts_hash2", &found.hash2},
                  {"ts_sign1", &found.sign1},
                  {"ts_sign2", &found.sign2}};
    for (int trains = 0; trains < 2; trains++) {
        const real *block = trains ? parameters : constants;
        int n = (trains ? attention_parameters : attention_constants)(&attention_slay, config, list, &total);
        for (int i = 0; block && i < n; i++)
            for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
                if (strcmp(list[i].name, places[p].name) == 0) *places[p].place = block + list[i].offset;
    }
    return found;
}

static int learns(const AttentionConfig *config, Learn what) {
    return config->learn == (int)what || config->learn == LEARN_BOTH;
}

int slay_tensors(const AttentionConfig *config, AttentionTensor list[ATTENTION_TENSORS_MAX]) {
    size_t R = (size_t)config->R, M = (size_t)config->M, P = (size_t)config->P;
    size_t NH = (size_t)config->NH, HS = (size_t)config->HS;
    int n = 0, anchors_train = learns(config, LEARN_ANCHORS);
    list[n++] =
        (AttentionTensor){.name = "omega", .rank = 4, .shape = {R, NH, HS, M}, .trains = learns(config, LEARN_OMEGA)};
    if (config->fusion == FUSION_FLAT) {
        list[n++] = (AttentionTensor){.name = "flat_scales", .rank = 2, .shape = {NH, M}};
        list[n++] = (AttentionTensor){.name = "flat_anchors", .rank = 3, .shape = {NH, M, HS}, .trains = anchors_train};
        return n;
    }
    list[n++] = (AttentionTensor){.name = "quad_nodes", .rank = 1, .shape = {R}};
    list[n++] = (AttentionTensor){.name = "quad_weights", .rank = 1, .shape = {R}};
    switch (slay_polynomial(config)) {
    case POLY_ANCHOR:
        list[n++] = (AttentionTensor){.name = "anchor_vectors", .rank = 2, .shape = {P, HS}, .trains = anchors_train};
        break;
    case POLY_NYSTROM:
        list[n++] = (AttentionTensor){.name = "nystrom_anchors", .rank = 2, .shape = {P, HS}};
        list[n++] = (AttentionTensor){.name = "nystrom_W", .rank = 2, .shape = {P, P}};
        break;
    case POLY_MACLAURIN:
        list[n++] = (AttentionTensor){.name = "rm_r1", .rank = 2, .shape = {P, HS}};
        list[n++] = (AttentionTensor){.name = "rm_r2", .rank = 2, .shape = {P, HS}};
        break;
    case POLY_TENSORSKETCH:
        list[n++] = (AttentionTensor){.name = "ts_hash1", .rank = 1, .shape = {HS}};
        list[n++] = (AttentionTensor){.name = "ts_hash2", .rank = 1, .shape = {HS}};
        list[n++] = (AttentionTensor){.name = "ts_sign1", .rank = 1, .shape = {HS}};
        list[n++] = (AttentionTensor){.name = "ts_sign2", .rank = 1, .shape = {HS}};
        break;
    default:
        break;
    }
    return n;
}

// ---- the shape of a map: which projections, how much tape

typedef struct {
    int poly, fusion;
    int HS, RM, P;
    int projections;   // rows of the projection matrix: R*M random ones, then the polynomial's or the flat anchors
    int spare;         // rows of tape that the polynomial needs for itself
    int first_trained; // of the projections whose vectors are parameters ...
    int trained;       // ... and how many there are
    real factor;       // of the polynomial features
} Shape;

static Shape shape_of(const AttentionConfig *config) {
    Shape shape = {.poly = slay_polynomial(config),
                   .fusion = config->fusion,
                   .HS = config->HS,
                   .RM = config->R * config->M,
                   .P = config->P,
                   .factor = 1 / real_sqrt((real)config->P)};
    real d = (real)config->HS, scale = 1; // what the polynomial's scores lack to be of size x^2
    switch (shape.poly) {
    case POLY_ANCHOR:
        shape.projections = shape.P;
        scale = real_sqrt(d * (d + 2));
        break;
    case POLY_NYSTROM:
        shape.projections = shape.spare = shape.P;
        scale = real_sqrt((real)shape.P);
        break;
    case POLY_MACLAURIN:
        shape.projections = 2 * shape.P;
        scale = d;
        break;
    case POLY_TENSORSKETCH:
        shape.projections = 2 * shape.P;
        shape.spare = shape.P;
        scale = real_sqrt((real)shape.P);
        break;
    default:
        break;
    }
    shape.projections += shape.fusion == FUSION_FLAT ? 2 * shape.RM : shape.RM;
    shape.first_trained = learns(config, LEARN_OMEGA) ? 0 : shape.RM;
    shape.trained = (learns(config, LEARN_ANCHORS) ? shape.projections : shape.RM) - shape.first_trained;
    if (config->scale_features) shape.factor *= scale;
    return shape;
}

typedef struct {       // one head's constants as features and gradient want them
    real *projection;  // (projections, HS)
    real *shift;       // (RM) s_r, or s_j of the flat fusion
    real *coefficient; // (RM) sqrt(w_r / M), or c of the flat fusion
    real *square;      // (RM) hadamard: 1 / (2 s_r sqrt(M)), which makes y^2 / sqrt(M) of a squared projection; flat: 1
    real *whitening;   // (P, P)
} Packed;

static Packed packed_at(real *base, const Shape *shape) {
    Packed packed = {.projection = base};
    packed.shift = packed.projection + (size_t)shape->projections * shape->HS;
    packed.coefficient = packed.shift + shape->RM;
    packed.square = packed.coefficient + shape->RM;
    packed.whitening = packed.square + shape->RM;
    return packed;
}

typedef struct {        // the tape
    real *unit;         // (HS, TILE) u
    real *inverse_norm; // (TILE) 1 / |x|, or 0 where there is no gradient
    real *projected;    // (projections, TILE)
    real *spare;        // (spare, TILE)
    real *unit_rows;    // (TILE, tile_lanes(HS)) u once more, row-major, where projections are trained
} Tape;

static Tape tape_at(real *base, const Shape *shape) {
    Tape tape = {.unit = base};
    tape.inverse_norm = tape.unit + shape->HS * TILE;
    tape.projected = tape.inverse_norm + TILE;
    tape.spare = tape.projected + shape->projections * TILE;
    tape.unit_rows = tape.spare + shape->spare * TILE;
    return tape;
}

// ---- packing

// A sketch is a projection too: row h(i) has sign(i) in column i. Columns from a damaged file are not trusted.
static void pack_sketch(real *projection, const real *hash, const real *sign, int P, int HS) {
    memset(projection, 0, sizeof(real) * (size_t)P * HS);
    for (int i = 0; i < HS; i++) {
        int row = hash[i] >= 0 && hash[i] < P ? (int)hash[i] : 0;
        projection[(size_t)row * HS + i] = sign[i];
    }
}

static void pack_polynomial(Packed packed, SlayConstants constants, const Shape *shape) {
    real *projection = packed.projection + (size_t)shape->RM * shape->HS;
    size_t size = (size_t)shape->P * shape->HS;
    switch (shape->poly) {
    case POLY_NYSTROM:
        memcpy(packed.whitening, constants.whitening, sizeof(real) * (size_t)shape->P * shape->P);
        memcpy(projection, constants.anchors, sizeof(real) * size);
        break;
    case POLY_ANCHOR:
        memcpy(projection, constants.anchors, sizeof(real) * size);
        break;
    case POLY_MACLAURIN:
        memcpy(projection, constants.factor1, sizeof(real) * size);
        memcpy(projection + size, constants.factor2, sizeof(real) * size);
        break;
    case POLY_TENSORSKETCH:
        pack_sketch(projection, constants.hash1, constants.sign1, shape->P, shape->HS);
        pack_sketch(projection + size, constants.hash2, constants.sign2, shape->P, shape->HS);
        break;
    default:
        break;
    }
}

// The flat fusion has M features phi_j(u) = c <a_j,u>^2 exp(sqrt(2 s_j) <omega_j,u> - s_j). In the mean of a product
// phi_j(u) phi_j(v) over the draws, with x = <u,v>, the anchor's part is (1 + 2x^2) / (d (d + 2)) and omega's is
// exp(2 s_j x), whose mean over s_j, exponential with mean 1 / (2 + eps), is (2 + eps) / (2 + eps - 2x). So with
// c^2 = d (d + 2) / (M (2 + eps)) the mean of a score is (1 + 2x^2) / (2 + eps - 2x), which is what the tensor fusion's
// scaled anchors and quadrature aim at.
static real flat_coefficient(const AttentionConfig *config) {
    real d = (real)config->HS, scale = config->scale_features ? d * (d + 2) : 1;
    return real_sqrt(scale / ((real)config->M * (2 + (real)config->eps)));
}

static void slay_pack(real *base, const real *all_constants, const real *parameters, int head,
                      const AttentionConfig *config) {
    Shape shape = shape_of(config);
    Packed packed = packed_at(base, &shape);
    SlayConstants constants = slay_constants_at(all_constants, parameters, config);
    int HS = config->HS, M = config->M, flat = shape.fusion == FUSION_FLAT;
    for (int e = 0; e < shape.RM; e++) {
        int r = e / M, m = e % M;
        const real *omega = constants.omega + (size_t)(r * config->NH + head) * HS * M;
        real s = flat ? constants.scales[(size_t)head * M + m] : constants.nodes[r], scale = real_sqrt(2 * s);
        for (int c = 0; c < HS; c++) packed.projection[(size_t)e * HS + c] = scale * omega[(size_t)c * M + m];
        packed.shift[e] = s;
        packed.coefficient[e] = flat ? flat_coefficient(config) : real_sqrt(constants.weights[r] / (real)M);
        packed.square[e] = flat ? 1 : 1 / (2 * s * real_sqrt((real)M));
    }
    size_t size = (size_t)M * HS;
    if (flat) memcpy(packed.projection + size, constants.anchors + (size_t)head * size, sizeof(real) * size);
    pack_polynomial(packed, constants, &shape);
}

// ---- unit vectors

static void normalise(Tape tape, const real *x, int HS, int lanes) {
    real norm[TILE] = {0}, inverse[TILE];
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++) norm[i] += x[c * TILE + i] * x[c * TILE + i];
    for (int i = 0; i < lanes; i++) {
        norm[i] = real_sqrt(norm[i]);
        inverse[i] = 1 / (norm[i] < NORM_MIN ? NORM_MIN : norm[i]);
        tape.inverse_norm[i] = norm[i] < NORM_MIN ? 0 : inverse[i];
    }
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++) tape.unit[c * TILE + i] = x[c * TILE + i] * inverse[i];
}

// du (HS, TILE) becomes dx = (du - u <u, du>) / |x|
static void normalise_gradient(real *du, Tape tape, int HS, int lanes) {
    real along[TILE] = {0};
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++) along[i] += tape.unit[c * TILE + i] * du[c * TILE + i];
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++)
            du[c * TILE + i] = (du[c * TILE + i] - tape.unit[c * TILE + i] * along[i]) * tape.inverse_norm[i];
}

// ---- outer: exponential features, times a squared projection: their own for the hadamard fusion, an anchor's for flat

static void exponential_features(real *outer, const real *projected, Packed packed, const Shape *shape, int lanes) {
    const real *squared = projected + (shape->fusion == FUSION_FLAT ? shape->RM * TILE : 0);
    for (int e = 0; e < shape->RM; e++, outer += TILE, projected += TILE, squared += TILE) {
        real shift = packed.shift[e], coefficient = packed.coefficient[e], square = packed.square[e];
        for (int i = 0; i < lanes; i++) outer[i] = coefficient * real_exp(limited(projected[i] - shift, EXPONENT_MAX));
        if (shape->fusion != FUSION_TENSOR)
            for (int i = 0; i < lanes; i++) outer[i] *= square * squared[i] * squared[i];
    }
}

// d_projected may be `projected` itself
static void exponential_gradient(real *d_projected, const real *d_outer, const real *outer, const real *projected,
                                 Packed packed, const Shape *shape, int lanes) {
    for (int e = 0; e < shape->RM; e++) {
        real shift = packed.shift[e], coefficient = packed.coefficient[e], square = packed.square[e];
        for (int i = 0; i < lanes; i++) {
            int at = e * TILE + i;
            real y = projected[at], inside = real_abs(y - shift) <= EXPONENT_MAX ? 1 : 0;
            real slope = inside * outer[at];
            if (shape->fusion == FUSION_HADAMARD)
                slope += coefficient * real_exp(limited(y - shift, EXPONENT_MAX)) * square * 2 * y;
            d_projected[at] = d_outer[at] * slope;
        }
    }
}

// Puts the gradients of the flat fusion's projections in the place of the projections.
static void flat_gradient(real *projected, const real *d_outer, const real *outer, Packed packed, const Shape *shape,
                          int lanes) {
    for (int e = 0; e < shape->RM; e++) {
        real shift = packed.shift[e], coefficient = packed.coefficient[e];
        real *y = projected + (size_t)e * TILE, *z = y + (size_t)shape->RM * TILE;
        for (int i = 0; i < lanes; i++) {
            real exponent = y[i] - shift, inside = real_abs(exponent) <= EXPONENT_MAX ? 1 : 0;
            real d = d_outer[e * TILE + i];
            y[i] = d * inside * outer[e * TILE + i];
            z[i] *= 2 * d * coefficient * real_exp(limited(exponent, EXPONENT_MAX));
        }
    }
}

// ---- inner: polynomial features from their projections y (P or 2P, TILE)

static void square_all(real *out, const real *y, real factor, int rows, int lanes) {
    for (int p = 0; p < rows; p++)
        for (int i = 0; i < lanes; i++) out[p * TILE + i] = factor * y[p * TILE + i] * y[p * TILE + i];
}

// out[n] = factor * sum over m of a[m] b[(n - m) mod P]
static void convolve(real *out, const real *a, const real *b, real factor, int P, int lanes) {
    for (int n = 0; n < P; n++) {
        real *row = out + (size_t)n * TILE;
        memset(row, 0, sizeof(real) * (size_t)lanes);
        for (int m = 0; m < P; m++) {
            const real *left = a + (size_t)m * TILE, *right = b + (size_t)((n - m + P) % P) * TILE;
            for (int i = 0; i < lanes; i++) row[i] += left[i] * right[i];
        }
        for (int i = 0; i < lanes; i++) row[i] *= factor;
    }
}

// out[m] = factor * sum over n of g[n] b[(n - m) mod P]
static void correlate(real *out, const real *g, const real *b, real factor, int P, int lanes) {
    for (int m = 0; m < P; m++) {
        real *row = out + (size_t)m * TILE;
        memset(row, 0, sizeof(real) * (size_t)lanes);
        for (int n = 0; n < P; n++) {
            const real *left = g + (size_t)n * TILE, *right = b + (size_t)((n - m + P) % P) * TILE;
            for (int i = 0; i < lanes; i++) row[i] += left[i] * right[i];
        }
        for (int i = 0; i < lanes; i++) row[i] *= factor;
    }
}

static void polynomial_features(real *inner, Tape tape, Packed packed, const Shape *shape, int lanes) {
    int P = shape->P;
    const real *y = tape.projected + (size_t)shape->RM * TILE, *y2 = y + (size_t)P * TILE;
    switch (shape->poly) {
    case POLY_ANCHOR:
        square_all(inner, y, shape->factor, P, lanes);
        break;
    case POLY_NYSTROM:
        square_all(tape.spare, y, shape->factor, P, lanes);
        tile_multiply(inner, TILE, (TileLeft){packed.whitening, 1, P}, tape.spare, TILE, P, lanes, P, 0, TILE_FULL);
        break;
    case POLY_MACLAURIN:
        for (int p = 0; p < P; p++)
            for (int i = 0; i < lanes; i++) inner[p * TILE + i] = shape->factor * y[p * TILE + i] * y2[p * TILE + i];
        break;
    case POLY_TENSORSKETCH:
        convolve(inner, y, y2, shape->factor, P, lanes);
        break;
    case POLY_EXACT:
        memcpy(inner, tape.unit, sizeof(real) * (size_t)shape->HS * TILE);
        break;
    default:
        break;
    }
}

static void multiply_by_slope(real *y, const real *d, real factor, int rows, int lanes) {
    for (int p = 0; p < rows; p++)
        for (int i = 0; i < lanes; i++) y[p * TILE + i] *= factor * d[p * TILE + i];
}

// Puts the gradients of the polynomial's projections in the place of the projections.
static void polynomial_gradient(Tape tape, const real *d_inner, Packed packed, const Shape *shape, int lanes) {
    int P = shape->P;
    real *y = tape.projected + (size_t)shape->RM * TILE, *y2 = y + (size_t)P * TILE;
    switch (shape->poly) {
    case POLY_ANCHOR:
        multiply_by_slope(y, d_inner, 2 * shape->factor, P, lanes);
        break;
    case POLY_NYSTROM:
        tile_multiply(tape.spare, TILE, (TileLeft){packed.whitening, P, 1}, d_inner, TILE, P, lanes, P, 0, TILE_FULL);
        multiply_by_slope(y, tape.spare, 2 * shape->factor, P, lanes);
        break;
    case POLY_MACLAURIN:
        for (int p = 0; p < P; p++)
            for (int i = 0; i < lanes; i++) {
                real d = shape->factor * d_inner[p * TILE + i], first = y[p * TILE + i];
                y[p * TILE + i] = d * y2[p * TILE + i];
                y2[p * TILE + i] = d * first;
            }
        break;
    case POLY_TENSORSKETCH:
        correlate(tape.spare, d_inner, y2, shape->factor, P, lanes);
        correlate(y2, d_inner, y, shape->factor, P, lanes);
        memcpy(y, tape.spare, sizeof(real) * (size_t)P * TILE);
        break;
    default:
        break;
    }
}

// ---- the map

static void slay_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed_base,
                          const AttentionConfig *config) {
    Shape shape = shape_of(config);
    Packed packed = packed_at((real *)packed_base, &shape);
    Tape tape = tape_at(features->tape, &shape);
    int lanes = tile_lanes(rows.count), HS = shape.HS;
    normalise(tape, x, HS, lanes);
    tile_project(tape.projected, packed.projection, shape.projections, tape.unit, HS, rows.count);
    exponential_features(features->outer, tape.projected, packed, &shape, lanes);
    polynomial_features(features->inner, tape, packed, &shape, lanes);
}

// Adds to d_packed (trained, tile_lanes(HS)) the gradients of omega and of the anchors, from those of the projections,
// which it may change.
static void add_vector_gradients(real *d_packed, Tape tape, Packed packed, const Shape *shape, LinearRows rows) {
    int HS = shape->HS, stride = tile_lanes(HS);
    for (int e = shape->first_trained; e < shape->RM; e++) {
        real scale = real_sqrt(2 * packed.shift[e]);
        for (int i = 0; i < rows.count; i++) tape.projected[e * TILE + i] *= scale;
    }
    tile_transpose(tape.unit_rows, stride, tape.unit, TILE, HS, rows.count, 0);
    tile_multiply(d_packed, stride, (TileLeft){tape.projected + shape->first_trained * TILE, TILE, 1}, tape.unit_rows,
                  stride, shape->trained, stride, rows.count, 1, TILE_FULL);
}

static void slay_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                          const real *packed_base, const AttentionConfig *config) {
    Shape shape = shape_of(config);
    Packed packed = packed_at((real *)packed_base, &shape);
    Tape tape = tape_at(features->tape, &shape);
    int lanes = tile_lanes(rows.count), HS = shape.HS;
    if (shape.fusion == FUSION_FLAT)
        flat_gradient(tape.projected, d->outer, features->outer, packed, &shape, lanes);
    else
        exponential_gradient(tape.projected, d->outer, features->outer, tape.projected, packed, &shape, lanes);
    polynomial_gradient(tape, d->inner, packed, &shape, lanes);
    if (shape.poly == POLY_EXACT) memcpy(dx, d->inner, sizeof(real) * (size_t)HS * TILE);
    tile_multiply(dx, TILE, (TileLeft){packed.projection, 1, HS}, tape.projected, TILE, HS, lanes, shape.projections,
                  shape.poly == POLY_EXACT, TILE_FULL);
    normalise_gradient(dx, tape, HS, lanes);
    if (shape.trained) add_vector_gradients(d_packed, tape, packed, &shape, rows);
}

// Heads share the anchors of the tensor fusion; omega and the flat anchors are each head's own.
static void slay_unpack(real *dparameters, const real *d_packed, int head, const AttentionConfig *config) {
    Shape shape = shape_of(config);
    SlayConstants found = slay_constants_at(NULL, dparameters, config);
    int HS = config->HS, M = config->M, stride = tile_lanes(HS);
    real *d_omega = (real *)found.omega, *d_anchors = (real *)found.anchors;
    if (d_anchors && shape.fusion == FUSION_FLAT) d_anchors += (size_t)head * M * HS;
    for (int t = 0; t < shape.trained; t++, d_packed += stride) {
        int e = shape.first_trained + t, r = e / M, m = e % M;
        real *d = e < shape.RM ? d_omega + (size_t)(r * config->NH + head) * HS * M + m
                               : d_anchors + (size_t)(e - shape.RM) * HS;
        int step = e < shape.RM ? M : 1;
        for (int c = 0; c < HS; c++) d[(size_t)c * step] += d_packed[c];
    }
}

static int inner_width(const Shape *shape) {
    return shape->poly == POLY_NONE ? 0 : shape->poly == POLY_EXACT ? shape->HS : shape->P;
}

LinearMap slay_map(const AttentionConfig *config) {
    Shape shape = shape_of(config);
    size_t whitening = shape.poly == POLY_NYSTROM ? (size_t)shape.P * shape.P : 0;
    int unit_rows = shape.trained ? tile_lanes(shape.HS) : 0;
    return (LinearMap){.outer = shape.RM,
                       .inner = inner_width(&shape),
                       .tape = shape.HS + 1 + shape.projections + shape.spare + unit_rows,
                       .is_signed = shape.poly == POLY_NYSTROM || shape.poly == POLY_MACLAURIN ||
                                    shape.poly == POLY_TENSORSKETCH,
                       .feature_cost = (double)shape.projections * shape.HS + (double)shape.spare * shape.P,
                       .packed_size = (size_t)shape.projections * shape.HS + 3 * (size_t)shape.RM + whitening,
                       .d_packed_size = (size_t)shape.trained * tile_lanes(shape.HS),
                       .pack = slay_pack,
                       .features = slay_features,
                       .gradient = slay_gradient,
                       .unpack = slay_unpack};
}
