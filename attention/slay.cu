// slay on the GPU: the linear core with the map of slay_map.cuh, or the quadratic one of pairs.cu for the exact
// polynomial.
#include "linear_passes.cuh"
#include "pairs_gpu.h"
#include "slay_map.cuh"

typedef SlayMap<true, false> ProductMap;
typedef SlayMap<true, true> SignedMap;
typedef SlayMap<false, false> PlainMap;

static bool is_exact(const AttentionConfig *config) {
    return slay_polynomial(config) == POLY_EXACT;
}

// linear_NAME with the map of the configuration
#define BY_MAP(name, config, ...)                                                                                      \
    (slay_polynomial(config) == POLY_NONE     ? linear_##name<PlainMap>(__VA_ARGS__)                                   \
     : slay_polynomial(config) == POLY_ANCHOR ? linear_##name<ProductMap>(__VA_ARGS__)                                 \
                                              : linear_##name<SignedMap>(__VA_ARGS__))
// the same, or pairs_gpu_NAME
#define BY_CORE(name, config, ...)                                                                                     \
    (is_exact(config) ? pairs_gpu_##name(__VA_ARGS__) : BY_MAP(name, config, __VA_ARGS__))

static size_t saved_size(const AttentionConfig *config) {
    return BY_CORE(saved_size, config, config);
}
static size_t work_size(const AttentionConfig *config) {
    return BY_CORE(work_size, config, config);
}
static size_t cache_size(const AttentionConfig *config) {
    return BY_CORE(cache_size, config, config);
}
static void forward(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                    float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_CORE(forward, config, out, saved, qkv, packed, parameters, work, config, stream);
}
static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *packed, const float *parameters, float *work,
                     const AttentionConfig *config, cudaStream_t stream) {
    BY_CORE(backward, config, dqkv, dparameters, dout, qkv, out, saved, packed, parameters, work, config, stream);
}
static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *packed,
                 const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_CORE(step, config, out, cache, pos, n, qkv, packed, parameters, work, config, stream);
}
static void decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *packed,
                   const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    BY_CORE(decode, config, out, cache, position, qkv, packed, parameters, work, config, stream);
}

// The exact polynomial has its own limits, which are memory's. Sketches have to fit on chip, all of a row's.
static int check(const AttentionConfig *config, char *why, size_t size) {
    const int most = 512;
    if (is_exact(config)) return 0;
    if (slay_polynomial(config) == POLY_TENSORSKETCH && config->P > most) {
        snprintf(why, size, "P=%d columns, tensorsketch takes at most %d on the GPU", config->P, most);
        return -1;
    }
    return linear_check(config, why, size);
}

extern "C" const Attention attention_slay;
extern const AttentionGPU attention_gpu_slay;
const AttentionGPU attention_gpu_slay = {&attention_slay,
                                         saved_size,
                                         work_size,
                                         cache_size,
                                         forward,
                                         backward,
                                         step,
                                         check,
                                         NULL,
                                         linear_collect_floored_rows,
                                         slay_packed_size,
                                         slay_pack,
                                         decode,
                                         USES_DECAY | USES_LEARN | USES_FUSION | USES_DOCUMENTS};
