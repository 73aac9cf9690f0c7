// Multiple-choice sets, llm.c's binary files and JSONL: every batch that is made of an accepted set stays within it.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "dataloader/choices.h"
#include "dataloader/tokenizer.h"

enum { ROWS = 3, MOST_T = 40 };

static Tokenizer *bytes_alone(void) {
    static char lines[256 * 12];
    size_t size = 0;
    Tokenizer *tokenizer;
    Error error;
    for (int byte = 0; byte < 256; byte++) size += tokenizer_write_line(lines + size, &(char){(char)byte}, 1, byte);
    memory_file_put("vocabulary", lines, size);
    EXPECT(tokenizer_load(&tokenizer, "vocabulary", 0, &error) == 0);
    return tokenizer;
}

static void answer(Choices *choices, int begins) {
    int inputs[ROWS * MOST_T], targets[ROWS * MOST_T];
    double losses[ROWS];
    char text[300];
    ChoiceBatch batch = {.inputs = inputs, .targets = targets};
    EXPECT(choices_longest(choices, begins) >= 1 && choices_cut(choices, begins, MOST_T) <= choices->row_count);
    for (int first = 0, rows; first < choices->row_count && first < 300; first += rows) {
        rows = choices_batch(choices, &batch, first, ROWS, MOST_T, begins, 256);
        EXPECT(rows >= 1 && rows <= ROWS && batch.T >= 1 && batch.T <= MOST_T);
        for (int i = 0; i < rows; i++) losses[i] = 1 + i;
        choices_put(choices, first, rows, losses);
    }
    ChoiceReport report = choices_report(choices);
    EXPECT(report.accuracy >= 0 && report.accuracy <= 1 && report.chance > 0 && report.chance <= 1);
    choice_report_text(&report, text, sizeof text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *tokenizer;
    Choices *choices;
    Error error;
    if (!tokenizer) tokenizer = bytes_alone();
    memory_file_put("set", data, size);
    for (int knows_text = 0; knows_text < 2; knows_text++)
        if (choices_load(&choices, "set", knows_text ? tokenizer : NULL, &error) == 0) {
            if (choices_check(choices, 257, &error) == 0) answer(choices, knows_text);
            choices_free(choices);
        }
    memory_files_clear();
    return 0;
}
