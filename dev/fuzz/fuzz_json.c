// What checkpoints say in JSON: the model's configuration, its attentions, a run's state, its options, the position in
// its data. What is accepted says the same when it has been written and read again.
#define _GNU_SOURCE
#include "fuzz.h"
#include "json_memory.h"
#include "core/base/json.h"
#include "core/model/gpt2_config.h"
#include "core/train/run.h"
#include "core/train/settings.h"

static void read_attention(const GPT2Config *config, const json_t *json) {
    AttentionConfig sizes = {.B = 1, .T = 1, .C = config->C, .NH = config->NH, .max_T = config->max_T};
    AttentionStack stack, again;
    Error error;
    if (!json || attention_stack_from_json(&stack, &sizes, json, &error)) return;
    json_t *first = attention_stack_to_json(&stack), *second;
    EXPECT(attention_stack_from_json(&again, &sizes, first, &error) == 0);
    EXPECT(json_equal(first, second = attention_stack_to_json(&again)));
    json_decref(first), json_decref(second);
}

static void read_config(const json_t *json) {
    GPT2Config config, again;
    Error error;
    if (gpt2_config_from_json(&config, json, "config.json", &error)) return;
    const json_t *attention = gpt2_config_attention(json);
    read_attention(&config, attention);
    json_t *written = gpt2_config_to_json(&config, attention);
    EXPECT(gpt2_config_from_json(&again, written, "again", &error) == 0 && !memcmp(&config, &again, sizeof config));
    json_decref(written);
}

static void read_state(const json_t *json) {
    RunState state;
    Error error;
    if (run_state_from_json(&state, json, "run", &error)) return;
    EXPECT(state.step >= 0 && state.tokens >= 0 && state.seconds >= 0 && state.ranks >= 1 && state.rollbacks >= 0);
    EXPECT(state.rate_factor >= 0 && state.rate_factor <= 1);
}

// Strings of an option table are copies in memory that the process keeps: the fuzzer frees them.
static void free_strings(const Options *options, const Settings *defaults, const Settings *settings) {
    for (int i = 0; i < options->count; i++) {
        const Option *option = &options->items[i];
        if (option->type != OPTION_STRING) continue;
        size_t place = (size_t)((char *)option->value - (char *)settings);
        const char *before = *(const char *const *)((const char *)defaults + place), *now = *(char **)option->value;
        if (now != before) free((char *)now);
    }
}

// The option table is made once, and put back as it was for every input.
static void read_options(const json_t *json) {
    static Settings settings, defaults;
    static Options options, table;
    Error error;
    if (!table.count) {
        settings = defaults = settings_default();
        settings_options(&table, &settings);
        options_find(&table, "seed")->given = 1; // a value of the command line is compared with the saved one
    }
    options = table, settings = defaults;
    if (settings_resume(&options, json, json_object_get(json, "attention_config"), 0, &error) == 0) {
        json_decref(settings_to_json(&options));
        settings_finish(&settings, &options, NULL, &error);
    }
    free_strings(&options, &defaults, &settings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL), *value;
    const char *key;
    if (json_is_object(json)) {
        read_config(json);
        read_state(json);
        if (json_object_get(json, "options")) read_options(json_object_get(json, "options"));
        json_object_foreach(json, key, value) free(json_bytes_value(value));
    }
    json_decref(json);
    json_memory_check();
    return 0;
}
