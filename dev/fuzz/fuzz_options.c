// Command lines of the trainer, a word per line of the input. What parses, and what a pasted command of llm.c is
// answered with, is one line of text; settings that were accepted are the same after being saved and read again.
#define _GNU_SOURCE
#include "fuzz.h"
#include "json_memory.h"
#include "core/train/llmc_command.h"
#include "core/train/settings.h"

enum { WORDS_MAX = 64, VALUE_BYTES = 4096 };

typedef struct { // an option table over settings of its own, made once and put back as it was for every input
    Settings settings, defaults;
    Options options, table;
} Table;

static void reset(Table *table) {
    if (!table->table.count) {
        table->settings = table->defaults = settings_default();
        settings_options(&table->table, &table->settings);
    }
    table->options = table->table, table->settings = table->defaults;
}

static void save_and_resume(const Options *options) {
    static Table other;
    Options *again = &other.options;
    Error error;
    char here[VALUE_BYTES], there[VALUE_BYTES];
    reset(&other);
    for (int i = 0; i < again->count; i++) // so that every string that is set here is a copy
        if (again->items[i].type == OPTION_STRING) *(const char **)again->items[i].value = NULL;
    json_t *json = settings_to_json(options);
    EXPECT(settings_resume(again, json, NULL, 0, &error) == 0);
    for (int i = 0; i < options->count; i++) {
        if (!json_object_get(json, options->items[i].name)) continue;
        option_print_value(&options->items[i], here, sizeof here);
        option_print_value(&again->items[i], there, sizeof there);
        EXPECT(!strcmp(here, there));
    }
    json_decref(json);
    for (int i = 0; i < again->count; i++)
        if (again->items[i].type == OPTION_STRING) free(*(char **)again->items[i].value);
}

static void show_help(const Options *options, HelpFormat format) {
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    options_help(options, format, nowhere);
}

static void parse(int words, char **arguments) {
    static Table table;
    const char *positionals[2];
    int count = 0;
    Error error;
    reset(&table);
    HelpFormat help = options_ask_for_help(words, arguments);
    if (help != HELP_NONE) {
        show_help(&table.options, help);
        return;
    }
    if (options_parse(&table.options, words, arguments, positionals, 2, &count, &error)) return;
    if (settings_finish(&table.settings, &table.options, NULL, &error) == 0) save_and_resume(&table.options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *words[WORDS_MAX + 2] = {"train_gpt2"}, *text = malloc(size + 1), *at = text;
    int count = 1;
    Error error;
    memcpy(text, data, size);
    text[size] = 0;
    size_t length = strlen(text); // a word has no 0 in it
    for (char *end; count < WORDS_MAX && at < text + length; at = end + 1) {
        end = strchrnul(at, '\n');
        *end = 0;
        words[count++] = at;
    }
    if (llmc_command_refuse(count, words, &error)) EXPECT(strstr(error.text, "llm.c"));
    parse(count, words);
    free(text);
    json_memory_check();
    return 0;
}
