#define _GNU_SOURCE
#include "stack.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

AttentionStack attention_stack_of(const Attention *attention, const AttentionConfig *config) {
    return (AttentionStack){.entries = {{attention, *config, 1}}, .count = 1};
}

static int layers_of_list(const AttentionStack *stack) {
    int layers = 0;
    for (int i = 0; i < stack->count; i++) layers += stack->entries[i].layers;
    return layers;
}

const StackEntry *attention_stack_layer(const AttentionStack *stack, int layer) {
    const StackEntry *entry = stack->entries;
    for (layer %= layers_of_list(stack); layer >= entry->layers; entry++) layer -= entry->layers;
    return entry;
}

// ---- the text of --attention

// Cuts "*3" out of an entry's text; *layers is 1 without it.
static int take_layers(char *entry, int *layers, Error *error) {
    char *star = strchr(entry, '*'), *end;
    *layers = 1;
    if (!star) return 0;
    long count = strtol(star + 1, &end, 10);
    if (end == star + 1 || count < 1 || count > 1024 || (*end && *end != ':'))
        return error_set(
            error, "option --attention: expected a number of layers from 1 to 1024 after *, found \"%.40s\"", star);
    memmove(star, end, strlen(end) + 1);
    *layers = (int)count;
    return 0;
}

// The table of attention options over `config`, with what was given on the command line that the mechanism has.
static Options *entry_options(AttentionConfig *config, const Attention *attention, const Options *given) {
    Options *options = memory_allocate_zeroed(1, sizeof *options, "an attention's options");
    attention_add_options(options, config);
    for (int i = 0; i < options->count; i++) {
        Option *option = &options->items[i];
        for (int k = 0; given && k < given->count; k++)
            if (!strcmp(given->items[k].name, option->name))
                option->given = given->items[k].given && attention_has_option(attention, option->name);
    }
    return options;
}

// name=value:name=value...
static int take_values(Options *options, char *text, Error *error) {
    for (char *rest = text, *word; (word = strsep(&rest, ":"));) {
        char *equals = strchr(word, '=');
        if (equals) *equals = 0;
        Option *option = options_find(options, word);
        if (!equals || !option)
            return error_set(
                error, "option --attention: expected an option of the attention, as window=64, found \"%.60s\"", word);
        if (option_set(option, equals + 1, error)) return -1;
        option->given = 1;
    }
    return 0;
}

static int configure_entry(StackEntry *entry, char *text, const AttentionConfig *given, const Options *options,
                           Error *error) {
    char *values = NULL, names[512];
    entry->config = *given;
    if (take_layers(text, &entry->layers, error)) return -1;
    values = strchr(text, ':');
    if (values) *values++ = 0;
    entry->attention = attention_find(text);
    if (!entry->attention)
        return error_set(error, "option --attention: expected one of %s, found \"%.100s\"",
                         attention_names(names, sizeof names), text);
    Options *table = entry_options(&entry->config, entry->attention, options);
    int failed = (values && take_values(table, values, error)) ||
                 attention_configure(entry->attention, &entry->config, table, error);
    free(table);
    return failed ? -1 : 0;
}

// An option that no entry of a list has would do nothing.
static int check_given(const AttentionStack *stack, const Options *options, Error *error) {
    for (int i = 0; options && i < options->count; i++) {
        const Option *option = &options->items[i];
        int users = 0;
        for (int k = 0; k < stack->count; k++) users += attention_has_option(stack->entries[k].attention, option->name);
        if (!users && option->given && attention_is_option(option))
            return attention_refuse_option(stack->entries[0].attention, option->name, error);
    }
    return 0;
}

int attention_stack_configure(AttentionStack *stack, const char *text, const AttentionConfig *given,
                              const Options *options, Error *error) {
    char *copy = memory_copy_string(text), *rest = copy, *entry;
    int failed = 0;
    *stack = (AttentionStack){0};
    while (!failed && (entry = strsep(&rest, ","))) {
        failed =
            stack->count == STACK_ENTRIES_MAX &&
            error_set(error,
                      "option --attention: expected at most %d entries, found more; slay*3 stands for three layers",
                      STACK_ENTRIES_MAX);
        failed = failed || configure_entry(&stack->entries[stack->count], entry, given, options, error);
        stack->count++;
    }
    free(copy);
    return failed || check_given(stack, options, error) ? -1 : 0;
}

int attention_stack_check_layers(const AttentionStack *stack, int layers, Error *error) {
    if (stack->count == 1 || layers_of_list(stack) <= layers) return 0;
    return error_set(error, "option --attention: expected a list for at most the model's %d layers, found one for %d",
                     layers, layers_of_list(stack));
}

const char *attention_stack_name(const AttentionStack *stack, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < stack->count && used < size; i++) {
        const StackEntry *entry = &stack->entries[i];
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "," : "", entry->attention->name);
        if (entry->layers > 1 && used < size) used += (size_t)snprintf(text + used, size - used, "*%d", entry->layers);
    }
    return text;
}

// ---- JSON

json_t *attention_stack_to_json(const AttentionStack *stack) {
    if (stack->count == 1) return attention_to_json(stack->entries[0].attention, &stack->entries[0].config);
    json_t *list = json_made(json_array(), "a list of attentions");
    for (int i = 0; i < stack->count; i++) {
        json_t *entry = attention_to_json(stack->entries[i].attention, &stack->entries[i].config);
        json_put(entry, "layers", json_integer(stack->entries[i].layers));
        if (json_array_append_new(list, entry)) die("out of memory for a list of attentions");
    }
    return list;
}

int attention_stack_from_json(AttentionStack *stack, const AttentionConfig *sizes, const json_t *json, Error *error) {
    size_t count = json_is_array(json) ? json_array_size(json) : 1;
    *stack = (AttentionStack){.count = (int)count};
    if (count < 1 || count > STACK_ENTRIES_MAX)
        return error_set(error, "attention: expected a list of 1 to %d, found %zu", STACK_ENTRIES_MAX, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(json) ? json_array_get(json, i) : json;
        const json_t *layers = json_is_array(json) ? json_object_get(one, "layers") : NULL;
        StackEntry *entry = &stack->entries[i];
        json_int_t n = layers ? json_integer_value(layers) : 1;
        entry->config = *sizes;
        if (n < 1 || n > 1024)
            return error_set(
                error,
                "attention: \"layers\" must be a number from 1 to 1024; mend the configuration or use another copy");
        entry->layers = (int)n;
        if (attention_from_json(&entry->attention, &entry->config, one, error)) return -1;
    }
    return 0;
}

// ---- all entries

void attention_stack_set_batch(AttentionStack *stack, int B, int T) {
    for (int i = 0; i < stack->count; i++) stack->entries[i].config.B = B, stack->entries[i].config.T = T;
}

void attention_stack_set_model(AttentionStack *stack, int C, int NH, int max_T) {
    for (int i = 0; i < stack->count; i++) {
        AttentionConfig *config = &stack->entries[i].config;
        config->C = C, config->NH = NH, config->HS = C / NH, config->max_T = max_T;
    }
}

int attention_stack_has_horizon(const AttentionStack *stack) {
    int found = 0;
    for (int i = 0; i < stack->count; i++) found |= stack->entries[i].attention->has_horizon;
    return found;
}

int attention_stack_is_endless(const AttentionStack *stack) {
    int grows = attention_stack_has_horizon(stack);
    for (int i = 0; i < stack->count; i++) {
        const Attention *attention = stack->entries[i].attention;
        AttentionConfig longer = stack->entries[i].config;
        longer.max_T *= 2;
        grows |= attention->cache_size(&longer) != attention->cache_size(&stack->entries[i].config);
    }
    return !grows;
}

size_t attention_stack_work_size(const AttentionStack *stack) {
    size_t largest = 0;
    for (int i = 0; i < stack->count; i++) {
        size_t size = stack->entries[i].attention->work_size(&stack->entries[i].config);
        if (size > largest) largest = size;
    }
    return largest;
}

// Mechanisms of one core share a counter.
uint64_t attention_stack_floored_rows(const AttentionStack *stack) {
    uint64_t rows = 0;
    for (int i = 0; i < stack->count; i++) {
        uint64_t (*count)(void) = stack->entries[i].attention->floored_rows;
        int seen = 0;
        for (int k = 0; k < i; k++) seen |= stack->entries[k].attention->floored_rows == count;
        if (count && !seen) rows += count();
    }
    return rows;
}
