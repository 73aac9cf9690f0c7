/*
Answers to multiple-choice questions, on the GPU: evaluate.c with the model of train_gpt2.cu. In bf16 the weights are
rounded as for the trainer's validation.
*/
#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"

extern "C" {
#include "core/sample/evaluating.h"
}

enum { BATCH_TOKENS = 32768 };

int main(int argc, char **argv) {
    static Evaluating evaluating;
    static GPT2 model;
    MicroBatch batch;
    threads_restart_with_wait_policy(argv);
    evaluating_open(&evaluating, BATCH_TOKENS, argc, argv);
    gpt2_create(&model, &evaluating.source.config, &evaluating.source.stack, 0, 0, TRAINS, RECOMPUTE_BLOCKS);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    evaluating_load(&evaluating, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    while (evaluating_next(&evaluating, &batch)) gpt2_row_losses(evaluating.evaluation.row_losses, &model, &batch);
    gpt2_free(&model);
    return evaluating_end(&evaluating);
}
