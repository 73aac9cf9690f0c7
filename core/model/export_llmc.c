// export_llmc: a softmax model as a file of llm.c's.
#include "core/base/memory.h"
#include "core/base/options.h"
#include "gpt2_parameters.h"
#include "strict.h"

#include <stdlib.h>

static AttentionStack softmax(void) {
    return attention_stack_of(attention_find("softmax"), &(AttentionConfig){0});
}

static int refuse_other_models(const Checkpoint *checkpoint, const GPT2Config *config, Error *error) {
    if (!gpt2_config_attention(checkpoint->config) && config->positions == POSITIONS_LEARNED) return 0;
    return error_set(error,
                     "%.700s: expected plain softmax attention and learned positions, found others; llm.c knows "
                     "no other model",
                     checkpoint->path);
}

// All weights of a GPT-2 as tensors with memory of their own.
static Tensor *allocate(const GPT2Config *config, Parameter **list, int *count) {
    AttentionStack stack = softmax();
    *list = gpt2_list_parameters(config, &stack, count);
    Tensor *tensors = memory_allocate((size_t)*count, sizeof *tensors, "the list of weights");
    for (int i = 0; i < *count; i++) {
        Parameter *p = &(*list)[i];
        p->value = memory_allocate(p->count, sizeof(real), "the weights");
        tensors[i] = (Tensor){p->name, DTYPE_F32, p->rank, {p->shape[0], p->shape[1]}, p->value};
    }
    return tensors;
}

static int export_model(const char *from, const char *to, Dtype dtype, LlmcModel *shape, Error *error) {
    Checkpoint checkpoint;
    AttentionStack stack = softmax();
    Parameter *list = NULL;
    Tensor *tensors = NULL;
    int count = 0;
    if (checkpoint_open_newest(&checkpoint, from, CHECKPOINT_WEIGHTS, error)) return -1;
    int failed = gpt2_config_from_json(&shape->config, checkpoint.config, checkpoint.path, error) ||
                 refuse_other_models(&checkpoint, &shape->config, error) ||
                 model_check_checkpoint(&shape->config, &stack, &checkpoint, MODEL_WEIGHTS, error);
    if (!failed) {
        tensors = allocate(&shape->config, &list, &count);
        shape->dtype = dtype, shape->padded_V = llmc_padded_vocabulary(shape->config.V);
        failed = checkpoint_read_model(&checkpoint, tensors, count, error) ||
                 llmc_model_write(to, shape, tensors, count, error);
    }
    checkpoint_close(&checkpoint);
    for (int i = 0; i < count; i++) free(list[i].value);
    free(tensors), free(list);
    return failed ? -1 : 0;
}

int main(int argc, char **argv) {
    Options options = {.usage =
                           "usage: export_llmc MODEL OUT.bin [options]\n"
                           "A softmax model as a model file of llm.c's, which its programs start from (-e OUT.bin). "
                           "MODEL is a run,\na checkpoint or a Hugging Face GPT-2 directory.",
                       .closing = "example: ./export_llmc runs/quickstart_softmax gpt2.bin"};
    int precision = 0, given = 0;
    const Option item = {"file",
                         "precision",
                         0,
                         OPTION_CHOICE,
                         &precision,
                         0,
                         0,
                         "fp32|bf16",
                         "version 3, of float, or version 5, which llm.c wants when it computes in bf16",
                         0,
                         ""};
    const char *paths[2];
    LlmcModel shape = {0};
    Error error;
    error_set_program(argv[0]);
    options_add(&options, &item, 1);
    strict_add_option(&options, "file");
    die_if(options_parse(&options, argc, argv, paths, 2, &given, &error), &error);
    if (given < 2) die("expected a model and the file to write, found %d of them; see --help", given);
    die_if(export_model(paths[0], paths[1], precision ? DTYPE_BF16 : DTYPE_F32, &shape, &error), &error);
    printf("%s: version %d, %llu weights, %d tokens in %d rows\n", paths[1],
           precision ? LLMC_VERSION_BF16 : LLMC_VERSION_F32, (unsigned long long)gpt2_config_parameters(&shape.config),
           shape.config.V, shape.padded_V);
    return 0;
}
