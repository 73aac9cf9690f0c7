// What the loop at the bottom of evaluate.c and evaluate.cu calls: everything about answering multiple-choice sets that
// does not depend on the device. The report goes to standard output. An error ends the program in one line.
#ifndef CORE_EVALUATING_H
#define CORE_EVALUATING_H

#include "core/base/progress.h"
#include "core/model/evaluation.h"
#include "sampling.h"

typedef enum { BEGIN_AUTO, BEGIN_YES, BEGIN_NO } Begin;
#define BEGIN_CHOICES "auto|yes|no"

typedef struct {
    Sampling source; // the model and its vocabulary; B and T of its stack are the most rows and tokens at once
    Evaluation evaluation;
    int begin;            // Begin
    int64_t batch_tokens; // that go through the model at once
    const char *scores_path;
    Progress progress;
    int rows_done;
} Evaluating;

// Options, the model's configuration and the sets. `batch_tokens` is the default of the option.
void evaluating_open(Evaluating *evaluating, int batch_tokens, int argc, char **argv);
// Reads the weights.
void evaluating_load(Evaluating *evaluating, const ModelTensors *model);
// The next batch, whose losses the model puts into evaluation.row_losses. 0: no more.
int evaluating_next(Evaluating *evaluating, MicroBatch *batch);
// Reports; returns the program's exit code.
int evaluating_end(Evaluating *evaluating);

#endif
