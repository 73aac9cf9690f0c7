#include "pairs.h"
#include "quadratic.h"

static void pair_scores(real *score, const real *dot, const real *features, int n, const AttentionConfig *config) {
    (void)config;
    for (int j = 0; j < n; j++) score[j] = limited(dot[j] * dot[j] * features[j], LARGEST_SCORE);
}

static void pair_slopes(real *slope, real *pull, const real *dot, const real *features, int n,
                        const AttentionConfig *config) {
    (void)config;
    for (int j = 0; j < n; j++) {
        pull[j] = limited(slope[j] * dot[j] * dot[j], LARGEST_SLOPE);
        slope[j] = limited(slope[j] * 2 * dot[j] * features[j], LARGEST_SLOPE);
    }
}

static QuadraticKernel kernel_of(const LinearMap *map, const real *constants) {
    return (QuadraticKernel){.normalizer = NORMALIZER_KERNEL,
                             .scores = pair_scores,
                             .slopes = pair_slopes,
                             .map = map,
                             .constants = constants};
}

size_t pairs_saved_size(const LinearMap *map, const AttentionConfig *config) {
    (void)map;
    return quadratic_saved_size(config);
}

size_t pairs_work_size(const LinearMap *map, const AttentionConfig *config) {
    QuadraticKernel kernel = kernel_of(map, NULL);
    return quadratic_work_size_of(&kernel, config);
}

size_t pairs_cache_size(const LinearMap *map, const AttentionConfig *config) {
    QuadraticKernel kernel = kernel_of(map, NULL);
    return quadratic_cache_size_of(&kernel, config);
}

void pairs_attention_forward(const LinearMap *map, real *out, real *saved, const real *qkv, const real *constants,
                             const real *parameters, real *work, const AttentionConfig *config) {
    QuadraticKernel kernel = kernel_of(map, constants);
    quadratic_forward(&kernel, out, saved, qkv, parameters, work, config);
}

void pairs_attention_backward(const LinearMap *map, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                              const real *out, const real *saved, const real *constants, const real *parameters,
                              real *work, const AttentionConfig *config) {
    QuadraticKernel kernel = kernel_of(map, constants);
    quadratic_backward(&kernel, dqkv, dparameters, dout, qkv, out, saved, parameters, work, config);
}

void pairs_attention_step(const LinearMap *map, real *out, real *cache, int pos, int n, const real *qkv,
                          const real *constants, const real *parameters, real *work, const AttentionConfig *config) {
    QuadraticKernel kernel = kernel_of(map, constants);
    quadratic_step(&kernel, out, cache, pos, n, qkv, parameters, work, config);
}

double pairs_flops(const LinearMap *map, const AttentionConfig *config) {
    double pair = map->outer + map->inner + config->HS;
    return 2.0 * config->NH * (2 * map->feature_cost + pair * quadratic_keys_per_query(config));
}
