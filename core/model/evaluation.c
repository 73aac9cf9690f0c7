#define _GNU_SOURCE
#include "evaluation.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

int evaluation_add(Evaluation *evaluation, const char *paths, const Tokenizer *tokenizer, Error *error) {
    char *copy = memory_copy_string(paths), *rest = copy, *path;
    int failed = 0;
    while (!failed && (path = strsep(&rest, ","))) {
        if (evaluation->count == EVALUATION_SETS_MAX)
            failed = error_set(error, "%.600s: expected at most %d sets, found more; give the others to another run",
                               paths, EVALUATION_SETS_MAX);
        else
            failed = choices_load(&evaluation->sets[evaluation->count], path, tokenizer, error);
        if (!failed) evaluation->count++;
    }
    free(copy);
    return failed ? -1 : 0;
}

int evaluation_prepare(Evaluation *evaluation, int V, int rows, int T, Error *error) {
    for (int i = 0; i < evaluation->count; i++)
        if (choices_check(evaluation->sets[i], V, error)) return -1;
    size_t N = (size_t)rows * (size_t)T;
    evaluation->end_of_text = V - 1;
    evaluation->rows = rows, evaluation->T = T;
    evaluation->inputs = memory_allocate(N, sizeof(int), "the inputs");
    evaluation->targets = memory_allocate(N, sizeof(int), "the targets");
    evaluation->row_losses = memory_allocate((size_t)rows, sizeof(double), "the rows' losses");
    return 0;
}

void evaluation_free(Evaluation *evaluation) {
    for (int i = 0; i < evaluation->count; i++) choices_free(evaluation->sets[i]);
    free(evaluation->inputs), free(evaluation->targets), free(evaluation->row_losses);
    *evaluation = (Evaluation){0};
}

void evaluation_begin(Evaluation *evaluation, int rank, int ranks) {
    evaluation->rank = rank, evaluation->ranks = ranks;
    evaluation->set = 0, evaluation->first = (int64_t)rank * evaluation->rows, evaluation->batch_rows = 0;
    for (int i = 0; i < evaluation->count; i++)
        memset(evaluation->sets[i]->losses, 0, (size_t)evaluation->sets[i]->row_count * sizeof(double));
}

int evaluation_next(Evaluation *evaluation, MicroBatch *batch) {
    if (evaluation->batch_rows) {
        choices_put(evaluation->sets[evaluation->set], (int)evaluation->first, evaluation->batch_rows,
                    evaluation->row_losses);
        evaluation->first += (int64_t)evaluation->rows * evaluation->ranks;
    }
    evaluation->batch_rows = 0;
    while (evaluation->set < evaluation->count && evaluation->first >= evaluation->sets[evaluation->set]->row_count)
        evaluation->set++, evaluation->first = (int64_t)evaluation->rank * evaluation->rows;
    if (evaluation->set == evaluation->count) return 0;
    ChoiceBatch rows = {.inputs = evaluation->inputs, .targets = evaluation->targets};
    evaluation->batch_rows =
        choices_batch(evaluation->sets[evaluation->set], &rows, (int)evaluation->first, evaluation->rows, evaluation->T,
                      evaluation->begins, evaluation->end_of_text);
    *batch = (MicroBatch){.inputs = rows.inputs, .targets = rows.targets, .B = evaluation->batch_rows, .T = rows.T};
    return 1;
}
