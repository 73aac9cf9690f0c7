#include "gpt2_config.h"
#include "core/base/json.h"
#include "core/base/options.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *key;
    size_t offset;
    int most;
} sizes[] = {
    {"n_positions", offsetof(GPT2Config, max_T), GPT2_CONTEXT_MAX},
    {"vocab_size", offsetof(GPT2Config, V), GPT2_VOCABULARY_MAX},
    {"n_layer", offsetof(GPT2Config, L), GPT2_LAYERS_MAX},
    {"n_head", offsetof(GPT2Config, NH), GPT2_HEADS_MAX},
    {"n_embd", offsetof(GPT2Config, C), GPT2_WIDTH_MAX},
};
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes };

static int *size_field(const GPT2Config *config, int i) {
    return (int *)((char *)config + sizes[i].offset);
}

// ---- checks

static int check_size(int i, long long value, const char *path, Error *error) {
    if (value >= 1 && value <= sizes[i].most) return 0;
    return error_set(error, "%.600s: %s: expected 1 to %d, found %lld; the configuration is damaged or unsupported",
                     path, sizes[i].key, sizes[i].most, value);
}

int gpt2_config_check(const GPT2Config *config, const char *path, Error *error) {
    for (int i = 0; i < SIZE_COUNT; i++)
        if (check_size(i, *size_field(config, i), path, error)) return -1;
    if (config->C % config->NH == 0) return 0;
    return error_set(error, "%.600s: n_embd: expected a multiple of n_head = %d, found %d; choose sizes that divide",
                     path, config->NH, config->C);
}

// A switch of Hugging Face's configuration that has to stand at its default; absent means default.
static int check_switch(const json_t *json, const char *key, int expected, const char *path, Error *error) {
    const json_t *value = json_object_get(json, key);
    if (!value || (json_is_boolean(value) && json_is_true(value) == expected)) return 0;
    return error_set(error, "%.600s: %s: expected %s, found something else; this variant of GPT-2 is not supported",
                     path, key, expected ? "true" : "false");
}

static int check_switches(const json_t *json, const char *path, Error *error) {
    return check_switch(json, "scale_attn_weights", 1, path, error) ||
                   check_switch(json, "tie_word_embeddings", 1, path, error) ||
                   check_switch(json, "scale_attn_by_inverse_layer_idx", 0, path, error) ||
                   check_switch(json, "reorder_and_upcast_attn", 0, path, error) ||
                   check_switch(json, "add_cross_attention", 0, path, error)
               ? -1
               : 0;
}

// What fixes the arithmetic of a layer besides its sizes.
static int check_arithmetic(const json_t *json, const GPT2Config *config, const char *path, Error *error) {
    const json_t *activation = json_object_get(json, "activation_function");
    const char *name = activation ? json_string_value(activation) : "gelu_new"; // the default of GPT2Config
    if (!name || (strcmp(name, "gelu_new") != 0 && strcmp(name, "gelu_pytorch_tanh") != 0))
        return error_set(error,
                         "%.600s: activation_function: expected gelu_new, found %.60s; only GELU in its tanh form is "
                         "supported",
                         path, name ? name : "no text");
    const json_t *epsilon = json_object_get(json, "layer_norm_epsilon");
    if (epsilon && !(fabs(json_number_value(epsilon) - LAYER_NORM_EPSILON) < 1e-9))
        return error_set(error, "%.600s: layer_norm_epsilon: expected %g, found %g; other values are not supported",
                         path, LAYER_NORM_EPSILON, json_number_value(epsilon));
    const json_t *inner = json_object_get(json, "n_inner");
    if (inner && !json_is_null(inner) && json_integer_value(inner) != 4LL * config->C)
        return error_set(error,
                         "%.600s: n_inner: expected null or 4 * n_embd = %d, found %lld; other widths are not "
                         "supported",
                         path, 4 * config->C, (long long)json_integer_value(inner));
    return check_switches(json, path, error);
}

// Softmax with options (a window, a decay) or a list of attentions is not GPT-2's.
static int is_plain_softmax(const json_t *attention) {
    const char *name = json_string_value(json_object_get(attention, "name"));
    return !attention || (name && strcmp(name, "softmax") == 0 && json_object_size(attention) == 1);
}

// The name of an attention, or of the first of a list; NULL when it has none.
static const char *attention_name(const json_t *attention) {
    if (json_is_array(attention)) attention = json_array_get(attention, 0);
    return json_string_value(json_object_get(attention, "name"));
}

// The table of positions: absent means GPT-2's.
static int read_positions(GPT2Config *config, const json_t *json, const char *path, Error *error) {
    const json_t *positions = json_object_get(json, "positions");
    int found =
        positions && json_is_string(positions) ? choice_index(POSITIONS_CHOICES, json_string_value(positions)) : -1;
    if (positions && found < 0)
        return error_set(error, "%.600s: positions: expected one of " POSITIONS_CHOICES ", found something else", path);
    config->positions = positions ? found : POSITIONS_LEARNED;
    return 0;
}

// The model type and the attention have to agree: neither may be mistaken for the other.
static int check_model_type(const json_t *json, const char *path, Error *error) {
    const char *type = json_string_value(json_object_get(json, "model_type"));
    const json_t *attention = json_object_get(json, "attention");
    if (!type || (strcmp(type, "gpt2") != 0 && strcmp(type, "slay-gpt2") != 0))
        return error_set(error,
                         "%.600s: model_type: expected gpt2 or slay-gpt2, found %.60s; only GPT-2 models can be used",
                         path, type ? type : "none");
    const json_t *positions = json_object_get(json, "positions");
    int is_gpt2 = is_plain_softmax(attention) && !positions;
    if (attention && !attention_name(attention))
        return error_set(error, "%.600s: attention: expected an object with a name; the configuration is damaged",
                         path);
    if (strcmp(type, "gpt2") == 0 && !is_gpt2)
        return error_set(error,
                         "%.600s: model_type gpt2 means softmax attention and learned positions, found %s %.60s; it "
                         "should say slay-gpt2",
                         path, positions ? "positions" : "attention",
                         positions ? "of another kind" : attention_name(attention));
    if (strcmp(type, "slay-gpt2") == 0 && is_gpt2)
        return error_set(error,
                         "%.600s: model_type slay-gpt2: expected another attention than softmax, found %s; it should "
                         "say gpt2",
                         path, attention ? "softmax" : "none");
    return 0;
}

// ---- JSON

int gpt2_config_from_json(GPT2Config *config, const json_t *json, const char *path, Error *error) {
    if (!json_is_object(json))
        return error_set(
            error, "%.600s: expected a JSON object with a model's sizes, found something else; use another copy", path);
    if (check_model_type(json, path, error)) return -1;
    for (int i = 0; i < SIZE_COUNT; i++) {
        const json_t *value = json_object_get(json, sizes[i].key);
        if (!json_is_integer(value))
            return error_set(error, "%.600s: %s: expected a whole number, found %s", path, sizes[i].key,
                             value ? "something else" : "nothing");
        if (check_size(i, json_integer_value(value), path, error)) return -1;
        *size_field(config, i) = (int)json_integer_value(value);
    }
    if (gpt2_config_check(config, path, error) || read_positions(config, json, path, error)) return -1;
    return check_arithmetic(json, config, path, error);
}

const json_t *gpt2_config_attention(const json_t *json) {
    const json_t *attention = json_object_get(json, "attention");
    return is_plain_softmax(attention) ? NULL : attention;
}

json_t *gpt2_config_to_json(const GPT2Config *config, const json_t *attention) {
    int is_gpt2 = is_plain_softmax(attention) && config->positions == POSITIONS_LEARNED;
    char positions[16];
    json_t *json = json_pack("{s:[s], s:s}", "architectures", is_gpt2 ? "GPT2LMHeadModel" : "SlayGPT2LMHeadModel",
                             "model_type", is_gpt2 ? "gpt2" : "slay-gpt2");
    if (!is_gpt2) // the classes of modeling_slay.py, which stands beside it
        json_put(json, "auto_map",
                 json_pack("{s:s, s:s, s:s}", "AutoConfig", "modeling_slay.SlayGPT2Config", //
                           "AutoModel", "modeling_slay.SlayGPT2Model",                      //
                           "AutoModelForCausalLM", "modeling_slay.SlayGPT2LMHeadModel"));
    if (!is_plain_softmax(attention)) json_put(json, "attention", json_incref((json_t *)attention));
    if (config->positions != POSITIONS_LEARNED)
        json_put(json, "positions",
                 json_string(choice_name(POSITIONS_CHOICES, config->positions, positions, sizeof positions)));
    for (int i = 0; i < SIZE_COUNT; i++) json_put(json, sizes[i].key, json_integer(*size_field(config, i)));
    json_t *rest = json_pack("{s:i, s:n, s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:b, s:b, s:i, s:i, s:s}", //
                             "n_ctx", config->max_T, "n_inner", "activation_function", "gelu_new",          //
                             "layer_norm_epsilon", LAYER_NORM_EPSILON, "initializer_range", 0.02,           //
                             "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0,                      //
                             "scale_attn_weights", 1, "scale_attn_by_inverse_layer_idx", 0,                 //
                             "reorder_and_upcast_attn", 0, "tie_word_embeddings", 1,                        //
                             "bos_token_id", config->V - 1, "eos_token_id", config->V - 1,                  //
                             "torch_dtype", "float32");
    json_put_all(json, rest);
    return json;
}

uint64_t gpt2_config_parameters(const GPT2Config *config) {
    uint64_t C = (uint64_t)config->C, V = (uint64_t)config->V, T = (uint64_t)config->max_T, L = (uint64_t)config->L;
    if (config->positions == POSITIONS_NONE) T = 0;
    return (V + T) * C + L * (12 * C * C + 13 * C) + 2 * C;
}

int gpt2_config_agrees(const GPT2Config *asked, const GPT2Config *file, const char *path, Error *error) {
    const struct {
        const char *name;
        int asked, found;
    } sizes[] = {{"layers", asked->L, file->L},
                 {"heads", asked->NH, file->NH},
                 {"width", asked->C, file->C},
                 {"context", asked->max_T, file->max_T},
                 {"vocab", asked->V, file->V}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].asked && sizes[i].asked != sizes[i].found)
            return error_set(error, "%.700s: expected %s %d as asked for, found %d; leave the option out", path,
                             sizes[i].name, sizes[i].asked, sizes[i].found);
    return 0;
}
