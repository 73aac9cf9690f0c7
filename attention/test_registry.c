// The registry, the options, the configuration as JSON, and whether every mechanism has what belongs to one.
#include "attention.h"
#include "naive.h"
#include "test_linear_fixture.h"
#include "test_variants.h"
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
        CHECK(!a->tensors == !a->draw);
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

static int is_size(const AttentionConfig *config, int R, int M, int P) {
    return config->R == R && config->M == M && config->P == P;
}

// What is given wins over a preset; the flat fusion has as many features as both presets.
static void presets_fill_in_what_was_not_given(void) {
    AttentionConfig config;
    Error error = {""};
    const char *const recall[] = {"--preset", "recall", "--P", "48"}, *const paper[] = {"--preset", "paper"};
    const char *const flat[] = {"--fusion", "flat", "--preset", "recall", "--M", "100"}, *const R[] = {"--R", "2"};
    CHECK(configure("slay", &config, NULL, 0, &error) == 0 && is_size(&config, 3, 16, 8));
    CHECK(configure("slay", &config, paper, 2, &error) == 0 && is_size(&config, 3, 16, 8));
    CHECK(configure("slay", &config, R, 2, &error) == 0 && is_size(&config, 2, 16, 8));
    CHECK(configure("slay", &config, recall, 2, &error) == 0 && is_size(&config, 1, 4, 96) &&
          config.poly == POLY_NYSTROM);
    CHECK(configure("slay", &config, recall, 4, &error) == 0 && is_size(&config, 1, 4, 48));
    CHECK(configure("slay", &config, flat, 2, &error) == 0 && is_size(&config, 1, 384, 1));
    CHECK(configure("slay", &config, flat, 4, &error) == 0 && is_size(&config, 1, 384, 1));
    CHECK(configure("slay", &config, flat, 6, &error) == 0 && is_size(&config, 1, 100, 1));
}

static void check_round_trip(const Attention *attention, const AttentionConfig *config) {
    AttentionConfig back = sizes();
    const Attention *found = NULL;
    Error error = {""};
    back.seed = 0;
    json_t *json = attention_to_json(attention, config);
    CHECK(attention_from_json(&found, &back, json, &error) == 0);
    CHECK(found == attention);
    CHECK(back.C == config->C && back.HS == config->HS && back.max_T == config->max_T);
    CHECK(back.R == config->R && back.M == config->M && back.P == config->P && back.learn == config->learn);
    CHECK(back.seed == (attention->tensors ? config->seed : 0));
    json_t *again = attention_to_json(attention, &back);
    CHECK(json_equal(json, again));
    CHECK(!json_object_get(json, "preset") && !json_object_get(json, "learn") == !config->learn);
    json_decref(again);
    json_decref(json);
}

static void json_round_trip_of_every_mechanism(void) {
    AttentionConfig config;
    Error error = {""};
    for (int i = 0; attention_registry[i]; i++) {
        CHECK(configure(attention_registry[i]->name, &config, NULL, 0, &error) == 0);
        check_round_trip(attention_registry[i], &config);
    }
    for (int v = 0; v < LINEAR_VARIANTS; v++) {
        config = sizes();
        variant_configure(&config, &linear_variants[v]);
        check_round_trip(attention_find(linear_variants[v].name), &config);
    }
    const char *const recall[] = {"--preset", "recall"};
    CHECK(configure("slay", &config, recall, 2, &error) == 0);
    check_round_trip(attention_find("slay"), &config);
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

// ---- what belongs to a mechanism; scripts/new_attention writes it all but the curve

typedef struct {
    const Attention *attention;
    const char *symbol;
    int is_linear;
} Entry;
#define QUADRATIC_ENTRY(symbol) {&attention_##symbol, #symbol, 0},
#define LINEAR_ENTRY(symbol)    {&attention_##symbol, #symbol, 1},
static const Entry entries[] = {QUADRATIC_ATTENTIONS(QUADRATIC_ENTRY) LINEAR_ATTENTIONS(LINEAR_ENTRY)};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

// Reports every mechanism without it.
static void check_all_have(int (*has)(const Entry *), const char *what, const char *where) {
    for (int i = 0; i < ENTRIES; i++) {
        char complaint[200];
        snprintf(complaint, sizeof complaint, "%s has no %s: %s", entries[i].attention->name, what, where);
        if (!has(&entries[i])) test_complain(__FILE__, __LINE__, complaint);
    }
}

// Whether the file has a line with `before`, the word and `after` directly after one another.
static int file_contains(const char *path, const char *before, const char *word, const char *after) {
    char line[8192], wanted[300];
    int found = 0;
    FILE *file = fopen(path, "r");
    snprintf(wanted, sizeof wanted, "%s%s%s", before, word, after);
    while (file && fgets(line, sizeof line, file)) found |= strstr(line, wanted) != NULL;
    if (file) fclose(file);
    return found;
}

static int is_named_like_its_symbol(const Entry *entry) {
    char name[64];
    snprintf(name, sizeof name, "%s", entry->attention->name);
    for (char *c = name; *c; c++) *c = *c == '-' ? '_' : *c;
    return strcmp(name, entry->symbol) == 0;
}
static void names_are_those_of_the_files(void) {
    check_all_have(is_named_like_its_symbol, "name like its symbol", "the symbol with - in place of _");
}

static int has_naive_twin(const Entry *entry) {
    return naive_twin(entry->is_linear ? naive_linear_twins : naive_quadratic_twins, entry->attention) != NULL;
}
static void every_mechanism_has_a_naive_twin(void) {
    check_all_have(has_naive_twin, "naive twin", "attention/naive_linear.c or naive_quadratic.c");
}

static int has_case(const Entry *entry) {
    const Variant *variants = entry->is_linear ? linear_variants : quadratic_variants;
    for (int v = entry->is_linear ? LINEAR_VARIANTS : QUADRATIC_VARIANTS; v > 0; v--)
        if (!strcmp(variants[v - 1].name, entry->attention->name)) return 1;
    return 0;
}
static void every_mechanism_has_a_finite_difference_case(void) {
    check_all_have(has_case, "finite-difference case", "attention/test_variants.h");
}

static int has_linear_fixture(const Entry *entry) {
    Safetensors file;
    int found = 0;
    char group[64];
    if (open_fixture(&file)) return 0;
    for (int i = 0; !found && fixture_group(group, sizeof group, &file, &i); i++)
        found = !strcmp(fixture_attention(&file, group), entry->attention->name);
    safetensors_close(&file);
    return found;
}
static int has_quadratic_fixture(const Entry *entry) {
    Safetensors file;
    Error error;
    char name[80];
    snprintf(name, sizeof name, "%s/o", entry->symbol);
    if (safetensors_open(&file, "dev/fixtures/quadratic.safetensors", &error)) return 0;
    int found = safetensors_find(&file, name) != NULL;
    safetensors_close(&file);
    return found;
}
static int has_fixture(const Entry *entry) {
    return entry->is_linear ? has_linear_fixture(entry) : has_quadratic_fixture(entry);
}
static void every_mechanism_has_a_fixture(void) {
    check_all_have(has_fixture, "fixture", "dev/fixtures/add_attention.py NAME");
}

static int has_curve(const Entry *entry) {
    return file_contains("dev/fixtures/curves.tsv", "\t", entry->attention->name, "\t") ||
           file_contains("dev/fixtures/curves.tsv", "\t", entry->attention->name, "\n");
}
static void every_mechanism_has_a_loss_curve(void) {
    check_all_have(has_curve, "loss curve", "attention/test_curves.sh --write NAME");
}

// Looks at the text, so that it works where no .cu file can be compiled.
static int has_gpu_side(const Entry *entry) {
    char path[80];
    snprintf(path, sizeof path, "attention/%s.cu", entry->symbol);
    return file_contains(path, "attention_gpu_", entry->symbol, " =") ||
           file_contains(path, "_GPU_ATTENTION(", entry->symbol, ",");
}
static void every_mechanism_has_a_gpu_side(void) {
    check_all_have(has_gpu_side, "GPU side", "attention/NAME.cu");
}

// A row of the table and a heading "### this, that" with the name among its words.
static int has_section(const Entry *entry) {
    char line[2048];
    int found = 0;
    FILE *file = fopen("docs/attentions.md", "r");
    while (file && fgets(line, sizeof line, file))
        for (char *word = strncmp(line, "### ", 4) ? NULL : strtok(line, "#, \n"); word; word = strtok(NULL, ", \n"))
            found |= !strcmp(word, entry->attention->name);
    if (file) fclose(file);
    return found && file_contains("docs/attentions.md", "| `", entry->attention->name, "` |");
}
static void every_mechanism_is_documented(void) {
    check_all_have(has_section, "section and row in the table", "docs/attentions.md");
}

int main(void) {
    RUN(names_are_those_of_the_files);
    RUN(every_mechanism_has_a_naive_twin);
    RUN(every_mechanism_has_a_finite_difference_case);
    RUN(every_mechanism_has_a_fixture);
    RUN(every_mechanism_has_a_loss_curve);
    RUN(every_mechanism_has_a_gpu_side);
    RUN(every_mechanism_is_documented);
    RUN(every_mechanism_is_found_and_complete);
    RUN(defaults_fill_in_what_was_not_given);
    RUN(foreign_options_are_refused);
    RUN(bad_sizes_are_refused);
    RUN(defaults_follow_the_features);
    RUN(presets_fill_in_what_was_not_given);
    RUN(json_round_trip_of_every_mechanism);
    RUN(bad_json_is_refused);
    RUN(floats_are_written_as_people_write_them);
    return test_summary();
}
