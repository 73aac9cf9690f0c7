// Lists of attentions over the layers: their text, their JSON, and what is said of all entries together.
#include "stack.h"
#include "core/base/test.h"

#include <stdlib.h>

static AttentionConfig sizes(void) {
    return (AttentionConfig){.B = 2, .T = 32, .C = 48, .NH = 3, .HS = 16, .max_T = 64, .seed = 0xfedcba9876543210u};
}

// Configures a stack from the text of --attention and up to 8 words of a command line.
static int configure_with(AttentionStack *stack, const char *text, const char *const *words, Error *error) {
    static Options options;
    char *argv[9] = {(char *)"test"};
    int n = 1;
    AttentionConfig given = sizes();
    options = (Options){.usage = "test"};
    for (; words && words[n - 1]; n++) argv[n] = (char *)words[n - 1];
    attention_add_options(&options, &given);
    if (options_parse(&options, n, argv, NULL, 0, NULL, error)) return -1;
    return attention_stack_configure(stack, text, &given, &options, error);
}

static AttentionStack stack_of(const char *text) {
    AttentionStack stack;
    Error error = {""};
    CHECK(configure_with(&stack, text, NULL, &error) == 0);
    return stack;
}

// ---- the text of --attention

static void check_name(const char *text, const char *expected) {
    char name[256];
    AttentionStack stack = stack_of(text);
    CHECK(!strcmp(attention_stack_name(&stack, name, sizeof name), expected));
}

static void every_form_of_the_text(void) {
    check_name("slay", "slay");
    check_name("slay*3", "slay*3");
    check_name("slay*3,softmax", "slay*3,softmax");
    check_name("slay,softmax*2,yat", "slay,softmax*2,yat");
    check_name("slay*1,softmax", "slay,softmax");
    check_name("slay*1024", "slay*1024");
    check_name("slay*3:decay=learned,softmax:window=64", "slay*3,softmax");
    check_name("slay:decay=learned*3,softmax:window=64*2", "slay*3,softmax*2");
    check_name("slay:R=2*3:M=4,softmax", "slay*3,softmax");
    check_name("elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu",
               "elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu");
    char cut[8];
    AttentionStack stack = stack_of("slay*3,softmax*1000");
    CHECK(!strcmp(attention_stack_name(&stack, cut, sizeof cut), "slay*3,"));
}

static void options_of_an_entry_are_its_own(void) {
    AttentionStack stack =
        stack_of("slay*2:R=2:M=4:omega=orthogonal:decay=learned:decay-longest=99,softmax:window=8*3,elu");
    const AttentionConfig *slay = &stack.entries[0].config, *softmax = &stack.entries[1].config;
    CHECK(stack.count == 3 && stack.entries[0].layers == 2 && stack.entries[1].layers == 3);
    CHECK(slay->R == 2 && slay->M == 4 && slay->P == 8 && slay->omega == OMEGA_ORTHOGONAL);
    CHECK(slay->decay == DECAY_LEARNED && slay->decay_shortest == 8 && slay->decay_longest == 99);
    CHECK(softmax->window == 8 && softmax->decay == DECAY_NONE && softmax->R == 0);
    CHECK(stack.entries[2].config.window == 0 && stack.entries[2].layers == 1);
    for (int i = 0; i < stack.count; i++) {
        const AttentionConfig *config = &stack.entries[i].config;
        CHECK(config->B == 2 && config->T == 32 && config->C == 48 && config->NH == 3 && config->HS == 16);
        CHECK(config->max_T == 64 && config->seed == 0xfedcba9876543210u);
    }
}

// On the command line for every entry that has it, unless the entry says otherwise.
static void options_for_all_entries(void) {
    const char *const words[] = {"--decay", "fixed", "--window", "9", "--M", "5", NULL};
    AttentionStack stack;
    Error error = {""};
    CHECK(configure_with(&stack, "slay,softmax,yat:window=4,elu:decay=none,favor:M=7", words, &error) == 0);
    for (int i = 0; i < 5; i++) CHECK(stack.entries[i].config.decay == (i == 3 ? DECAY_NONE : DECAY_FIXED));
    CHECK(stack.entries[0].config.window == 0 && stack.entries[1].config.window == 9);
    CHECK(stack.entries[2].config.window == 4);
    CHECK(stack.entries[0].config.M == 5 && stack.entries[1].config.M == 0 && stack.entries[4].config.M == 7);
    // Defaults that follow another option follow the entry's own.
    const char *const preset[] = {"--preset", "recall", NULL};
    CHECK(configure_with(&stack, "slay,slay:preset=paper,slay:fusion=flat,slay:P=5", preset, &error) == 0);
    const int expected[4][3] = {{1, 4, 96}, {3, 16, 8}, {1, 384, 1}, {1, 4, 5}}; // R, M, P
    for (int i = 0; i < 4; i++) {
        const AttentionConfig *config = &stack.entries[i].config;
        CHECK(config->R == expected[i][0] && config->M == expected[i][1] && config->P == expected[i][2]);
    }
}

static void check_refused(const char *text, const char *const *words, const char *message) {
    AttentionStack stack;
    Error error = {""};
    CHECK(configure_with(&stack, text, words, &error) == -1);
    CHECK_CONTAINS(error.text, message);
    CHECK(!strchr(error.text, '\n'));
}

static void bad_text_is_refused(void) {
    static const char *const layers[] = {"slay*",   "slay*0",        "slay*-1",    "slay*1025",
                                         "slay*3x", "slay*2*3",      "slay*1e3",   "slay*99999999999999999999",
                                         "slay*3 ", "softmax,slay*", "slay*x:R=2", "slay:R=2*"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_refused(layers[i], NULL, "option --attention: expected a number of layers from 1 to 1024 after *");
    static const char *const names[] = {"",   ",",    "slay,", ",slay",       "slay,,softmax", "sofmax", "slay softmax",
                                        "*3", ":R=2", "Slay",  "slay;softmax"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_refused(names[i], NULL, "option --attention: expected one of softmax, yat,");
    static const char *const options[] = {"slay:",    "slay::R=2", "slay:R",     "slay:R=2:", "slay:=2",
                                          "slay:x=2", "slay:lr=1", "softmax:64", "slay:--R=2"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        check_refused(options[i], NULL, "option --attention: expected an option of the attention, as window=64");
    check_refused("elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu", NULL,
                  "option --attention: expected at most 16 entries");
}

static void bad_options_are_refused(void) {
    const char *const window[] = {"--window", "8", NULL}, *const shortest[] = {"--decay-shortest", "3000", NULL};
    check_refused("slay:R=0", NULL, "option --R: expected");
    check_refused("slay:R=", NULL, "option --R: expected");
    check_refused("slay:poly=nix", NULL, "option --poly: expected");
    check_refused("softmax:window=-1", NULL, "option --window: expected");
    check_refused("softmax:window=1048577", NULL, "option --window: expected");
    check_refused("slay:window=8", NULL, "option --window belongs to softmax, yat, yat-spherical, not to slay");
    check_refused("slay,softmax:R=2", NULL, "option --R belongs to slay, not to softmax");
    check_refused("slay,elu", window, "option --window belongs to softmax, yat, yat-spherical, not to slay");
    check_refused("softmax:decay=fixed", shortest, "decay-shortest is 3000, more than decay-longest, 2048");
    check_refused("slay,yat-spherical:eps=1e-7", NULL, "attention yat-spherical: eps is 1e-07");
}

// ---- layers

static void layers_repeat_the_list(void) {
    AttentionStack stack = stack_of("slay*3,softmax,elu*2"), single = stack_of("slay*3");
    const char *const expected[] = {"slay", "slay", "slay", "softmax", "elu", "elu"};
    for (int l = 0; l < 20; l++) {
        CHECK(!strcmp(attention_stack_layer(&stack, l)->attention->name, expected[l % 6]));
        CHECK(attention_stack_layer(&single, l) == single.entries);
    }
    AttentionConfig config = sizes();
    AttentionStack one = attention_stack_of(attention_find("elu"), &config);
    CHECK(attention_stack_layer(&one, 1023) == one.entries && one.entries[0].config.C == 48);
}

static void lists_longer_than_the_model_are_refused(void) {
    AttentionStack stack = stack_of("slay*3,softmax"), single = stack_of("slay*3");
    Error error = {""};
    CHECK(attention_stack_check_layers(&stack, 4, &error) == 0 && attention_stack_check_layers(&stack, 9, &error) == 0);
    CHECK(attention_stack_check_layers(&single, 1, &error) == 0);
    CHECK(attention_stack_check_layers(&stack, 3, &error) == -1);
    CHECK_CONTAINS(error.text, "expected a list for at most the model's 3 layers, found one for 4");
}

// ---- JSON

static void check_round_trip(const char *text) {
    AttentionStack stack = stack_of(text), back;
    AttentionConfig bare = sizes();
    Error error = {""};
    bare.seed = 0;
    json_t *json = attention_stack_to_json(&stack);
    CHECK(json_is_array(json) == (stack.count > 1));
    CHECK(attention_stack_from_json(&back, &bare, json, &error) == 0);
    json_t *again = attention_stack_to_json(&back);
    CHECK(json_equal(json, again) && back.count == stack.count);
    for (int i = 0; i < stack.count; i++) {
        const StackEntry *a = &stack.entries[i], *b = &back.entries[i];
        CHECK(a->attention == b->attention && b->layers == (stack.count > 1 ? a->layers : 1));
        CHECK(a->config.window == b->config.window && a->config.decay == b->config.decay);
        CHECK(a->config.learn == b->config.learn && a->config.R == b->config.R && a->config.fusion == b->config.fusion);
        CHECK(a->config.decay_shortest == b->config.decay_shortest);
        CHECK(b->config.HS == 16 && b->config.max_T == 64);
    }
    json_decref(json), json_decref(again);
}

static void json_there_and_back(void) {
    check_round_trip("softmax");
    check_round_trip("slay*3");
    check_round_trip("slay:decay=fixed:decay-shortest=4");
    check_round_trip("slay*3,softmax");
    check_round_trip("slay*3:decay=learned:learn=both,softmax:window=64,yat:window=3:decay=fixed,slay:fusion=flat");
    check_round_trip("elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu");
}

static void check_text(const char *attention, const char *expected) {
    AttentionStack stack = stack_of(attention);
    json_t *json = attention_stack_to_json(&stack);
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    CHECK_CONTAINS(text, expected);
    CHECK(strlen(text) == strlen(expected));
    free(text);
    json_decref(json);
}

// One attention for all layers is written as before there were lists, and options that say nothing not at all.
static void json_as_it_is_written(void) {
    check_text("softmax", "{\"name\":\"softmax\"}");
    check_text("softmax*2", "{\"name\":\"softmax\"}");
    check_text("elu", "{\"name\":\"elu\",\"delta\":1e-6,\"denominator\":\"add\",\"chunk\":0}");
    check_text("softmax:window=8", "{\"name\":\"softmax\",\"window\":8}");
    check_text("softmax:decay=fixed",
               "{\"name\":\"softmax\",\"decay\":\"fixed\",\"decay_shortest\":8.0,\"decay_longest\":2048.0}");
    check_text("softmax*2,softmax:window=8",
               "[{\"name\":\"softmax\",\"layers\":2},{\"name\":\"softmax\",\"window\":8,\"layers\":1}]");
}

static void check_json(const char *text, const char *message) {
    AttentionStack stack;
    AttentionConfig bare = sizes();
    Error error = {""};
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    CHECK(json != NULL);
    int status = attention_stack_from_json(&stack, &bare, json, &error);
    CHECK(status == (message ? -1 : 0));
    if (message) CHECK_CONTAINS(error.text, message);
    json_decref(json);
}

static void bad_json_is_refused(void) {
    const char *layers = "attention: \"layers\" must be a number from 1 to 1024";
    check_json("[{\"name\":\"softmax\"}]", NULL); // "layers" may be left out
    check_json("[{\"name\":\"softmax\",\"layers\":1024},{\"name\":\"softmax\"}]", NULL);
    check_json("[]", "attention: expected a list of 1 to 16, found 0");
    static const char *const bad[] = {"0",          "-1",         "1025", "\"x\"", "\"2\"", "1e9", "2.0",
                                      "1000000000", "4294967297", "null", "true",  "[1]",   "{}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[100];
        snprintf(text, sizeof text, "[{\"name\":\"softmax\",\"layers\":%s}]", bad[i]);
        check_json(text, layers);
    }
    static const char *const entries[] = {"[[{\"name\":\"softmax\"}]]",
                                          "[[]]",
                                          "[null]",
                                          "[3]",
                                          "[\"softmax\"]",
                                          "[{}]",
                                          "{}",
                                          "null",
                                          "3",
                                          "\"softmax\"",
                                          "[{\"name\":\"softmax\"},[]]"};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        check_json(entries[i], "unknown mechanism \"(no name)\"");
    check_json("[{\"name\":\"softmax\"},{\"name\":\"magic\"}]", "unknown mechanism \"magic\"");
    check_json("[{\"name\":\"softmax\",\"window\":-1}]", "\"window\" is -1, must be from 0");
    check_json("[{\"name\":\"softmax\",\"window\":2.5}]", "\"window\" must be a number");
    check_json("{\"name\":\"softmax\",\"decay\":\"often\"}", "\"decay\" is \"often\", must be one of");
    check_json("{\"name\":\"softmax\",\"decay\":1}", "\"decay\" is \"not a string\"");
    check_json("{\"name\":\"softmax\",\"decay\":\"fixed\",\"decay_shortest\":1}", "\"decay_shortest\" is 1, must be");
    check_json("{\"name\":\"softmax\",\"decay\":\"fixed\",\"decay_longest\":2}", "decay-shortest is 8, more than");
}

static void lists_that_are_too_long_are_refused(void) {
    for (int count = 16; count <= 17; count++) {
        json_t *list = json_array();
        for (int i = 0; i < count; i++) json_array_append_new(list, json_pack("{s:s}", "name", "softmax"));
        char *text = json_dumps(list, 0);
        check_json(text, count == 16 ? NULL : "attention: expected a list of 1 to 16, found 17");
        free(text);
        json_decref(list);
    }
}

// ---- all entries together

// Whether a checkpoint says no more than the name of GPT-2's own attention.
static int is_gpt2(const AttentionStack *stack) {
    json_t *json = attention_stack_to_json(stack), *plain = json_pack("{s:s}", "name", "softmax");
    int same = json_equal(json, plain);
    json_decref(json), json_decref(plain);
    return same;
}

typedef struct {
    const char *text;
    int is_gpt2, is_endless, has_horizon;
} Traits;

static void traits_of_the_whole(void) {
    static const Traits cases[] = {
        {"softmax", 1, 0, 0},
        {"softmax*4", 1, 0, 0},
        {"softmax:window=8", 0, 1, 0},
        {"softmax:window=64", 0, 1, 0},
        {"softmax:decay=fixed", 0, 0, 0},
        {"softmax,softmax", 0, 0, 0},
        {"yat", 0, 0, 0},
        {"yat-spherical:window=8", 0, 1, 0},
        {"slay", 0, 1, 0},
        {"slay:poly=exact", 0, 0, 0}, // computed by the quadratic core
        {"uniform:decay=learned", 0, 1, 0},
        {"cosformer", 0, 0, 1},
        {"slay*3,softmax", 0, 0, 0},
        {"slay*3,softmax:window=8", 0, 1, 0},
        {"slay*3,softmax:window=8,cosformer", 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AttentionStack stack = stack_of(cases[i].text);
        int found = is_gpt2(&stack) == cases[i].is_gpt2 && attention_stack_is_endless(&stack) == cases[i].is_endless &&
                    attention_stack_has_horizon(&stack) == cases[i].has_horizon;
        if (!found) printf("    %s\n", cases[i].text);
        CHECK(found);
    }
}

static void sizes_of_the_whole(void) {
    AttentionStack stack = stack_of("slay*3,softmax:window=8,elu");
    size_t largest = 0;
    attention_stack_set_batch(&stack, 5, 17);
    attention_stack_set_model(&stack, 60, 6, 40);
    for (int i = 0; i < stack.count; i++) {
        const StackEntry *entry = &stack.entries[i];
        CHECK(entry->config.B == 5 && entry->config.T == 17 && entry->config.C == 60 && entry->config.NH == 6);
        CHECK(entry->config.HS == 10 && entry->config.max_T == 40);
        size_t size = entry->attention->work_size(&entry->config);
        CHECK(attention_stack_work_size(&stack) >= size);
        if (size > largest) largest = size;
    }
    CHECK(attention_stack_work_size(&stack) == largest && attention_stack_sizes(&stack) == &stack.entries[0].config);
}

int main(void) {
    RUN(every_form_of_the_text);
    RUN(options_of_an_entry_are_its_own);
    RUN(options_for_all_entries);
    RUN(bad_text_is_refused);
    RUN(bad_options_are_refused);
    RUN(layers_repeat_the_list);
    RUN(lists_longer_than_the_model_are_refused);
    RUN(json_there_and_back);
    RUN(json_as_it_is_written);
    RUN(bad_json_is_refused);
    RUN(lists_that_are_too_long_are_refused);
    RUN(traits_of_the_whole);
    RUN(sizes_of_the_whole);
    return test_summary();
}
