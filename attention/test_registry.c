// The registry, the options and the configuration as JSON, for every mechanism there is.
#include "attention.h"
#include "core/base/test.h"

#include <stdlib.h>

static AttentionConfig sizes(void) {
    return (AttentionConfig){.B = 2, .T = 32, .C = 48, .NH = 3, .max_T = 64, .seed = 0xfedcba9876543210u};
}

// Parses a command line of up to 8 words into a configuration of the mechanism.
static int configure(const char *name, AttentionConfig *config, const char *const *words, int n, Error *error) {
    static Options options;
    char *argv[9] = {(char *)"test"};
    options = (Options){.usage = "test"};
    *config = sizes();
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    attention_add_options(&options, config);
    if (options_parse(&options, n + 1, argv, NULL, 0, NULL, error)) return -1;
    return attention_configure(attention_find(name), config, &options, error);
}

static void every_mechanism_is_found_and_complete(void) {
    char names[256];
    attention_names(names, sizeof names);
    for (int i = 0; attention_registry[i]; i++) {
        const Attention *a = attention_registry[i];
        CHECK(attention_find(a->name) == a);
        CHECK_CONTAINS(names, a->name);
        CHECK(a->summary && a->saved_size && a->work_size && a->cache_size && a->flops);
        CHECK(a->forward && a->backward && a->step);
        CHECK(!a->constants == !a->draw);
    }
    CHECK(attention_find("sofmax") == NULL);
}

static void defaults_fill_in_what_was_not_given(void) {
    AttentionConfig config;
    Error error;
    const char *const words[] = {"--eps", "0.5", "--normalizer", "softmax"};
    CHECK(configure("yat", &config, NULL, 0, &error) == 0);
    CHECK(config.HS == 16 && config.eps == 1e-3f && config.delta == 1e-6f && config.normalizer == NORMALIZER_KERNEL);
    CHECK(configure("yat", &config, words, 4, &error) == 0);
    CHECK(config.eps == 0.5f && config.delta == 1e-6f && config.normalizer == NORMALIZER_SOFTMAX);
}

static void foreign_options_are_refused(void) {
    AttentionConfig config;
    Error error;
    const char *const r[] = {"--R", "3"}, *const eps[] = {"--eps", "0.1"};
    CHECK(configure("softmax", &config, r, 2, &error) == -1);
    CHECK_CONTAINS(error.text, "option --R belongs to slay, not to softmax; remove it");
    CHECK(configure("softmax", &config, eps, 2, &error) == -1);
    CHECK_CONTAINS(error.text, "option --eps belongs to yat, yat-spherical");
}

static void bad_sizes_are_refused(void) {
    AttentionConfig config = sizes();
    Error error;
    config.NH = 5;
    CHECK(attention_configure(attention_find("softmax"), &config, NULL, &error) == -1);
    CHECK_CONTAINS(error.text, "48 channels cannot be split into 5 heads");
    config.NH = 0;
    CHECK(attention_configure(attention_find("softmax"), &config, NULL, &error) == -1);
    const char *const tiny[] = {"--eps", "1e-7"};
    CHECK(configure("yat-spherical", &config, tiny, 2, &error) == -1);
    CHECK_CONTAINS(error.text, "eps must be at least 1e-6");
}

// True FAVOR+ features come with its authors' orthogonal projections, unless others are asked for.
static void defaults_follow_the_features(void) {
    AttentionConfig config;
    Error error = {""};
    const char *const exp_features[] = {"--features", "exp", "--omega", "gaussian"};
    CHECK(configure("favor", &config, NULL, 0, &error) == 0);
    CHECK(config.features == FEATURES_RELU && config.omega == OMEGA_GAUSSIAN);
    CHECK(configure("favor", &config, exp_features, 2, &error) == 0);
    CHECK(config.features == FEATURES_EXP && config.omega == OMEGA_ORTHOGONAL);
    CHECK(configure("favor", &config, exp_features, 4, &error) == 0);
    CHECK(config.features == FEATURES_EXP && config.omega == OMEGA_GAUSSIAN);
}

static void json_round_trip_of_every_mechanism(void) {
    for (int i = 0; attention_registry[i]; i++) {
        AttentionConfig config, back = sizes();
        const Attention *found = NULL;
        Error error = {""};
        CHECK(configure(attention_registry[i]->name, &config, NULL, 0, &error) == 0);
        back.seed = 0;
        json_t *json = attention_to_json(attention_registry[i], &config);
        CHECK(attention_from_json(&found, &back, json, &error) == 0);
        CHECK(found == attention_registry[i]);
        CHECK(back.C == config.C && back.HS == config.HS && back.max_T == config.max_T);
        CHECK(back.seed == (attention_registry[i]->constants ? config.seed : 0));
        json_t *again = attention_to_json(attention_registry[i], &back);
        CHECK(json_equal(json, again));
        json_decref(again);
        json_decref(json);
    }
}

static void check_refused(const char *text, const char *message) {
    AttentionConfig config = sizes();
    const Attention *found;
    Error error = {""};
    json_t *json = json_loads(text, 0, NULL);
    CHECK(attention_from_json(&found, &config, json, &error) == -1);
    CHECK_CONTAINS(error.text, message);
    json_decref(json);
}

static void bad_json_is_refused(void) {
    check_refused("{}", "unknown mechanism \"(no name)\"; known are softmax");
    check_refused("[]", "unknown mechanism");
    check_refused("{\"name\": 7}", "unknown mechanism");
    check_refused("{\"name\": \"sofmax\"}", "unknown mechanism \"sofmax\"");
    check_refused("{\"name\": \"yat\"}", "\"eps\" is missing");
    check_refused("{\"name\": \"yat\", \"eps\": \"x\"}", "\"eps\" must be a number");
    check_refused("{\"name\": \"yat\", \"eps\": -1}", "\"eps\" is -1, must be from");
    check_refused("{\"name\": \"yat\", \"eps\": 0.1, \"delta\": 1e-6, \"normalizer\": \"sum\"}", "\"normalizer\" is");
    check_refused("{\"name\": \"yat\", \"eps\": 0.1, \"delta\": 1e-6, \"normalizer\": 1}", "must be one of");
    check_refused("{\"name\": \"slay\", \"R\": 1e9}", "\"R\" must be a number");
    check_refused("{\"name\": \"slay\", \"R\": 1000000}", "\"R\" is 1e+06, must be from");
}

static void floats_are_written_as_people_write_them(void) {
    AttentionConfig config;
    Error error;
    CHECK(configure("yat", &config, NULL, 0, &error) == 0);
    json_t *json = attention_to_json(attention_find("yat"), &config);
    char *text = json_dumps(json, JSON_REAL_PRECISION(17));
    CHECK_CONTAINS(text, "\"eps\": 0.001,");
    free(text);
    json_decref(json);
}

int main(void) {
    RUN(every_mechanism_is_found_and_complete);
    RUN(defaults_fill_in_what_was_not_given);
    RUN(foreign_options_are_refused);
    RUN(bad_sizes_are_refused);
    RUN(defaults_follow_the_features);
    RUN(json_round_trip_of_every_mechanism);
    RUN(bad_json_is_refused);
    RUN(floats_are_written_as_people_write_them);
    return test_summary();
}
