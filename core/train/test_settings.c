// The trainer's option table and what follows from it: presets, contradictions, limits, what a resumed run may change.
#define _GNU_SOURCE
#include "settings.h"
#include "core/base/test.h"

#include <limits.h>

static Settings settings;
static Options trainer_options;
static Error error;

// From a command line to finished settings.
static int finish(const char *line) {
    static char copy[512];
    char *argv[32] = {"test"}, *rest;
    int argc = 1;
    settings = settings_default();
    trainer_options = (Options){0};
    settings_options(&trainer_options, &settings);
    error.text[0] = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) argv[argc++] = word;
    if (options_parse(&trainer_options, argc, argv, NULL, 0, NULL, &error)) return -1;
    return settings_finish(&settings, &trainer_options, NULL, &error);
}

static void check_unfinished(const char *line, const char *part_of_message) {
    CHECK(finish(line) == -1);
    CHECK_CONTAINS(error.text, part_of_message);
}

// Every option has a name, a short name at most, and a help line of its own.
static void trainer_table_is_consistent(void) {
    CHECK(finish("") == 0);
    for (int i = 0; i < trainer_options.count; i++) {
        const Option *a = &trainer_options.items[i];
        CHECK(a->help && a->help[0] && a->group && a->group[0]);
        for (int j = 0; j < i; j++) {
            const Option *b = &trainer_options.items[j];
            CHECK(strcmp(a->name, b->name) && (!a->alias || a->alias != b->alias) && a->value != b->value);
        }
    }
}

static void trainer_presets(void) {
    CHECK(finish("--model tiny --vocab 300") == 0);
    CHECK(settings.model.L == 4 && settings.model.C == 128 && settings.model.V == 300 && settings.T == 256);
    CHECK(finish("") == 0 && settings.model.L == 12 && settings.model.C == 768 && settings.model.V == 50257);
    CHECK(finish("--layers 3") == 0 && settings.model.L == 3 && settings.model.C == 768);
    CHECK(finish("--batch 64 --sequence 1024") == 0 && settings.micro_batch == 4); // 4096 tokens at once
    CHECK(finish("--batch 2 --sequence 64") == 0 && settings.micro_batch == 2);
}

static void trainer_contradictions(void) {
    check_unfinished("--sequence 2000", "expected at most the context of 1024, found 2000");
    check_unfinished("--batch 4 --micro-batch 8", "--micro-batch: expected at most the batch of 4 rows, found 8");
    check_unfinished("--batch 4 --batch-start 8", "--batch-start: expected at most the batch of 4 rows, found 8");
    check_unfinished("--heads 7", "7 heads");
    check_unfinished("--attention nonsense", "expected one of");
    check_unfinished("--attention nonsense", "softmax");
    check_unfinished("--attention softmax --R 3", "--R");
    check_unfinished("--batch 1048576 --micro-batch 1048576 --context 1048576 --sequence 1048576", "too many");
}

// What the options allow can be saved and opened again, and what they refuse no file can bring in.
static void sizes_have_one_limit(void) {
    static const struct {
        const char *option;
        size_t offset;
        int most;
    } sizes[] = {{"context", offsetof(GPT2Config, max_T), 1 << 20},
                 {"vocab", offsetof(GPT2Config, V), 1 << 20},
                 {"layers", offsetof(GPT2Config, L), 1 << 10},
                 {"heads", offsetof(GPT2Config, NH), 1 << 10},
                 {"width", offsetof(GPT2Config, C), 1 << 16}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char line[128];
        for (int above = 0; above < 2; above++) {
            int value = sizes[i].most + above;
            snprintf(line, sizeof line, "--width 65536 --heads 1024 --batch 1 --%s %d", sizes[i].option, value);
            CHECK(finish(line) == -above);
            if (above) CHECK_CONTAINS(error.text, sizes[i].option);
            GPT2Config config = {.max_T = 1024, .V = 300, .L = 2, .NH = 2, .C = 4096}, found;
            *(int *)((char *)&config + sizes[i].offset) = value;
            json_t *json = gpt2_config_to_json(&config, NULL);
            CHECK(gpt2_config_check(&config, "a file", &error) == -above);
            CHECK(gpt2_config_from_json(&found, json, "a file", &error) == -above);
            json_decref(json);
        }
    }
    settings.model.V = (1 << 20) + 1; // from whatever source
    CHECK(settings_finish(&settings, &trainer_options, NULL, &error) == -1);
    CHECK_CONTAINS(error.text, "vocab_size: expected 1 to 1048576");
}

// A run's settings, saved and taken up again; what would make another run of it is refused.
static void trainer_resume(void) {
    CHECK(finish("--batch 6 --lr 0.003 --steps 77 --seed 5 --dropout 0.1 --out here --quiet") == 0);
    json_t *saved = settings_to_json(&trainer_options);
    json_t *softmax = json_pack("{s:s}", "name", "softmax");
    CHECK(!json_object_get(saved, "out") && !json_object_get(saved, "quiet") && !json_object_get(saved, "resume"));
    CHECK(finish("--steps 200 --batch 6") == 0); // the same batch is no change
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == 0);
    CHECK(settings.batch == 6 && settings.schedule.peak == 0.003f && settings.steps == 200 && settings.seed == 5);
    free((char *)settings.attention);
    CHECK(finish("--batch 4") == 0);
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == -1);
    CHECK_CONTAINS(error.text, "--batch: the run to resume has 6, found 4");
    CHECK(settings_resume(&trainer_options, saved, softmax, 1, &error) == 0 && settings.batch == 4); // forced
    free((char *)settings.attention);
    CHECK(finish("--seed 6") == 0);
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == -1);
    CHECK(finish("--document-mask") == 0);
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == -1);
    CHECK_CONTAINS(error.text, "--document-mask: the run to resume has ");
    json_object_del(saved, "document-mask"); // as runs have it that began before there was the option
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == -1);
    CHECK(finish("--no-document-mask") == 0);
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == 0 && !settings.document_mask);
    free((char *)settings.attention);
    json_decref(saved), json_decref(softmax);
}

// What is printed when a run starts: the name of a model only where its sizes are that model's, groups in lines of
// bounded length, and no ranks where there are none.
static char *start_table(const char *line) {
    static char *text;
    static size_t size;
    CHECK(finish(line) == 0);
    free(text);
    FILE *out = open_memstream(&text, &size);
    settings_print(&settings, &trainer_options, NULL, out);
    fclose(out);
    return text;
}

static void start_table_says_what_holds(void) {
    static const char *const other_sizes[] = {"--layers 3", "--heads 6", "--width 384", "--context 512"};
    char named[64];
    const char *text = start_table("");
    snprintf(named, sizeof named, "model %s", settings_preset_name(settings.preset));
    CHECK_CONTAINS(text, named);
    CHECK(!strstr(text, "ranks ") && !strstr(text, "rank "));
    CHECK_CONTAINS(text, "\nbatch         batch 8  sequence 1024");
    for (const char *line = text + 1; *line; line += strcspn(line, "\n") + 1) {
        CHECK(strcspn(line, "\n") > 14 && strcspn(line, "\n") <= 14 + 102);
    }
    for (size_t i = 0; i < sizeof other_sizes / sizeof *other_sizes; i++)
        CHECK(!strstr(start_table(other_sizes[i]), named));
    CHECK_CONTAINS(start_table("--model tiny --layers 3"), "model tiny"); // given
    CHECK_CONTAINS(start_table("--rendezvous x --ranks 4 --rank 0"), "ranks 4  rank 0");
}

// Values of every kind as they stand in the run, beside what was found.
static void other_values_are_named(void) {
    static const char *const cases[][2] = {
        {"--document-mask", "the run to resume has no, found yes"},
        {"--batch-start 2", "the run to resume has 0, found 2"},
        {"--positions none", "the run to resume has learned, found none"},
        {"--seed 7", "the run to resume has 5, found 7"},
        {"--optimizer muon", "the run to resume has adamw, found muon"},
    };
    CHECK(finish("--seed 5") == 0);
    json_t *saved = settings_to_json(&trainer_options), *softmax = json_pack("{s:s}", "name", "softmax");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(finish(cases[i][0]) == 0);
        CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == -1);
        CHECK_CONTAINS(error.text, cases[i][1]);
    }
    CHECK(finish("--dropout 0.1 --seed 5 --optimizer adamw --no-document-mask") == 0); // the same is no change
    CHECK(settings_resume(&trainer_options, saved, softmax, 0, &error) == 0);
    free((char *)settings.attention);
    json_decref(saved), json_decref(softmax);
}

int main(void) {
    RUN(start_table_says_what_holds);
    RUN(other_values_are_named);
    RUN(trainer_table_is_consistent);
    RUN(trainer_presets);
    RUN(trainer_contradictions);
    RUN(sizes_have_one_limit);
    RUN(trainer_resume);
    return test_summary();
}
