// SLAY on the GPU against its C twin. Its map, a tile of rows at a time: the features of every variant and their
// gradients, whole and in slices, at head sizes that fill no tile; vectors without a length, huge ones and NaN. The
// whole attention: every variant with its trained tensors and its decay, forward, backward and decoding.
#include "pairs_gpu.h"
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

// The largest difference of the first `count` numbers as a share of the largest expected, or of `least` if that is
// larger; infinite when anything is not finite.
static double worst(const std::vector<float> &found, const std::vector<float> &expected, size_t count,
                    double least = 1e-30) {
    double most = least, difference = 0;
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

// ---- the whole attention

#ifdef PRECISION_BF16
static const double out_bound = 5e-3, dqkv_bound = 4e-2, dparameters_bound = 4e-2;
#else
static const double out_bound = 1e-5, dqkv_bound = 2e-5;
static const double dparameters_bound = 1e-4; // sums over all pairs, of which some cancel
#endif

struct Layer {
    const Variant *variant;
    AttentionConfig config;
    const Attention *cpu;
    const AttentionGPU *gpu;
    std::vector<float> constants, parameters, qkv, dout, out, dqkv, dparameters, saved; // the C twin's
    size_t numbers;                                                                     // of out
};

// The first row is a query and a key without a length.
static Layer make_layer(const Variant *variant, int B, int T, int heads, int HS) {
    Layer layer = {};
    layer.variant = variant;
    layer.cpu = attention_find("slay"), layer.gpu = attention_gpu_find("slay");
    layer.config.B = B, layer.config.T = layer.config.max_T = T, layer.config.NH = heads, layer.config.C = heads * HS;
    layer.config.seed = 5;
    variant_configure(&layer.config, variant);
    layer.numbers = (size_t)B * T * layer.config.C;
    layer.constants.resize(attention_constant_count(layer.cpu, &layer.config));
    layer.parameters.resize(attention_parameter_count(layer.cpu, &layer.config));
    layer.dparameters.assign(layer.parameters.size(), 0.25f); // gradients are added to what is there
    attention_draw(layer.cpu, layer.constants.data(), layer.parameters.data(), 0, &layer.config);
    layer.qkv = normal_numbers(3 * layer.numbers, 4), layer.dout = normal_numbers(layer.numbers, 5);
    std::fill(layer.qkv.begin(), layer.qkv.begin() + 2 * layer.config.C, 0.0f);
    layer.out.resize(layer.numbers), layer.dqkv.resize(3 * layer.numbers);
    layer.saved.resize(layer.cpu->saved_size(&layer.config));
    return layer;
}

// Where digits cancel in a row's sum, which is then small, its output is noise: of signed scores, and of the exact
// square of a dot product. The C twin's quadratic core has kept the inverse of what it divides by.
static bool is_noise(const Layer &layer, size_t task, size_t t) {
    size_t T = (size_t)layer.config.T;
    bool is_exact = layer.config.poly == POLY_EXACT;
    double most = 0, share = layer.variant->is_signed ? 0.2 : is_exact ? 1e-4 : 0;
    auto sum_of = [&](size_t row) {
        return fabs(is_exact ? 1 / layer.saved[2 * task * T + T + row] : layer.saved[task * T + row]);
    };
    for (size_t row = 0; row < T; row++) most = fmax(most, sum_of(row));
    return share > 0 && !(sum_of(t) >= share * most);
}

static void leave_noise_out(const Layer &layer, std::vector<float> *numbers) {
    size_t HS = (size_t)layer.config.HS, NH_ = (size_t)layer.config.NH, T = (size_t)layer.config.T;
    for (size_t i = 0; i < layer.numbers / HS; i++)
        if (is_noise(layer, i / NH_ / T * NH_ + i % NH_, i / NH_ % T))
            std::fill(numbers->begin() + i * HS, numbers->begin() + (i + 1) * HS, 0.0f);
}

static void run_layer_on_cpu(Layer *layer) {
    std::vector<float> work(layer->cpu->work_size(&layer->config));
    layer->cpu->forward(layer->out.data(), layer->saved.data(), layer->qkv.data(), layer->constants.data(),
                        layer->parameters.data(), work.data(), &layer->config);
    leave_noise_out(*layer, &layer->dout);
    layer->cpu->backward(layer->dqkv.data(), layer->dparameters.data(), layer->dout.data(), layer->qkv.data(),
                         layer->out.data(), layer->saved.data(), layer->constants.data(), layer->parameters.data(),
                         work.data(), &layer->config);
}

struct DeviceLayer {
    floatX *qkv, *dout, *out, *dqkv;
    float *parameters, *dparameters, *packed, *saved, *work, *cache;
    int *position;
};

static DeviceLayer send_layer(const Layer &layer) {
    const AttentionConfig *config = &layer.config;
    auto buffer = [](size_t count) { return sent<float>(std::vector<float>(count, NAN), (int)count); };
    DeviceLayer at = {};
    at.qkv = sent<floatX>(layer.qkv, (int)(3 * layer.numbers)), at.dout = sent<floatX>(layer.dout, (int)layer.numbers);
    at.out = sent<floatX>(layer.out, (int)layer.numbers), at.dqkv = sent<floatX>(layer.dqkv, (int)(3 * layer.numbers));
    at.parameters = sent<float>(layer.parameters, (int)layer.parameters.size());
    at.dparameters = sent<float>(std::vector<float>(layer.parameters.size(), 0.25f), (int)layer.parameters.size());
    at.packed = buffer(layer.gpu->packed_size(config)), at.saved = buffer(layer.gpu->saved_size(config));
    at.work = buffer(layer.gpu->work_size(config)), at.cache = buffer(layer.gpu->cache_size(config));
    cuda_check(cudaMalloc((void **)&at.position, sizeof(int)));
    float *constants = sent<float>(layer.constants, (int)layer.constants.size());
    layer.gpu->pack(at.packed, constants, at.parameters, config, 0);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaFree(constants));
    return at;
}

static void free_layer(DeviceLayer at) {
    for (void *device : {(void *)at.qkv, (void *)at.dout, (void *)at.out, (void *)at.dqkv, (void *)at.parameters,
                         (void *)at.dparameters, (void *)at.packed, (void *)at.saved, (void *)at.work, (void *)at.cache,
                         (void *)at.position})
        cuda_check(cudaFree(device));
}

static std::vector<float> fetch_numbers(const floatX *device, size_t count) {
    std::vector<floatX> numbers(count);
    cuda_check(cudaMemcpy(numbers.data(), device, count * sizeof(floatX), cudaMemcpyDeviceToHost));
    std::vector<float> floats(count);
    for (size_t i = 0; i < count; i++) floats[i] = to_float(numbers[i]);
    return floats;
}

static void check_within(const Layer &layer, const char *what, const std::vector<float> &found,
                         const std::vector<float> &expected, double bound, double least = 1e-30) {
    double error = worst(found, expected, expected.size(), least);
    CHECK(error <= bound && "within its bound");
    if (!(error <= bound))
        printf("    %s: %s is %.2g off, %.2g allowed (T %d, HS %d)\n", layer.variant->label, what, error, bound,
               layer.config.T, layer.config.HS);
}

static void check_out(const Layer &layer, const char *what, const floatX *out) {
    std::vector<float> found = fetch_numbers(out, layer.numbers), expected = layer.out;
    leave_noise_out(layer, &found), leave_noise_out(layer, &expected);
    check_within(layer, what, found, expected, out_bound);
}

static void check_passes(const Layer &layer, DeviceLayer at) {
    layer.gpu->forward(at.out, at.saved, at.qkv, at.packed, at.parameters, at.work, &layer.config, 0);
    cuda_check(cudaDeviceSynchronize());
    check_out(layer, "out", at.out);
    layer.gpu->backward(at.dqkv, at.dparameters, at.dout, at.qkv, at.out, at.saved, at.packed, at.parameters, at.work,
                        &layer.config, 0);
    cuda_check(cudaDeviceSynchronize());
    check_within(layer, "dqkv", fetch_numbers(at.dqkv, 3 * layer.numbers), layer.dqkv, dqkv_bound);
    std::vector<float> dparameters(layer.parameters.size());
    cuda_check(
        cudaMemcpy(dparameters.data(), at.dparameters, dparameters.size() * sizeof(float), cudaMemcpyDeviceToHost));
    // A learned decay's is a sum over all pairs, in which most of what every row gives cancels: rounding does not.
    bool cancels = sizeof(floatX) == 2 && layer.config.decay == DECAY_LEARNED;
    check_within(layer, "dparameters", dparameters, layer.dparameters, dparameters_bound,
                 cancels ? 0.2 * layer.config.B * layer.config.T : 1e-30);
}

// Some positions at once, then one at a time: the first of these by `step`, the others by `decode`.
static void check_decoding(const Layer &layer, DeviceLayer at, int prefill) {
    size_t C = (size_t)layer.config.C;
    layer.gpu->step(at.out, at.cache, 0, prefill, at.qkv, at.packed, at.parameters, at.work, &layer.config, 0);
    layer.gpu->step(at.out + prefill * C, at.cache, prefill, 1, at.qkv + prefill * 3 * C, at.packed, at.parameters,
                    at.work, &layer.config, 0);
    for (int pos = prefill + 1; pos < layer.config.T; pos++) {
        cuda_check(cudaMemcpy(at.position, &pos, sizeof pos, cudaMemcpyHostToDevice));
        layer.gpu->decode(at.out + pos * C, at.cache, at.position, at.qkv + pos * 3 * C, at.packed, at.parameters,
                          at.work, &layer.config, 0);
    }
    cuda_check(cudaDeviceSynchronize());
    check_out(layer, "decoding", at.out);
}

static void check_layer(const Variant &variant, int B, int T, int heads, int HS, int prefill) {
    Layer layer = make_layer(&variant, B, T, heads, HS);
    run_layer_on_cpu(&layer);
    DeviceLayer at = send_layer(layer);
    check_passes(layer, at);
    if (prefill) check_decoding(layer, at, prefill);
    free_layer(at);
}

static bool is_slay(const Variant &variant) {
    return !strcmp(variant.name, "slay");
}

static void passes_of_narrow_heads(void) {
    for (const Variant &variant : linear_variants)
        if (is_slay(variant)) check_layer(variant, 2, 70, 2, 8, 0), check_layer(variant, 1, 17, 3, 24, 0);
}

static void passes_of_common_heads(void) {
    for (const Variant &variant : linear_variants)
        if (is_slay(variant)) check_layer(variant, 1, 131, 1, 40, 0), check_layer(variant, 1, 66, 1, 64, 0);
}

static void passes_of_wide_heads(void) {
    for (const Variant &variant : linear_variants)
        if (is_slay(variant)) check_layer(variant, 1, 67, 1, 128, 0);
}

static void decoding(void) {
    for (const Variant &variant : linear_variants)
        if (is_slay(variant)) check_layer(variant, 1, 70, 2, 16, 62), check_layer(variant, 1, 9, 1, 64, 1);
}

// Groups of one head of one sequence: the exact polynomial's own way to bound its memory.
static void little_scratch(void) {
    pairs_gpu_group_numbers = 1;
    for (const Variant &variant : linear_variants)
        if (is_slay(variant) && strstr(variant.options, "exact")) {
            check_layer(variant, 2, 40, 2, 12, 0), check_layer(variant, 1, 40, 3, 12, 20);
            check_layer(variant, 1, 7, 1, 1100, 3);
        }
    pairs_gpu_group_numbers = PAIRS_GROUP_NUMBERS;
}

int main(void) {
    RUN(features_and_gradients);
    RUN(slices_add_up);
    RUN(lengths);
    RUN(nan_stays_in_its_row);
    RUN(passes_of_narrow_heads);
    RUN(passes_of_common_heads);
    RUN(passes_of_wide_heads);
    RUN(decoding);
    RUN(little_scratch);
    return test_summary();
}
