#define _GNU_SOURCE
#include "llmc_command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- llm.c's options

// How a value is carried over: as it is; by a function of its own; not at all, because it is always so here; not at all
// and the answer says so.
typedef enum { AS_IT_IS, BY_ITSELF, ALWAYS_SO, LEFT_OUT } Way;

static const struct {
    const char *theirs, *ours;
    Way way;
    const char *their_default; // where it differs from ours and matters to what is learned; else NULL
} table[] = {
    {"-i", "train", AS_IT_IS, NULL},
    {"-j", "val", AS_IT_IS, NULL},
    {"-e", "model", BY_ITSELF, NULL},
    {"-o", "out", BY_ITSELF, NULL},
    {"-y", "resume", BY_ITSELF, NULL},
    {"-n", "save-every", AS_IT_IS, NULL},
    {"-nk", "keep", AS_IT_IS, NULL},
    {"-nm", "keep-every", AS_IT_IS, NULL},
    {"-b", "micro-batch", AS_IT_IS, "4"},
    {"-t", "sequence", AS_IT_IS, "1024"},
    {"-d", "batch", BY_ITSELF, NULL},
    {"-x", "steps", BY_ITSELF, NULL},
    {"-k", "schedule", AS_IT_IS, NULL},
    {"-l", "lr", AS_IT_IS, "3e-4"},
    {"-u", "warmup", AS_IT_IS, "0"},
    {"-q", "final-lr", AS_IT_IS, "1"},
    {"-c", "weight-decay", AS_IT_IS, "0"},
    {"-sl", "spike", BY_ITSELF, NULL},
    {"-sg", "spike", BY_ITSELF, NULL},
    {"-v", "val-every", AS_IT_IS, NULL},
    {"-m", "val-tokens", BY_ITSELF, NULL},
    {"-s", "sample-every", AS_IT_IS, NULL},
    {"-g", "sample-tokens", AS_IT_IS, NULL},
    {"-h", "eval", BY_ITSELF, NULL},
    {"-a", NULL, LEFT_OUT, NULL},
    {"-f", NULL, LEFT_OUT, NULL},
    {"-w", NULL, ALWAYS_SO, NULL},
    {"-ge", "fuse-gelu", BY_ITSELF, NULL},
    {"-r", "recompute", BY_ITSELF, NULL},
    {"-z", "zero", AS_IT_IS, NULL},
    {"-pn", "ranks", AS_IT_IS, NULL},
    {"-pr", "rank", AS_IT_IS, NULL},
    {"-pg", NULL, ALWAYS_SO, NULL},
    {"-pm", NULL, LEFT_OUT, NULL},
    {"-ps", NULL, LEFT_OUT, NULL},
    {"-pp", NULL, LEFT_OUT, NULL},
    {"-lg", NULL, LEFT_OUT, NULL},
};
enum { TABLE = sizeof table / sizeof *table };
#define HELLASWAG "dev/data/hellaswag/hellaswag_val.bin"

static int find(const char *word) {
    for (int i = 0; i < TABLE; i++)
        if (!strcmp(table[i].theirs, word)) return i;
    return -1;
}

// The value of an option, or NULL.
static const char *value_of(int argc, char **argv, const char *option) {
    const char *value = NULL;
    for (int at = 1; at + 1 < argc; at += 2)
        if (!strcmp(argv[at], option)) value = argv[at + 1];
    return value;
}

static double number_of(int argc, char **argv, const char *option, double otherwise) {
    const char *value = value_of(argc, argv, option);
    return value ? atof(value) : otherwise;
}

static int is_number(const char *word) {
    char *end;
    strtod(word, &end);
    return end > word && !*end;
}

// Pairs that llm.c knows, one of which would mean nothing here, or something else: -h and -q take no value, -m and -a
// no number.
static int is_llmc(int argc, char **argv) {
    int only_theirs = 0;
    if (argc < 3 || argc % 2 == 0) return 0;
    for (int at = 1; at < argc; at += 2) {
        int known = find(argv[at]) >= 0, shared = strlen(argv[at]) == 2 && strchr("ijobtxlucvs", argv[at][1]);
        if (!known) return 0;
        only_theirs |= !shared && (!strchr("hqma", argv[at][1]) || argv[at][2] || is_number(argv[at + 1]));
    }
    return only_theirs;
}

// ---- the translation

typedef struct {
    char text[900], left_out[300];
    size_t used, left_used;
} Answer;

static void add(Answer *answer, const char *option, const char *value) {
    int plain =
        strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+:,=") == strlen(value);
    int length = snprintf(answer->text + answer->used, sizeof answer->text - answer->used, " --%s %s%s%s", option,
                          plain ? "" : "'", value, plain ? "" : "'");
    answer->used += (size_t)length;
    if (answer->used >= sizeof answer->text) answer->used = sizeof answer->text - 1;
}

static void add_number(Answer *answer, const char *option, double number) {
    char text[32];
    snprintf(text, sizeof text, "%.10g", number);
    add(answer, option, text);
}

static void leave_out(Answer *answer, const char *option, const char *value) {
    answer->left_used +=
        (size_t)snprintf(answer->left_out + answer->left_used, sizeof answer->left_out - answer->left_used,
                         "%s%s %.40s", answer->left_used ? ", " : "", option, value);
    if (answer->left_used >= sizeof answer->left_out) answer->left_used = sizeof answer->left_out - 1;
}

// d12, gpt2:d12: a model of random weights by its depth; anything else is a file.
static void add_model(Answer *answer, const char *value) {
    static const struct {
        const char *depth, *model;
        int layers, heads, width;
    } models[] = {{"d12", "gpt2", 0, 0, 0},      {"d24", "gpt2-medium", 0, 0, 0}, {"d36", "gpt2-large", 0, 0, 0},
                  {"d48", "gpt2-xl", 0, 0, 0},   {"d6", "gpt2", 6, 6, 384},       {"d60", "gpt2", 60, 30, 1920},
                  {"d72", "gpt2", 72, 30, 2880}, {"d84", "gpt2", 84, 36, 3456}};
    const char *depth = strncmp(value, "gpt2:", 5) ? value : value + 5;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(depth, models[i].depth)) continue;
        add(answer, "model", models[i].model);
        if (!models[i].layers) return;
        add_number(answer, "layers", models[i].layers), add_number(answer, "heads", models[i].heads);
        add_number(answer, "width", models[i].width);
        return;
    }
    add(answer, "init", value);
}

static void add_by_itself(Answer *answer, int argc, char **argv, const char *option, const char *value) {
    static const char *const recompute[] = {"none", "cheap", "cheap"};
    double T = number_of(argc, argv, "-t", 1024), B = number_of(argc, argv, "-b", 4), number = atof(value);
    const char *out = value_of(argc, argv, "-o");
    int resumes = number_of(argc, argv, "-y", 0) != 0;
    switch (option[1]) {
    case 'e':
        add_model(answer, value);
        break;
    case 'o': // -y goes on in that directory
        add(answer, resumes ? "resume" : "out", value);
        break;
    case 'y':
        if (resumes && !out) leave_out(answer, option, value);
        break;
    case 'd':
        if (number > 0) add_number(answer, "batch", trunc(number / T));
        break;
    case 'x':
        if (number >= 0)
            add(answer, "steps", value);
        else // one epoch
            leave_out(answer, option, value);
        break;
    case 's': // -sl and -sg: one bound for both
        if (number > 0) add(answer, "spike", value), add(answer, "on-nan", "skip");
        break;
    case 'm':
        add_number(answer, "val-tokens", number * B * T);
        break;
    case 'h': // its place is fixed there, and it is asked where the validation is
        if (number) add(answer, "eval", HELLASWAG), add_number(answer, "eval-every", number_of(argc, argv, "-v", 20));
        break;
    case 'g': // -ge
        add(answer, "fuse-gelu", number > 0 ? "yes" : "no");
        break;
    case 'r':
        add(answer, "recompute", recompute[number >= 0 && number < 3 ? (int)number : 0]);
    }
}

static void translate(Answer *answer, int argc, char **argv) {
    for (int at = 1; at < argc; at += 2) {
        int i = find(argv[at]), is_off = is_number(argv[at + 1]) && atof(argv[at + 1]) == 0;
        if (table[i].way == AS_IT_IS) add(answer, table[i].ours, argv[at + 1]);
        if (table[i].way == BY_ITSELF) add_by_itself(answer, argc, argv, argv[at], argv[at + 1]);
        if (table[i].way == LEFT_OUT ? !is_off : table[i].way == ALWAYS_SO && is_off)
            leave_out(answer, argv[at], argv[at + 1]);
    }
    for (int i = 0; i < TABLE; i++)
        if (table[i].their_default && !value_of(argc, argv, table[i].theirs))
            add(answer, table[i].ours, table[i].their_default);
    if (!value_of(argc, argv, "-d")) add_number(answer, "batch", number_of(argc, argv, "-b", 4));
    if (!value_of(argc, argv, "-x")) leave_out(answer, "-x", "-1");
}

int llmc_command_refuse(int argc, char **argv, Error *error) {
    Answer answer = {.text = ""};
    if (!is_llmc(argc, argv)) return 0;
    translate(&answer, argc, argv);
    int some = answer.left_used > 0;
    return error_set(error, "these are llm.c's options; here it is:  %.100s%s%s%s%s", argv[0], answer.text,
                     some ? "  (without an equal: " : "", answer.left_out, some ? ")" : "");
}
