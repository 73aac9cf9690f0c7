// A directory with a model, as Hugging Face or somebody else left it: config.json, tokenizer_config.json, an index, two
// files of tensors, state.json; the input holds them in this order, separated by "\n%%\n", and one that is empty is not
// there. What is accepted has the tensors that its configuration asks for.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "core/model/gpt2_parameters.h"

static const char *const names[] = {
    "model/config.json",       "model/tokenizer_config.json", "model/model.safetensors.index.json",
    "model/model.safetensors", "model/part.safetensors",      "model/state.json"};

// The tensors that opening has found in the file have the sizes of the model, so that there is memory for it.
static void read_weights(const Checkpoint *checkpoint, const GPT2Config *config, const AttentionStack *stack) {
    ModelTensors model = {.config = *config, .stack = *stack};
    Error error;
    model.parameters = gpt2_list_parameters(config, stack, &model.count);
    for (int i = 0; i < model.count; i++) model.parameters[i].value = malloc(model.parameters[i].count * sizeof(real));
    model_read_checkpoint(&model, checkpoint, MODEL_WEIGHTS, &error);
    for (int i = 0; i < model.count; i++) free(model.parameters[i].value);
    free(model.parameters);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input input = {data, size};
    Checkpoint checkpoint;
    GPT2Config config;
    AttentionStack stack;
    Error error;
    int adds_bos;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Input part = take_part(&input);
        if (part.size) memory_file_put(names[i], part.data, part.size);
    }
    if (model_open_checkpoint(&checkpoint, &config, &stack, 1, 1, "model", &error) == 0) {
        if (model_check_checkpoint(&config, &stack, &checkpoint, MODEL_WEIGHTS, &error) == 0)
            read_weights(&checkpoint, &config, &stack);
        model_check_checkpoint(&config, &stack, &checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION, &error);
        checkpoint_adds_bos(&checkpoint, &adds_bos, &error);
        checkpoint_close(&checkpoint);
    }
    memory_files_clear();
    return 0;
}
