// llm.c's model files: what opens is read whole, and what is read can be written and gives the file back, but for the
// rows that pad the vocabulary.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "core/model/gpt2_parameters.h"

static AttentionStack softmax(void) {
    return attention_stack_of(attention_find("softmax"), &(AttentionConfig){0});
}

static void write_again(const LlmcModel *file, const ModelTensors *model) {
    Tensor *tensors = calloc((size_t)model->count, sizeof *tensors);
    Error error;
    size_t size, padding = (size_t)(file->padded_V - file->config.V) * (size_t)file->config.C;
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        tensors[i] = (Tensor){.name = p->name, .dtype = DTYPE_F32, .rank = p->rank, .data = p->value};
        memcpy(tensors[i].shape, p->shape, sizeof p->shape);
    }
    EXPECT(llmc_model_write("again", file, tensors, model->count, &error) == 0);
    const unsigned char *again = memory_file_get("again", &size);
    EXPECT(size == file->file.size);
    size_t bytes = file->dtype == DTYPE_F32 ? 4 : 2,
           vocabulary = (size_t)file->config.V * (size_t)file->config.C * bytes;
    size_t rest = LLMC_HEADER_BYTES + vocabulary + padding * bytes;
    EXPECT(!memcmp(again + LLMC_HEADER_BYTES, file->file.data + LLMC_HEADER_BYTES, vocabulary));
    EXPECT(!memcmp(again + rest, file->file.data + rest, size - rest));
    free(tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LlmcModel file;
    Error error;
    memory_file_put("model", data, size);
    llmc_model_is("model");
    if (llmc_model_open(&file, "model", &error) == 0) {
        ModelTensors model = {.config = file.config, .stack = softmax()};
        model.parameters = gpt2_list_parameters(&model.config, &model.stack, &model.count);
        for (int i = 0; i < model.count; i++)
            model.parameters[i].value = malloc(model.parameters[i].count * sizeof(real));
        if (model_read_llmc(&model, &file, &error) == 0) write_again(&file, &model);
        for (int i = 0; i < model.count; i++) free(model.parameters[i].value);
        free(model.parameters);
        llmc_model_close(&file);
    }
    memory_files_clear();
    return 0;
}
