// Multiple-choice sets (dataloader/choices.h) as batches for a model, one set after the other.
//
//     evaluation_begin(&evaluation, rank, ranks);
//     while (evaluation_next(&evaluation, &batch)) gpt2_row_losses(evaluation.row_losses, &model, &batch);
//
// With several ranks each has the losses of its own batches in its sets, and 0 for the others': the sums are for all.
#ifndef CORE_EVALUATION_H
#define CORE_EVALUATION_H

#include "dataloader/choices.h"
#include "micro_batch.h"

enum { EVALUATION_SETS_MAX = 16 };

typedef struct {
    Choices *sets[EVALUATION_SETS_MAX];
    int count;
    int begins;            // end-of-text goes before each context
    int end_of_text;       // the token
    int rows, T;           // at most, at once
    int *inputs, *targets; // (rows,T)
    double *row_losses;    // (rows) of the batch at hand, which the model fills in

    int set;        // where the batch at hand is ...
    int64_t first;  // ... from which row of its order on
    int batch_rows; // of it; 0: none has been given out
    int rank, ranks;
} Evaluation;

// Adds the sets of a list of paths, separated by commas.
int evaluation_add(Evaluation *evaluation, const char *paths, const Tokenizer *tokenizer, Error *error);
// Once the model is known, which takes `rows` of T tokens at once: checks the sets and makes room for batches.
int evaluation_prepare(Evaluation *evaluation, int V, int rows, int T, Error *error);
void evaluation_free(Evaluation *evaluation);

void evaluation_begin(Evaluation *evaluation, int rank, int ranks);
// Takes the losses of the batch before; gives out this rank's next one. 0: no more.
int evaluation_next(Evaluation *evaluation, MicroBatch *batch);

#endif
