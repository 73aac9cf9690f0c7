// What tests of the linear attentions read from dev/fixtures/attention_linear.safetensors: outputs and gradients of an
// independent implementation (dev/fixtures/make_attention_linear.py). In C and C++; `real` is float in both.
#ifndef ATTENTION_TEST_LINEAR_FIXTURE_H
#define ATTENTION_TEST_LINEAR_FIXTURE_H

#include "attention.h"
#include "core/model/safetensors.h"
#include "core/base/test.h"

#include <stdlib.h>

enum { FIXTURE_T = 23, FIXTURE_C = 24 };

static const char *const fixture_groups[] = {"uniform",           "elu",           "cosformer",     "favor_relu",
                                             "favor_exp",         "rff",           "slay",          "slay_unscaled",
                                             "slay_exact",        "slay_none",     "slay_hadamard", "slay_nystrom",
                                             "slay_tensorsketch", "slay_maclaurin"};
enum { FIXTURE_GROUPS = sizeof fixture_groups / sizeof fixture_groups[0] };

static int open_fixture(Safetensors *file) {
    Error error;
    int status = safetensors_open(file, "dev/fixtures/attention_linear.safetensors", &error);
    CHECK(status == 0); // run from the project's root
    if (status) printf("    %s\n", error.text);
    return status;
}

static void read_tensor(real *out, const Safetensors *file, const char *group, const char *name, int rank,
                        const uint64_t *shape) {
    char full[100];
    Error error;
    snprintf(full, sizeof full, "%s/%s", group, name);
    int status = safetensors_read(out, file, full, rank, shape, &error);
    CHECK(status == 0);
    if (status) printf("    %s\n", error.text);
}

static const char *fixture_attention(const Safetensors *file, const char *group) {
    char key[100];
    snprintf(key, sizeof key, "%s/attention", group);
    return safetensors_metadata(file, key);
}

static int metadata_number(const Safetensors *file, const char *group, const char *key) {
    char full[100];
    snprintf(full, sizeof full, "%s/%s", group, key);
    const char *text = safetensors_metadata(file, full);
    return text ? atoi(text) : 0;
}

static AttentionConfig fixture_config(const Safetensors *file, const char *group) {
    AttentionConfig config;
    const char *attention = fixture_attention(file, group);
    memset(&config, 0, sizeof config);
    config.B = 1, config.T = FIXTURE_T, config.C = FIXTURE_C, config.NH = 2, config.HS = FIXTURE_C / 2;
    config.max_T = 32;
    if (attention_find(attention)->defaults) attention_find(attention)->defaults(&config);
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

static void read_constants(real *constants, const Safetensors *file, const char *group, const Attention *attention,
                           const AttentionConfig *config) {
    AttentionConstant list[ATTENTION_CONSTANTS_MAX];
    size_t total;
    int n = attention_constants(attention, config, list, &total);
    for (int i = 0; i < n; i++) {
        uint64_t shape[4];
        for (int axis = 0; axis < list[i].rank; axis++) shape[axis] = list[i].shape[axis];
        read_tensor(constants + list[i].offset, file, group, list[i].name, list[i].rank, shape);
    }
}

#endif
