#include "evaluating.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"
#include "core/model/strict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- before the first batch

enum { WORDS_MAX = 1 + EVALUATION_SETS_MAX }; // the model and the sets

// Returns the number of words that are not options.
static int read_options(Evaluating *evaluating, const char **words, int argc, char **argv) {
    Options options = {
        .usage = "usage: evaluate MODEL SET... [options]\n"
                 "Answers multiple-choice sets: HellaSwag and others, as llm.c's binary files or as JSONL. MODEL is a\n"
                 "run, a checkpoint, a Hugging Face GPT-2 directory or an llm.c model file.",
        .closing = "example\n"
                   "  ./evaluate runs/gpt2 data/hellaswag/hellaswag_val.bin",
    };
    SampleSettings *settings = &evaluating->source.settings;
    Error error;
    int count = 0;
    // clang-format off
    const Option items[] = {
        {"sets", "begin", 0, OPTION_CHOICE, &evaluating->begin, 0, 0, BEGIN_CHOICES,
         "end-of-text before each context; auto: if it was trained here or its tokenizer_config.json says so", 0, ""},
        {"sets", "scores", 0, OPTION_STRING, &evaluating->scores_path, 0, 0, "FILE",
         "write every completion's log-probability, a line of JSON for each example", 0, ""},
        {"program", "batch-tokens", 0, OPTION_LONG, &evaluating->batch_tokens, 1, 1 << 24, NULL,
         "that go through the model at once, at least a row", 0, ""},
        {"program", "tokenizer", 0, OPTION_STRING, &settings->tokenizer_path, 0, 0, "FILE",
         "vocabulary; default: the checkpoint's, or data/gpt2.tiktoken", 0, ""},
        {"program", "threads", 0, OPTION_INT, &settings->threads, 0, 4096, NULL, "CPU threads; 0: all cores", 0, ""},
    };
    // clang-format on
    options_add(&options, items, sizeof items / sizeof *items);
    strict_add_option(&options, "program");
    die_if(options_parse(&options, argc, argv, words, WORDS_MAX, &count, &error), &error);
    if (count < 2) die("expected a model and a set, found %d of them; see --help", count);
    return count;
}

// Whether end-of-text goes before a context.
static int choose_begin(const Evaluating *evaluating, Error *error) {
    int adds = 0;
    if (evaluating->begin != BEGIN_AUTO) return evaluating->begin == BEGIN_YES;
    if (!evaluating->source.is_llmc) die_if(checkpoint_adds_bos(&evaluating->source.checkpoint, &adds, error), error);
    return adds;
}

// Rows of the longest of all sets, and as many of them as make `batch_tokens`.
static void choose_batch(Evaluating *evaluating) {
    Evaluation *evaluation = &evaluating->evaluation;
    const GPT2Config *config = &evaluating->source.config;
    int longest = 1, total = 0;
    Error error;
    for (int i = 0; i < evaluation->count; i++) {
        longest = max_int(longest, choices_longest(evaluation->sets[i], evaluation->begins));
        total += evaluation->sets[i]->row_count;
    }
    int T = min_int(longest, config->max_T), most = (int)(evaluating->batch_tokens / T);
    int rows = max_int(1, min_int(most, total));
    die_if(evaluation_prepare(evaluation, config->V, rows, T, &error), &error);
    attention_stack_set_batch(&evaluating->source.stack, rows, T);
    for (int i = 0; i < evaluation->count; i++) {
        int cut = choices_cut(evaluation->sets[i], evaluation->begins, T);
        if (cut)
            warn("%s: %d of %d completions with their contexts are longer than the model's %d tokens and lose their "
                 "beginning",
                 evaluation->sets[i]->path, cut, evaluation->sets[i]->row_count, config->max_T);
    }
    progress_start(&evaluating->progress, "evaluate", total, 1, "completions");
}

void evaluating_open(Evaluating *evaluating, int batch_tokens, int argc, char **argv) {
    const char *words[WORDS_MAX];
    Error error;
    error_set_program(argv[0]);
    *evaluating = (Evaluating){.batch_tokens = batch_tokens};
    int count = read_options(evaluating, words, argc, argv);
    evaluating->source.settings.model = words[0];
    sampling_open_model(&evaluating->source, batch_tokens, 0);
    evaluating->evaluation.begins = choose_begin(evaluating, &error);
    for (int i = 1; i < count; i++)
        die_if(evaluation_add(&evaluating->evaluation, words[i], evaluating->source.tokenizer, &error), &error);
    choose_batch(evaluating);
}

void evaluating_load(Evaluating *evaluating, const ModelTensors *model) {
    sampling_load(&evaluating->source, model);
    evaluation_begin(&evaluating->evaluation, 0, 1);
}

int evaluating_next(Evaluating *evaluating, MicroBatch *batch) {
    evaluating->rows_done += evaluating->evaluation.batch_rows;
    progress_update(&evaluating->progress, evaluating->rows_done);
    return evaluation_next(&evaluating->evaluation, batch);
}

// ---- the report

static json_t *example_to_json(const Choices *set, int number) {
    const ChoiceExample *example = &set->examples[number];
    json_t *scores = json_array(), *tokens = json_array(), *characters = json_array();
    for (int i = 0; i < example->rows; i++) {
        const ChoiceRow *row = &set->rows[example->first_row + i];
        json_array_append_new(scores, json_number(-set->losses[example->first_row + i]));
        json_array_append_new(tokens, json_integer(row->count));
        json_array_append_new(characters, json_integer(row->characters));
    }
    return json_made(json_pack("{s:o, s:i, s:i, s:o, s:o, s:o}", "set", json_readable(set->path), "example", number,
                               "label", example->label, "scores", scores, "tokens", tokens, "characters", characters),
                     "an example");
}

static int write_scores(const Evaluating *evaluating, Error *error) {
    FileWriter writer;
    if (file_writer_open(&writer, evaluating->scores_path, 0, error)) return -1;
    int failed = 0;
    for (int i = 0; i < evaluating->evaluation.count; i++) {
        const Choices *set = evaluating->evaluation.sets[i];
        for (int n = 0; n < set->example_count && !failed; n++) {
            json_t *json = example_to_json(set, n);
            char *text = json_print(json, JSON_REAL_PRECISION(9));
            failed = file_write(&writer, text, strlen(text), error) || file_write(&writer, "\n", 1, error);
            free(text);
            json_decref(json);
        }
    }
    failed = failed || file_writer_commit(&writer, error);
    if (failed) file_writer_abort(&writer);
    return failed ? -1 : 0;
}

static void print_report(const Choices *set) {
    char text[256];
    ChoiceReport report = choices_report(set);
    for (int i = 0; i < set->row_count; i++)
        if (!isfinite(set->losses[i]))
            die("%s: the model's losses are not finite: its weights are too large", set->path);
    printf("%s  %s\n", set->path, choice_report_text(&report, text, sizeof text));
}

int evaluating_end(Evaluating *evaluating) {
    Error error;
    progress_end(&evaluating->progress);
    for (int i = 0; i < evaluating->evaluation.count; i++) print_report(evaluating->evaluation.sets[i]);
    if (evaluating->scores_path) die_if(write_scores(evaluating, &error), &error);
    tokenizer_free(evaluating->source.tokenizer);
    evaluation_free(&evaluating->evaluation);
    return 0;
}
