/*
Answers to multiple-choice questions: which of several completions of a text a model finds likeliest. The model comes
from train_gpt2.c, and so do its batches of rows; the sets are dataloader/choices.h's.
*/
#define _GNU_SOURCE
#define GPT2_MODEL_ONLY
#include "train_gpt2.c"

#include "core/sample/evaluating.h"

enum { BATCH_TOKENS = 4096 };

int main(int argc, char **argv) {
    static Evaluating evaluating;
    GPT2 model;
    MicroBatch batch;
    threads_restart_with_wait_policy(argv);
    evaluating_open(&evaluating, BATCH_TOKENS, argc, argv);
    // no moments, and activations of one layer
    gpt2_create(&model, &evaluating.source.config, &evaluating.source.stack, 0, 0, TRAINS_SHARING_MOMENTS,
                RECOMPUTE_BLOCKS);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    evaluating_load(&evaluating, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    while (evaluating_next(&evaluating, &batch)) gpt2_row_losses(evaluating.evaluation.row_losses, &model, &batch);
    gpt2_free(&model);
    return evaluating_end(&evaluating);
}
