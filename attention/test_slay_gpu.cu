// SLAY's map on the GPU, a tile of rows at a time, against its C twin: the features of every variant and their gradients,
// whole and in slices, at head sizes that fill no tile; vectors without a length, huge ones and NaN.
#include "slay_map.cuh"

extern "C" {
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"
#include "test_variants.h"
}

#include <string>
#include <vector>

#ifdef PRECISION_BF16
// Features are rounded to 8 bits and so are the gradients of projections. Those with a sign keep what the projections
// have, 16 bits, of which whitening may take some.
static const double feature_bound = 4e-3, signed_bound = 1e-4, gradient_bound = 3e-2;
#else
static const double feature_bound = 1e-5, signed_bound = 1e-5, gradient_bound = 1e-5;
#endif

enum { NH = 2, HEAD = 1 };

// ---- one tile on the device

typedef struct { // row-major and whole, whatever the slice
    float *outer, *inner, *dx;
    const float *d_outer, *d_inner;
    int outers, inners;
} TileBuffers;

template <typename Number> __device__ static Number *take_shared(unsigned char *&at, int count) {
    Number *taken = (Number *)at;
    at += (count * sizeof(Number) + 15) / 16 * 16;
    return taken;
}

// x (present, HS) -> the slice's part of outer and inner, and what it adds to dx (ROWS, HS)
template <typename Tile, typename Map>
__global__ void map_kernel(TileBuffers all, const floatX *rows, Map map, LinearPlace place) {
    extern __shared__ __align__(16) unsigned char shared[];
    unsigned char *at = shared;
    int HS = map.shape.HS, stride = (place.inners + 1) / 2 * 2;
    floatX *x = take_shared<floatX>(at, Tile::ROWS * Tile::X_STRIDE);
    float *dx = take_shared<float>(at, Tile::ROWS * Tile::DX_STRIDE);
    LinearFactors<Tile> to = {};
    to.outer = take_shared<typename Tile::Operand>(at, place.outers * Tile::OUTER_STRIDE);
    to.inner = take_shared<typename Tile::Operand>(at, Tile::ROWS * stride);
    LinearGradients<Tile> d = {};
    d.outer = take_shared<float>(at, place.outers * Tile::D_OUTER_STRIDE);
    d.inner = take_shared<float>(at, Tile::ROWS * stride);
    to.inner_stride = d.inner_stride = stride;
    place.scratch = take_shared<float>(at, map.shape.scratch * Tile::ROWS);
    for (int i = threadIdx.x; i < Tile::ROWS * Tile::WIDTH; i += Tile::THREADS) {
        int row = i / Tile::WIDTH, c = i % Tile::WIDTH, exists = row < place.present && c < HS;
        x[row * Tile::X_STRIDE + c] = exists ? rows[row * HS + c] : from_float<floatX>(0.0f);
    }
    for (int row = 0; row < Tile::ROWS;
         row++) { // what reaches a feature does so through one of the slices that have it
        for (int e = threadIdx.x; e < place.outers; e += Tile::THREADS)
            d.outer[e * Tile::D_OUTER_STRIDE + row] =
                place.first_inner ? 0.0f : all.d_outer[row * all.outers + place.first_outer + e];
        for (int p = threadIdx.x; p < place.inners; p += Tile::THREADS)
            d.inner[row * stride + p] =
                place.first_outer ? 0.0f : all.d_inner[row * all.inners + place.first_inner + p];
    }
    __syncthreads();
    map.template features<Tile>(to, x, place);
    __syncthreads();
    for (int row = 0; row < place.present; row++) {
        for (int e = threadIdx.x; Map::IS_PRODUCT && e < place.outers; e += Tile::THREADS)
            all.outer[row * all.outers + place.first_outer + e] = to.outer_at(row, e);
        for (int p = threadIdx.x; p < place.inners; p += Tile::THREADS)
            all.inner[row * all.inners + place.first_inner + p] = to.inner_at(row, p);
    }
    __syncthreads();
    map.template gradient<Tile>(dx, d, to, x, place);
    __syncthreads();
    for_each_number<Tile>(HS, [&](int row, int c) {
        if (row < place.present) all.dx[row * HS + c] += dx[row * Tile::DX_STRIDE + c];
    });
}

static int limited_shared(int bytes) {
    int device = 0, most = 0;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    CHECK(bytes <= most);
    return bytes;
}

template <typename Tile, typename Map>
static void launch_tile(TileBuffers all, const floatX *rows, Map map, LinearPlace place) {
    int stride = (place.inners + 1) / 2 * 2, operand = (int)sizeof(typename Tile::Operand);
    int bytes = Tile::ROWS * (Tile::X_STRIDE * (int)sizeof(floatX) + (Tile::DX_STRIDE + map.shape.scratch) * 4 +
                              stride * (operand + 4)) +
                place.outers * (Tile::OUTER_STRIDE * operand + Tile::D_OUTER_STRIDE * 4) + 7 * 16;
    cuda_check(cudaFuncSetAttribute((const void *)map_kernel<Tile, Map>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    limited_shared(bytes)));
    map_kernel<Tile, Map><<<1, Tile::THREADS, bytes>>>(all, rows, map, place);
    launch_check();
    cuda_check(cudaDeviceSynchronize());
}

// ---- a tile on both sides

typedef struct {
    std::vector<float> outer, inner, dx;
} Result; // (rows, ...)

struct MapCase {
    const Variant *variant;
    AttentionConfig config;
    LinearMap cpu;
    std::vector<float> constants, parameters, x, d_outer, d_inner; // rows of TILE
    int rows;
};

static std::vector<float> normal_numbers(size_t count, uint64_t key) {
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; i++) numbers[i] = to_float(from_float<floatX>((float)random_normal(key, i)));
    return numbers;
}

static MapCase make_case(const Variant *variant, int HS, int rows) {
    MapCase c = {};
    c.variant = variant, c.rows = rows;
    c.config.B = 1, c.config.T = c.config.max_T = TILE, c.config.NH = NH, c.config.C = NH * HS, c.config.seed = 3;
    variant_configure(&c.config, variant);
    c.cpu = slay_map(&c.config);
    const Attention *slay = attention_find("slay");
    c.constants.resize(attention_constant_count(slay, &c.config) + 1);
    c.parameters.resize(attention_parameter_count(slay, &c.config) + 1);
    attention_draw(slay, c.constants.data(), c.parameters.data(), 0, &c.config);
    c.x = normal_numbers((size_t)TILE * HS, 1);
    c.d_outer = normal_numbers((size_t)TILE * c.cpu.outer, 2);
    c.d_inner = normal_numbers((size_t)TILE * (c.cpu.inner + 1), 3);
    return c;
}

static std::vector<float> transposed(const std::vector<float> &in, int rows, int columns) {
    std::vector<float> out((size_t)rows * columns);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) out[(size_t)c * rows + r] = in[(size_t)r * columns + c];
    return out;
}

static Result run_cpu(const MapCase &c) {
    int HS = c.config.HS, outer = c.cpu.outer, inner = c.cpu.inner;
    std::vector<float> packed(c.cpu.packed_size), d_packed(c.cpu.d_packed_size + 1), x = c.x;
    std::fill(x.begin() + (size_t)c.rows * HS, x.end(), 0.0f);
    x = transposed(x, TILE, HS);
    std::vector<float> features((size_t)TILE * (outer + inner + 1)), tape((size_t)TILE * c.cpu.tape + 1), dx(x.size());
    std::vector<float> d = transposed(c.d_outer, TILE, outer), d_inner = transposed(c.d_inner, TILE, inner + 1);
    LinearFeatures at = {features.data(), features.data() + (size_t)TILE * outer, NULL, tape.data()};
    LinearFeatures gradients = {d.data(), d_inner.data(), NULL, NULL};
    LinearRows rows = {0, c.rows};
    c.cpu.pack(packed.data(), c.constants.data(), c.parameters.data(), HEAD, &c.config);
    c.cpu.features(&at, x.data(), rows, packed.data(), &c.config);
    Result result;
    result.outer = transposed({at.outer, at.outer + (size_t)TILE * outer}, outer, TILE);
    result.inner = transposed({at.inner, at.inner + (size_t)TILE * inner}, inner, TILE);
    c.cpu.gradient(dx.data(), d_packed.data(), &gradients, &at, rows, packed.data(), &c.config);
    result.dx = transposed(dx, HS, TILE);
    return result;
}

template <typename Number> static Number *sent(const std::vector<float> &numbers, int count) {
    std::vector<Number> converted(count);
    for (int i = 0; i < count; i++) converted[i] = from_float<Number>(numbers[i]);
    Number *device;
    cuda_check(cudaMalloc((void **)&device, (count + 1) * sizeof(Number)));
    cuda_check(cudaMemcpy(device, converted.data(), count * sizeof(Number), cudaMemcpyHostToDevice));
    return device;
}

static std::vector<float> fetched(float *device, int count) {
    std::vector<float> numbers(count);
    cuda_check(cudaMemcpy(numbers.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(device));
    return numbers;
}

// All slices of `outers` times `inners` features, one after the other. Rows of later tiles follow those of the first.
template <typename Tile, typename Map>
static void run_slices(Result *to, const MapCase &c, Map map, int first_row, int outers, int inners) {
    int present = std::min(Tile::ROWS, c.rows - first_row), HS = c.config.HS, all = map.shape.outers;
    std::vector<float> none(Tile::ROWS * (all + map.shape.inners));
    auto from = [&](const std::vector<float> &v, int width) {
        std::vector<float> rows((size_t)Tile::ROWS * width);
        for (size_t i = 0; i < (size_t)present * width; i++) rows[i] = v[(size_t)first_row * width + i];
        return rows;
    };
    std::vector<float> d_inner = Map::IS_PRODUCT ? c.d_inner : c.d_outer;
    if (Map::IS_PRODUCT) { // the C twin's has one column more
        d_inner.clear();
        for (int row = 0; row < TILE; row++)
            for (int p = 0; p < c.cpu.inner; p++) d_inner.push_back(c.d_inner[row * (c.cpu.inner + 1) + p]);
    }
    TileBuffers buffers = {sent<float>(none, Tile::ROWS * all),
                           sent<float>(none, Tile::ROWS * map.shape.inners),
                           sent<float>(std::vector<float>(Tile::ROWS * HS), Tile::ROWS * HS),
                           sent<float>(Map::IS_PRODUCT ? from(c.d_outer, all) : none, Tile::ROWS * all),
                           sent<float>(from(d_inner, map.shape.inners), Tile::ROWS * map.shape.inners),
                           all,
                           map.shape.inners};
    floatX *x = sent<floatX>(from(c.x, HS), Tile::ROWS * HS);
    for (int e = 0; e < all; e += outers)
        for (int p = 0; p < map.shape.inners; p += inners) {
            LinearPlace place = {};
            place.head = HEAD, place.position = first_row, place.present = present;
            place.first_outer = e, place.outers = std::min(outers, all - e);
            place.first_inner = p, place.inners = std::min(inners, map.shape.inners - p);
            launch_tile<Tile>(buffers, x, map, place);
        }
    auto append = [&](std::vector<float> &v, float *device, int width) {
        std::vector<float> rows = fetched(device, present * width);
        v.insert(v.end(), rows.begin(), rows.end());
    };
    append(Map::IS_PRODUCT ? to->outer : none, buffers.outer, all);
    append(Map::IS_PRODUCT ? to->inner : to->outer, buffers.inner, map.shape.inners);
    append(to->dx, buffers.dx, HS);
    for (void *device : {(void *)buffers.d_outer, (void *)buffers.d_inner, (void *)x}) cuda_check(cudaFree(device));
}

template <typename Map> static Result run_map(const MapCase &c, int outers, int inners) {
    typedef std::conditional_t<Map::IS_SIGNED, float, floatX> Operand;
    float *constants = sent<float>(c.constants, (int)c.constants.size());
    float *parameters = sent<float>(c.parameters, (int)c.parameters.size());
    float *packed = sent<float>(std::vector<float>(slay_packed_size(&c.config)), (int)slay_packed_size(&c.config));
    slay_pack(packed, constants, parameters, &c.config, 0);
    Map map = Map::of(&c.config, packed, parameters);
    Result result;
    if (!outers) outers = map.shape.outers;
    if (!inners) inners = map.shape.inners;
    for (int row = 0; row < c.rows; row = (int)(result.dx.size() / c.config.HS)) {
        if (linear_width(&c.config) == 32)
            run_slices<LinearTile<32, Operand, Map::IS_NARROW>>(&result, c, map, row, outers, inners);
        else if (linear_width(&c.config) == 64)
            run_slices<LinearTile<64, Operand, Map::IS_NARROW>>(&result, c, map, row, outers, inners);
        else
            run_slices<LinearTile<128, Operand, Map::IS_NARROW>>(&result, c, map, row, outers, inners);
    }
    for (float *device : {constants, parameters, packed}) cuda_check(cudaFree(device));
    return result;
}

static Result run_gpu(const MapCase &c, int outers, int inners) {
    if (!c.cpu.inner) return run_map<SlayMap<false, false>>(c, outers, inners);
    return c.cpu.is_signed ? run_map<SlayMap<true, true>>(c, outers, inners)
                           : run_map<SlayMap<true, false>>(c, outers, inners);
}

// ---- comparison

// The largest difference of the first `count` numbers as a share of the largest expected; infinite when anything is not
// finite.
static double worst(const std::vector<float> &found, const std::vector<float> &expected, size_t count) {
    double most = 1e-30, difference = 0;
    if (found.size() < count) return INFINITY;
    for (size_t i = 0; i < count; i++) most = fmax(most, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)found[i] - (double)expected[i]);
        if (!(error <= difference)) difference = error;
        if (!isfinite(error)) return INFINITY;
    }
    return difference / most;
}

static void check_case(const MapCase &c, int outers, int inners) {
    Result expected = run_cpu(c), found = run_gpu(c, outers, inners);
    double bound = c.cpu.is_signed ? signed_bound : feature_bound;
    double errors[] = {worst(found.outer, expected.outer, (size_t)c.rows * c.cpu.outer),
                       worst(found.inner, expected.inner, (size_t)c.rows * c.cpu.inner),
                       worst(found.dx, expected.dx, (size_t)c.rows * c.config.HS)};
    int holds = errors[0] <= bound && errors[1] <= bound && errors[2] <= gradient_bound;
    CHECK(holds && "the map is its twin's");
    if (!holds)
        printf("    %s, HS %d, %d rows, slices of %d x %d: outer %.2g, inner %.2g off, %.2g allowed; dx %.2g, %.2g\n",
               c.variant->label, c.config.HS, c.rows, outers, inners, errors[0], errors[1], bound, errors[2],
               gradient_bound);
}

static bool is_tested(const Variant &variant) {
    return !strcmp(variant.name, "slay") && !strstr(variant.options, "exact") && !strstr(variant.options, "--decay");
}

static void features_and_gradients(void) {
    for (const Variant &variant : linear_variants)
        for (int HS : {5, 8, 16, 24, 32, 40, 64, 100, 128})
            if (is_tested(variant)) check_case(make_case(&variant, HS, 41), 0, 0);
}

static void slices_add_up(void) {
    for (const Variant &variant : linear_variants)
        for (int size : {1, 5, 16, 37})
            if (is_tested(variant)) check_case(make_case(&variant, 24, 20), size, 37 / size);
}

// Short vectors are not brought to unit length and have no gradient; huge ones are no different from others.
static void lengths(void) {
    for (const Variant &variant : linear_variants)
        for (double length : {0.0, 1e-20, 1e-7, 1e14}) {
            if (!is_tested(variant)) continue;
            MapCase c = make_case(&variant, 16, 20);
            for (size_t i = 0; i < c.x.size(); i++)
                if (i / 16 % 2 || length < 1e-10) c.x[i] = to_float(from_float<floatX>((float)(c.x[i] * length)));
            check_case(c, 0, 0);
        }
}

static void nan_stays_in_its_row(void) {
    for (const Variant &variant : linear_variants) {
        if (!is_tested(variant)) continue;
        MapCase c = make_case(&variant, 16, 20);
        c.x[7 * 16 + 3] = NAN;
        Result found = run_gpu(c, 0, 0);
        for (int row = 0; row < c.rows; row++) {
            int bad = 0;
            for (int i = 0; i < 16; i++) bad += isnan(found.dx[row * 16 + i]) != 0;
            for (int i = 0; i < c.cpu.outer; i++) bad += isnan(found.outer[row * c.cpu.outer + i]) != 0;
            for (int i = 0; i < c.cpu.inner; i++) bad += isnan(found.inner[row * c.cpu.inner + i]) != 0;
            CHECK(bad == (row == 7 ? 16 + c.cpu.outer + c.cpu.inner : 0));
        }
    }
}

int main(void) {
    RUN(features_and_gradients);
    RUN(slices_add_up);
    RUN(lengths);
    RUN(nan_stays_in_its_row);
    return test_summary();
}
