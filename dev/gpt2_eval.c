// gpt2_eval: the logits of a checkpoint on tokens from a file, so that anyone can compare the C model with another one.
//
//   build/dev/gpt2_eval --model DIRECTORY --in IN.safetensors --out OUT.safetensors
//
// IN holds `tokens` (B,T), of any integer type; OUT receives `logits` (B,T,V), float32. build/dev/gpt2_eval_double is
// the same in double precision: the weights are the checkpoint's floats, everything that is computed and OUT float64.
#define GPT2_MODEL_ONLY
#include "train_gpt2.c"

typedef struct {
    const char *model, *in, *out;
} Files;

static int parse(Files *files, int argc, char **argv, Error *error) {
    static Options options = {.usage = "usage: gpt2_eval --model DIRECTORY --in FILE --out FILE"};
    const Option table[] = {
        {"files", "model", 0, OPTION_STRING, &files->model, 0, 0, "DIRECTORY", "a checkpoint or run", 0, ""},
        {"files", "in", 0, OPTION_STRING, &files->in, 0, 0, "FILE", "safetensors with tokens (B,T)", 0, ""},
        {"files", "out", 0, OPTION_STRING, &files->out, 0, 0, "FILE", "safetensors to write: logits (B,T,V)", 0, ""},
    };
    options_add(&options, table, 3);
    if (options_parse(&options, argc, argv, NULL, 0, NULL, error)) return -1;
    if (files->model && files->in && files->out) return 0;
    return error_set(error, "expected --model, --in and --out, found one missing; see --help");
}

// tokens (B,T), free() them; each one below V.
static int read_tokens(int **tokens, int *B, int *T, const char *path, const GPT2Config *config, Error *error) {
    Safetensors file;
    if (safetensors_open(&file, path, error)) return -1;
    const Tensor *tensor = safetensors_find(&file, "tokens");
    int fits = tensor && tensor->rank == 2 && tensor->shape[0] >= 1 && tensor->shape[1] >= 1 &&
               tensor->shape[0] <= 4096 && tensor->shape[1] <= (uint64_t)config->max_T;
    int failed = fits ? 0 : error_set(error, "%.700s: expected \"tokens\" (B,T), T at most %d", path, config->max_T);
    if (fits) {
        *B = (int)tensor->shape[0], *T = (int)tensor->shape[1];
        size_t N = (size_t)*B * (size_t)*T;
        float *values = memory_allocate(N, sizeof(float), "the tokens");
        *tokens = memory_allocate(N, sizeof(int), "the tokens");
        tensor_to_floats(values, tensor);
        for (size_t n = 0; n < N && !failed; n++) {
            if (values[n] >= 0 && values[n] < (float)config->V)
                (*tokens)[n] = (int)values[n];
            else
                failed =
                    error_set(error, "%.700s: expected tokens from 0 to %d, found %g", path, config->V - 1, values[n]);
        }
        free(values);
    }
    safetensors_close(&file);
    return failed ? -1 : 0;
}

// A checkpoint is read as floats, which lie at the beginning of where the numbers belong: the last one moves first.
static void widen(real *values, size_t count) {
    for (size_t i = count; i-- > 0;) {
        float value;
        memcpy(&value, (const char *)values + i * sizeof value, sizeof value);
        values[i] = value;
    }
}

static void widen_model(const ModelTensors *model) {
    for (int i = 0; i < model->count; i++) widen(model->parameters[i].value, model->parameters[i].count);
    for (int l = 0; l < model->config.L; l++) {
        const StackEntry *entry = attention_stack_layer(&model->stack, l);
        AttentionTensor constants[ATTENTION_TENSORS_MAX];
        size_t total;
        int n = attention_constants(entry->attention, &entry->config, constants, &total);
        for (int i = 0; i < n; i++) widen(model->constants[l] + constants[i].offset, constants[i].count);
    }
}

static int load_model(GPT2 *model, int **tokens, int *B, int *T, const Files *files, Error *error) {
    Checkpoint checkpoint;
    GPT2Config config;
    AttentionStack stack;
    if (model_open_checkpoint(&checkpoint, &config, &stack, 1, 1, files->model, error)) return -1;
    int failed = read_tokens(tokens, B, T, files->in, &config, error);
    if (!failed) {
        attention_stack_set_batch(&stack, *B, *T);
        gpt2_create(model, &config, &stack, 0, 0, TRAINS, RECOMPUTE_NONE); // has activations
        ModelTensors tensors = gpt2_to_host(model, HOST_TO_FILL);
        failed = model_read_checkpoint(&tensors, &checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION, error);
        widen_model(&tensors);
        gpt2_from_host(model, HOST_TO_FILL);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

int main(int argc, char **argv) {
    static GPT2 model;
    Files files = {0};
    Error error;
    int *tokens = NULL, B = 0, T = 0;
    error_set_program(argv[0]);
    die_if(parse(&files, argc, argv, &error), &error);
    die_if(load_model(&model, &tokens, &B, &T, &files, &error), &error);
    size_t N = (size_t)B * (size_t)T, V = (size_t)model.config.V;
    real *logits = memory_allocate(N * V, sizeof(real), "the logits");
    model.batch = (MicroBatch){.inputs = tokens, .B = B, .T = T};
    gpt2_hidden(&model, 0);
    matmul_nt(logits, model.acts.lnf, model.weights.wte, (int)N, (int)V, model.config.C, 0);
    Tensor tensor = {
        "logits", sizeof(real) == sizeof(double) ? DTYPE_F64 : DTYPE_F32, 3, {(uint64_t)B, (uint64_t)T, V}, logits};
    die_if(safetensors_write(files.out, &tensor, 1, NULL, &error), &error);
    free(logits), free(tokens);
    gpt2_free(&model);
    return 0;
}
