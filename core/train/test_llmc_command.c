// Pasted commands of llm.c: which words are taken for one, and that the answer is a command that the trainer takes and
// that sets what was meant.
#include "core/base/memory.h"
#include "core/base/test.h"
#include "llmc_command.h"
#include "settings.h"

static Settings settings;
static Options options;
static Error error;

static int split(char *line, char **argv) { // words, some in single quotes
    int argc = 0;
    for (char *at = line; *at;) {
        while (*at == ' ') at++;
        char end = *at == '\'' ? '\'' : ' ';
        if (!*at) break;
        if (end == '\'') at++;
        argv[argc++] = at;
        at += strcspn(at, (char[]){end, 0});
        if (*at) *at++ = 0;
    }
    return argc;
}

static int refuse(const char *line) {
    static char copy[1024];
    char *argv[80];
    snprintf(copy, sizeof copy, "%s", line);
    error.text[0] = 0;
    return llmc_command_refuse(split(copy, argv), argv, &error);
}

// The answer, up to what is without an equal, parsed by the trainer's own table.
static void take_answer(void) {
    static char copy[1200];
    char *argv[80], *begin = strstr(error.text, "here it is:  "), *end = strstr(error.text, "  (without");
    Error refused = {""};
    if (end) *end = 0;
    CHECK(begin != NULL);
    if (!begin) return;
    snprintf(copy, sizeof copy, "%s", begin + 13);
    settings = settings_default();
    options = (Options){0};
    settings_options(&options, &settings);
    int argc = split(copy, argv);
    CHECK(options_parse(&options, argc, argv, NULL, 0, NULL, &refused) == 0);
    if (refused.text[0]) printf("    %s\n", refused.text);
}

static void recipe_of_124M(void) {
    CHECK(refuse("./train_gpt2 -i 'data/fineweb_train_*.bin' -j data/val.bin -o log124M -e d12 -b 64 -t 1024 -d 524288 "
                 "-r 1 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -v 250 -s 20000 -g 144 -x 18865 -w 1 -h 1") == -1);
    CHECK(!strstr(error.text, "without an equal"));
    CHECK_CONTAINS(error.text, "  ./train_gpt2 --train 'data/fineweb_train_*.bin' --val data/val.bin --out log124M");
    take_answer();
    CHECK(settings.batch == 512 && settings.micro_batch == 64 && settings.T == 1024 && settings.steps == 18865);
    CHECK(settings.recompute == RECOMPUTE_CHEAP && settings.zero == 1 && settings.schedule.warmup == 700);
    CHECK(settings.weight_decay == 0.1f && settings.schedule.peak == 0.0006f && settings.schedule.final_share == 0);
    CHECK(settings.save_every == 5000 && settings.val_every == 250 && settings.sample_every == 20000);
    CHECK(settings.sample_tokens == 144 && !strcmp(settings.out, "log124M"));
    CHECK(!strcmp(settings.eval, "dev/data/hellaswag/hellaswag_val.bin") && settings.eval_every == 250);
    CHECK(!strcmp(settings.train, "data/fineweb_train_*.bin"));
}

// Where nothing is said llm.c's defaults hold, not ours.
static void defaults(void) {
    CHECK(refuse("train_gpt2 -e d24 -i a.bin") == -1);
    CHECK_CONTAINS(error.text, "(without an equal: -x -1)"); // one epoch
    take_answer();
    CHECK(settings.schedule.peak == 3e-4f && settings.schedule.warmup == 0 && settings.schedule.final_share == 1);
    CHECK(settings.weight_decay == 0 && settings.T == 1024 && settings.batch == 4 && settings.micro_batch == 4);
    CHECK(settings.preset == 3); // gpt2-medium
}

static void others(void) {
    CHECK(refuse("train_gpt2 -e gpt2_124M_bf16.bin -o log -y 1 -nk 5 -nm 1000 -k wsd -sl 6 -ge 2 -m 10 -b 8 -t 64") ==
          -1);
    take_answer();
    CHECK(!strcmp(settings.init, "gpt2_124M_bf16.bin") && !strcmp(settings.resume, "log"));
    CHECK(settings.keep_last == 5 && settings.keep_every == 1000 && settings.schedule.kind == SCHEDULE_WSD);
    CHECK(settings.spike == 6 && settings.on_nan == ON_NAN_SKIP && settings.fuse_gelu == FUSE_GELU_YES);
    CHECK(settings.val_tokens == 10 * 8 * 64);
    CHECK(refuse("train_gpt2 -e d6 -pn 8 -pr 3 -pm tcp -f 0 -h 0") == -1);
    CHECK_CONTAINS(error.text, "(without an equal: -pm tcp, -x -1)"); // what is off needs no equal
    take_answer();
    CHECK(settings.model.L == 6 && settings.model.NH == 6 && settings.model.C == 384);
    CHECK(settings.ranks == 8 && settings.rank == 3);
    CHECK(refuse("train_gpt2 -m 20 -i a.bin") == -1 && refuse("train_gpt2 -q 0.1") == -1 && refuse("t -h 1") == -1);
}

// Our own commands, and mistakes in them, are left to our own parser.
static void not_llmc(void) {
    static const char *const lines[] = {
        "train_gpt2",
        "train_gpt2 --help",
        "train_gpt2 -h",
        "train_gpt2 -i a.bin -b 8 -t 64 -x 100",
        "train_gpt2 -i a.bin -m tiny -a slay",
        "train_gpt2 -e d12 --batch 8",
        "train_gpt2 -i a.bin -q",
        "train_gpt2 -e",
        "train_gpt2 -Z 3 -e d12",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) CHECK(refuse(lines[i]) == 0);
}

// A command of any length gets an answer, cut where a line ends.
static void very_long(void) {
    char *words[202] = {"train_gpt2"}, *path = memory_allocate(5001, 1, "a path");
    memset(path, 'x', 5000), path[5000] = 0;
    for (int i = 1; i < 201; i += 2) words[i] = i % 4 == 1 ? "-i" : "-pp", words[i + 1] = path;
    CHECK(llmc_command_refuse(201, words, &error) == -1);
    CHECK(strlen(error.text) < sizeof error.text);
    free(path);
}

int main(void) {
    RUN(recipe_of_124M);
    RUN(defaults);
    RUN(others);
    RUN(not_llmc);
    RUN(very_long);
    return test_summary();
}
