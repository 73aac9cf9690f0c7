// The registry of mechanisms, their options, and their configuration as JSON.
#include "attention.h"
#include "registry.h"
#include "core/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the registry

#define DECLARE(symbol) extern const Attention attention_##symbol;
ATTENTIONS(DECLARE)
#define ADDRESS(symbol) &attention_##symbol,
const Attention *const attention_registry[] = {ATTENTIONS(ADDRESS) NULL};

const Attention *attention_find(const char *name) {
    for (int i = 0; attention_registry[i]; i++) {
        if (strcmp(attention_registry[i]->name, name) == 0) return attention_registry[i];
    }
    return NULL;
}

// ---- the options: one table for the command line, for the refusals and for JSON

typedef struct {
    unsigned use;        // USES_...
    const char *option;  // on the command line
    const char *key;     // in JSON
    OptionType type;     // OPTION_INT, OPTION_FLOAT or OPTION_CHOICE
    size_t offset;       // in AttentionConfig
    double least, most;  // range, inclusive
    const char *choices; // words of the enumeration, in its order
    const char *help;
    size_t written_with; // to JSON: ALWAYS, NEVER, or when the int at this offset is not 0
} Field;

#define AT(member) offsetof(AttentionConfig, member)
#define GROUP      "attention" // of its options in --help
#define ALWAYS     ((size_t)0)
#define NEVER      ((size_t)-1)
static const Field fields[] = {
    {USES_R, "R", "R", OPTION_INT, AT(R), 1, 64, NULL, "quadrature nodes", ALWAYS},
    {USES_M, "M", "M", OPTION_INT, AT(M), 1, 65536, NULL, "random features (per quadrature node)", ALWAYS},
    {USES_P, "P", "P", OPTION_INT, AT(P), 1, 65536, NULL, "polynomial features", ALWAYS},
    {USES_EPS, "eps", "eps", OPTION_FLOAT, AT(eps), 1e-12, 1e3, NULL, "epsilon of the kernel's denominator", ALWAYS},
    {USES_DELTA, "delta", "delta", OPTION_FLOAT, AT(delta), 1e-30, 1e3, NULL, "added to a row's sum before dividing",
     ALWAYS},
    {USES_NORMALIZER, "normalizer", "normalizer", OPTION_CHOICE, AT(normalizer), 0, 0, "kernel|softmax",
     "divide by the row's sum, or softmax over the kernel's values", ALWAYS},
    {USES_POLY, "poly", "poly", OPTION_CHOICE, AT(poly), 0, 0,
     "anchor|exact|nystrom|tensorsketch|maclaurin|none|rademacher", "the polynomial feature map", ALWAYS},
    {USES_FUSION, "fusion", "fusion", OPTION_CHOICE, AT(fusion), 0, 0, "tensor|hadamard|flat",
     "how polynomial and exponential features are joined", ALWAYS},
    {USES_OMEGA, "omega", "omega", OPTION_CHOICE, AT(omega), 0, 0, "gaussian|orthogonal", "the random projections",
     ALWAYS},
    {USES_FEATURES, "features", "features", OPTION_CHOICE, AT(features), 0, 0, "relu|exp", "the random feature map",
     ALWAYS},
    {USES_DENOMINATOR, "denominator", "denominator", OPTION_CHOICE, AT(denominator), 0, 0, "add|clamp",
     "divide by Z + delta, or by max(Z, delta)", ALWAYS},
    {USES_SCALE, "scale-features", "scale_features", OPTION_INT, AT(scale_features), 0, 1, NULL,
     "1: features scaled so that delta is negligible", ALWAYS},
    {USES_CHUNK, "chunk", "chunk", OPTION_INT, AT(chunk), 0, 1 << 20, NULL, "rows per chunk; 0: chosen by cost",
     ALWAYS},
    {USES_WINDOW, "window", "window", OPTION_INT, AT(window), 0, 1 << 20, NULL, "keys that a query sees; 0: all",
     AT(window)},
    {USES_DECAY, "decay", "decay", OPTION_CHOICE, AT(decay), 0, 0, "none|fixed|learned",
     "scores fade with distance, by a factor for each head", AT(decay)},
    {USES_DECAY, "decay-shortest", "decay_shortest", OPTION_FLOAT, AT(decay_shortest), 1.01, 1e6, NULL,
     "reach of the first head's decay in tokens", AT(decay)},
    {USES_DECAY, "decay-longest", "decay_longest", OPTION_FLOAT, AT(decay_longest), 1.01, 1e6, NULL,
     "reach of the last head's decay in tokens", AT(decay)},
    {USES_LEARN, "learn", "learn", OPTION_CHOICE, AT(learn), 0, 0, "none|omega|anchors|both",
     "which of the drawn tensors are trained", AT(learn)},
    {USES_PRESET, "preset", "preset", OPTION_CHOICE, AT(preset), 0, 0, "paper|recall",
     "R, M, P and poly by name; each may still be given", NEVER},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

// The fields that the mechanism has: the shared ones that it uses, then its own. Returns their number.
enum { FIELDS_MAX = FIELDS + ATTENTION_OWN_MAX };
static int fields_of(Field list[FIELDS_MAX], const Attention *attention) {
    int n = 0;
    for (int i = 0; i < FIELDS; i++)
        if ((attention->uses | USES_DECAY) & fields[i].use) list[n++] = fields[i];
    for (int i = 0; i < ATTENTION_OWN_MAX && attention->own[i].option; i++) {
        const AttentionOption *own = &attention->own[i];
        list[n++] = (Field){.option = own->option,
                            .key = own->key,
                            .type = OPTION_FLOAT,
                            .offset = AT(own) + (size_t)i * sizeof(float),
                            .least = own->least,
                            .most = own->most,
                            .help = own->help};
    }
    return n;
}

int attention_has_option(const Attention *attention, const char *option) {
    Field list[FIELDS_MAX];
    for (int i = fields_of(list, attention) - 1; i >= 0; i--)
        if (!strcmp(list[i].option, option)) return 1;
    return 0;
}

static void *field_address(const Field *field, AttentionConfig *config) {
    return (char *)config + field->offset;
}

static void field_copy(const Field *field, AttentionConfig *to, const AttentionConfig *from) {
    size_t size = field->type == OPTION_FLOAT ? sizeof(float) : sizeof(int);
    memcpy((char *)to + field->offset, (const char *)from + field->offset, size);
}

// "softmax, yat, ...": the names of all mechanisms that have the option (NULL: every mechanism).
static const char *names_of_users(char *text, size_t size, const char *option) {
    size_t length = 0;
    text[0] = 0;
    for (int i = 0; attention_registry[i]; i++) {
        const Attention *attention = attention_registry[i];
        if (option && !attention_has_option(attention, option)) continue;
        int n = snprintf(text + length, size - length, "%s%s", length ? ", " : "", attention->name);
        if (n < 0 || (size_t)n >= size - length) break;
        length += (size_t)n;
    }
    return text;
}

const char *attention_names(char *text, size_t size) {
    return names_of_users(text, size, NULL);
}

int attention_is_option(const Option *option) {
    return !strcmp(option->group, GROUP);
}

int attention_refuse_option(const Attention *attention, const char *option, Error *error) {
    char owners[256];
    return error_set(error, "option --%s belongs to %s, not to %s; remove it", option,
                     names_of_users(owners, sizeof owners, option), attention->name);
}

static void add_option(Options *options, const Field *field, AttentionConfig *config) {
    Option option = {.group = GROUP,
                     .name = field->option,
                     .type = field->type,
                     .value = field_address(field, config),
                     .least = field->least,
                     .most = field->most,
                     .choices = field->choices,
                     .help = field->help};
    options_add(options, &option, 1);
    Option *added = options_find(options, field->option); // the default depends on the mechanism
    snprintf(added->default_text, sizeof added->default_text, "the attention's own");
}

void attention_add_options(Options *options, AttentionConfig *config) {
    Field list[FIELDS_MAX];
    for (int i = 0; i < FIELDS; i++) add_option(options, &fields[i], config);
    for (int i = 0; attention_registry[i]; i++)
        for (int k = 0, n = fields_of(list, attention_registry[i]); k < n; k++)
            if (!list[k].use) add_option(options, &list[k], config);
}

static int option_was_given(const Options *options, const char *name) {
    for (int i = 0; options && i < options->count; i++) {
        if (strcmp(options->items[i].name, name) == 0) return options->items[i].given;
    }
    return 0;
}

// The mechanism's defaults; whatever it does not use is 0. They may depend on the features that were asked for.
static AttentionConfig default_config(const Attention *attention, const AttentionConfig *sizes) {
    AttentionConfig config = {.B = sizes->B,
                              .T = sizes->T,
                              .C = sizes->C,
                              .NH = sizes->NH,
                              .HS = sizes->HS,
                              .max_T = sizes->max_T,
                              .packed = sizes->packed,
                              .features = sizes->features,
                              .fusion = sizes->fusion,
                              .preset = sizes->preset,
                              .decay_shortest = 8,
                              .decay_longest = 2048,
                              .seed = sizes->seed};
    for (int i = 0; i < ATTENTION_OWN_MAX; i++) config.own[i] = attention->own[i].value;
    if (attention->defaults) attention->defaults(&config);
    return config;
}

static int check_config(const Attention *attention, AttentionConfig *config, Error *error) {
    char why[512] = "";
    if (config->C < 1 || config->NH < 1 || config->C % config->NH) {
        return error_set(error,
                         "%d channels cannot be split into %d heads: the number of channels must be a multiple of "
                         "the number of heads",
                         config->C, config->NH);
    }
    config->HS = config->C / config->NH;
    if (config->decay && config->decay_shortest > config->decay_longest) {
        return error_set(error, "attention %s: decay-shortest is %g, more than decay-longest, %g; exchange them",
                         attention->name, (double)config->decay_shortest, (double)config->decay_longest);
    }
    if (attention->check && attention->check(config, why, sizeof why)) {
        return error_set(error, "attention %s: %s", attention->name, why);
    }
    return 0;
}

int attention_configure(const Attention *attention, AttentionConfig *config, const Options *options, Error *error) {
    Field list[FIELDS_MAX];
    AttentionConfig configured = default_config(attention, config);
    for (int i = 0; options && i < options->count; i++) {
        const Option *option = &options->items[i];
        if (!option->given || !attention_is_option(option) || attention_has_option(attention, option->name)) continue;
        return attention_refuse_option(attention, option->name, error);
    }
    for (int i = 0, n = fields_of(list, attention); i < n; i++)
        if (option_was_given(options, list[i].option)) field_copy(&list[i], &configured, config);
    *config = configured;
    return check_config(attention, config, error);
}

// ---- decay

static double ladder_reach(int head, const AttentionConfig *config) {
    double along = config->NH > 1 ? (double)head / (config->NH - 1) : 1;
    return config->decay_shortest * pow((double)config->decay_longest / config->decay_shortest, along);
}

real attention_log_decay(const real *parameters, int head, const AttentionConfig *config) {
    if (config->decay == DECAY_NONE) return 0;
    if (config->decay == DECAY_FIXED) return (real)log1p(-1 / ladder_reach(head, config));
    double g = (double)parameters[head]; // log(1 / (1 + exp(-g))) without overflow
    return (real)(g < 0 ? g - log1p(exp(g)) : -log1p(exp(-g)));
}

void attention_decay_gradient(real *dparameters, const real *parameters, int head, real dlog_decay,
                              const AttentionConfig *config) {
    if (config->decay != DECAY_LEARNED) return;
    double g = (double)parameters[head];
    dparameters[head] += (real)(dlog_decay / (1 + exp(g))); // d log(logistic(g)) / dg = 1 - logistic(g)
}

// ---- constants and parameters

// The tensors of one kind, with their places in its block.
static int list_tensors(const Attention *attention, const AttentionConfig *config, int trains,
                        AttentionTensor list[ATTENTION_TENSORS_MAX], size_t *total) {
    AttentionTensor own[ATTENTION_TENSORS_MAX];
    int n = 0, own_count = attention->tensors ? attention->tensors(config, own) : 0;
    if (trains && config->decay == DECAY_LEARNED)
        list[n++] = (AttentionTensor){.name = "decay", .rank = 1, .shape = {(size_t)config->NH}, .trains = 1};
    for (int i = 0; i < own_count; i++)
        if (own[i].trains == trains) list[n++] = own[i];
    *total = 0;
    for (int i = 0; i < n; i++) {
        list[i].offset = *total;
        list[i].count = 1;
        for (int d = 0; d < list[i].rank; d++) list[i].count *= list[i].shape[d];
        *total += list[i].count;
    }
    return n;
}

int attention_constants(const Attention *attention, const AttentionConfig *config,
                        AttentionTensor list[ATTENTION_TENSORS_MAX], size_t *total) {
    return list_tensors(attention, config, 0, list, total);
}

int attention_parameters(const Attention *attention, const AttentionConfig *config,
                         AttentionTensor list[ATTENTION_TENSORS_MAX], size_t *total) {
    return list_tensors(attention, config, 1, list, total);
}

size_t attention_constant_count(const Attention *attention, const AttentionConfig *config) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    attention_constants(attention, config, list, &total);
    return total;
}

size_t attention_parameter_count(const Attention *attention, const AttentionConfig *config) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    attention_parameters(attention, config, list, &total);
    return total;
}

void attention_draw(const Attention *attention, real *constants, real *parameters, int layer,
                    const AttentionConfig *config) {
    if (attention->draw) attention->draw(constants, parameters, layer, config);
    for (int head = 0; config->decay == DECAY_LEARNED && head < config->NH; head++)
        parameters[head] = (real)(float)log(ladder_reach(head, config) - 1); // logistic(log(r - 1)) = 1 - 1 / r
}

// ---- JSON

// The double with the fewest decimals that is read back as the same float: 0.001, not 0.0010000000474974513.
static double shortest_decimal(float value) {
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == value) return strtod(text, NULL);
    }
    return value;
}

static json_t *field_to_json(const Field *field, const AttentionConfig *config) {
    const void *value = (const char *)config + field->offset;
    char word[64];
    switch (field->type) {
    case OPTION_FLOAT:
        return json_real(shortest_decimal(*(const float *)value));
    case OPTION_CHOICE:
        return json_string(choice_name(field->choices, *(const int *)value, word, sizeof word));
    default:
        return json_integer(*(const int *)value);
    }
}

// A field that says nothing where another one is 0 is written only with that one: see `written_with`.
static int is_written(const Field *field, const AttentionConfig *config) {
    if (field->written_with == ALWAYS) return 1;
    return field->written_with != NEVER && *(const int *)((const char *)config + field->written_with);
}

json_t *attention_to_json(const Attention *attention, const AttentionConfig *config) {
    Field list[FIELDS_MAX];
    json_t *json = json_object();
    json_put(json, "name", json_string(attention->name));
    for (int i = 0, n = fields_of(list, attention); i < n; i++)
        if (is_written(&list[i], config)) json_put(json, list[i].key, field_to_json(&list[i], config));
    // As text: JSON's integers are signed.
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)config->seed);
    if (attention->tensors) json_put(json, "seed", json_string(seed));
    return json;
}

static int number_from_json(const Field *field, AttentionConfig *config, const json_t *json, Error *error) {
    double number = json_number_value(json);
    int is_right_type = field->type == OPTION_INT ? json_is_integer(json) : json_is_number(json);
    if (!is_right_type)
        return error_set(
            error,
            "attention: \"%s\" must be a number, found something else; mend the configuration or use another copy",
            field->key);
    if (!(number >= field->least && number <= field->most)) {
        return error_set(error,
                         "attention: \"%s\" is %g, must be from %g to %g; mend the configuration or use another copy",
                         field->key, number, field->least, field->most);
    }
    if (field->type == OPTION_INT)
        *(int *)field_address(field, config) = (int)number;
    else
        *(float *)field_address(field, config) = (float)number;
    return 0;
}

static int field_from_json(const Field *field, AttentionConfig *config, const json_t *json, Error *error) {
    if (field->type != OPTION_CHOICE) return number_from_json(field, config, json, error);
    const char *word = json_string_value(json);
    int index = word ? choice_index(field->choices, word) : -1;
    if (index < 0) {
        return error_set(
            error, "attention: \"%s\" is \"%.40s\", must be one of %s; mend the configuration or use another copy",
            field->key, word ? word : "not a string", field->choices);
    }
    *(int *)field_address(field, config) = index;
    return 0;
}

static int seed_from_json(AttentionConfig *config, const json_t *json, Error *error) {
    const char *text = json_string_value(json);
    char *end = NULL;
    if (text && text[0] >= '0' && text[0] <= '9') config->seed = strtoull(text, &end, 10);
    if (!end || *end)
        return error_set(
            error,
            "attention: \"seed\" must be a number written as a string; mend the configuration or use another copy");
    return 0;
}

// The sizes (B, T, C, NH, max_T) are the model's and must be in the config already.
int attention_from_json(const Attention **attention, AttentionConfig *config, const json_t *json, Error *error) {
    char names[256];
    Field list[FIELDS_MAX];
    const char *name = json_string_value(json_object_get(json, "name"));
    const Attention *found = name ? attention_find(name) : NULL;
    if (!found) {
        return error_set(error, "attention: unknown mechanism \"%.40s\"; known are %s", name ? name : "(no name)",
                         attention_names(names, sizeof names));
    }
    *attention = found;
    *config = default_config(found, config);
    for (int i = 0, n = fields_of(list, found); i < n; i++) {
        const json_t *value = json_object_get(json, list[i].key);
        if (!value && list[i].written_with != ALWAYS) continue;
        if (!value)
            return error_set(error, "attention %s: \"%s\" is missing; mend the configuration or use another copy",
                             found->name, list[i].key);
        if (field_from_json(&list[i], config, value, error)) return -1;
    }
    const json_t *seed = json_object_get(json, "seed");
    if (seed && seed_from_json(config, seed, error)) return -1;
    return check_config(found, config, error);
}
