// What tests of the linear attentions read from dev/fixtures/attention_linear.safetensors: outputs and gradients of an
// independent implementation (dev/fixtures/make_attention_linear.py). In C and C++; `real` is float in both.
#ifndef ATTENTION_TEST_LINEAR_FIXTURE_H
#define ATTENTION_TEST_LINEAR_FIXTURE_H

#include "attention.h"
#include "test_variants.h"
#include "core/model/safetensors.h"
#include "core/base/test.h"

#include <stdlib.h>

enum { FIXTURE_T = 23, FIXTURE_C = 24 };

static inline int open_fixture(Safetensors *file) {
    Error error;
    int status = safetensors_open(file, "dev/fixtures/attention_linear.safetensors", &error);
    CHECK(status == 0); // run from the project's root
    if (status) printf("    %s\n", error.text);
    return status;
}

static inline void read_tensor(real *out, const Safetensors *file, const char *group, const char *name, int rank,
                               const uint64_t *shape) {
    char full[100];
    Error error;
    snprintf(full, sizeof full, "%s/%s", group, name);
    int status = safetensors_read(out, file, full, rank, shape, &error);
    CHECK(status == 0);
    if (status) printf("    %s\n", error.text);
}

// The first group at or after tensor *i: a group has a tensor GROUP/out. Returns whether there is one.
static inline int fixture_group(char *group, size_t size, const Safetensors *file, int *i) {
    for (; *i < file->count; (*i)++) {
        const char *name = file->tensors[*i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash, "/out")) continue;
        snprintf(group, size, "%.*s", (int)(slash - name), name);
        return 1;
    }
    return 0;
}

static inline const char *fixture_attention(const Safetensors *file, const char *group) {
    char key[100];
    snprintf(key, sizeof key, "%s/attention", group);
    return safetensors_metadata(file, key);
}

static inline int metadata_number(const Safetensors *file, const char *group, const char *key) {
    char full[100];
    snprintf(full, sizeof full, "%s/%s", group, key);
    const char *text = safetensors_metadata(file, full);
    return text ? atoi(text) : 0;
}

static inline AttentionConfig fixture_config(const Safetensors *file, const char *group) {
    AttentionConfig config;
    const char *attention = fixture_attention(file, group);
    memset(&config, 0, sizeof config);
    config.B = 1, config.T = FIXTURE_T, config.C = FIXTURE_C, config.NH = 2;
    config.max_T = 32;
    Variant variant = {group, attention, 0, "", 0, 0};
    variant_configure(&config, &variant);
    if (metadata_number(file, group, "R")) config.R = metadata_number(file, group, "R");
    if (metadata_number(file, group, "M")) config.M = metadata_number(file, group, "M");
    if (metadata_number(file, group, "P")) config.P = metadata_number(file, group, "P");
    config.features = metadata_number(file, group, "features");
    config.poly = metadata_number(file, group, "poly");
    config.fusion = metadata_number(file, group, "fusion");
    config.denominator = metadata_number(file, group, "denominator");
    config.scale_features = metadata_number(file, group, "scale");
    return config;
}

static inline void read_constants(real *constants, const Safetensors *file, const char *group,
                                  const Attention *attention, const AttentionConfig *config) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_constants(attention, config, list, &total);
    for (int i = 0; i < n; i++) {
        uint64_t shape[4];
        for (int axis = 0; axis < list[i].rank; axis++) shape[axis] = list[i].shape[axis];
        read_tensor(constants + list[i].offset, file, group, list[i].name, list[i].rank, shape);
    }
}

#endif
