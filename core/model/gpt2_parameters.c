#include "gpt2_parameters.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the list

// The tensors of a layer: Hugging Face's name, shape in multiples of C (0 rows: a vector).
static const struct {
    const char *name;
    int rows, columns;
} layer_tensors[LAYER_TENSORS] = {
    [LN1_WEIGHT] = {"ln_1.weight", 0, 1},          [LN1_BIAS] = {"ln_1.bias", 0, 1},
    [QKV_WEIGHT] = {"attn.c_attn.weight", 1, 3},   [QKV_BIAS] = {"attn.c_attn.bias", 0, 3},
    [PROJ_WEIGHT] = {"attn.c_proj.weight", 1, 1},  [PROJ_BIAS] = {"attn.c_proj.bias", 0, 1},
    [LN2_WEIGHT] = {"ln_2.weight", 0, 1},          [LN2_BIAS] = {"ln_2.bias", 0, 1},
    [FC_WEIGHT] = {"mlp.c_fc.weight", 1, 4},       [FC_BIAS] = {"mlp.c_fc.bias", 0, 4},
    [FCPROJ_WEIGHT] = {"mlp.c_proj.weight", 4, 1}, [FCPROJ_BIAS] = {"mlp.c_proj.bias", 0, 1},
};

static Parameter parameter(const char *name, int layer, int rank, size_t rows, size_t columns) {
    Parameter p = {.rank = rank,
                   .shape = {rank == 2 ? rows : columns, columns},
                   .count = rows * columns,
                   .decays = rank == 2,
                   .layer = layer};
    snprintf(p.name, sizeof p.name, "transformer.%s", name);
    return p;
}

static Parameter *list_layer(Parameter *p, int l, size_t C) {
    for (int i = 0; i < LAYER_TENSORS; i++) {
        char name[48];
        size_t rows = (size_t)layer_tensors[i].rows;
        snprintf(name, sizeof name, "h.%d.%s", l, layer_tensors[i].name);
        *p++ = parameter(name, l, rows ? 2 : 1, rows ? rows * C : 1, (size_t)layer_tensors[i].columns * C);
    }
    return p;
}

static Parameter *list_attention(Parameter *p, int l, const StackEntry *entry) {
    AttentionTensor tensors[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_parameters(entry->attention, &entry->config, tensors, &total);
    for (int i = 0; i < n; i++) {
        *p = (Parameter){.rank = tensors[i].rank,
                         .count = tensors[i].count,
                         .decays = tensors[i].decays,
                         .layer = l,
                         .of_attention = 1,
                         .block_place = tensors[i].offset,
                         .block_count = i ? 0 : total};
        for (int d = 0; d < tensors[i].rank; d++) p->shape[d] = tensors[i].shape[d];
        snprintf(p->name, sizeof p->name, "transformer.h.%d.attn.%s", l, tensors[i].name);
        p++;
    }
    return p;
}

Parameter *gpt2_list_parameters(const GPT2Config *config, const AttentionStack *stack, int *count) {
    size_t C = (size_t)config->C, most = 4 + (size_t)config->L * (LAYER_TENSORS + ATTENTION_TENSORS_MAX);
    Parameter *list = memory_allocate_zeroed(most, sizeof *list, "the list of weights"), *p = list;
    *p++ = parameter("wte.weight", -1, 2, (size_t)config->V, C);
    if (config->positions == POSITIONS_LEARNED) *p++ = parameter("wpe.weight", -1, 2, (size_t)config->max_T, C);
    for (int l = 0; l < config->L; l++) {
        p = list_layer(p, l, C);
        p = list_attention(p, l, attention_stack_layer(stack, l));
    }
    *p++ = parameter("ln_f.weight", -1, 1, 1, C);
    *p++ = parameter("ln_f.bias", -1, 1, 1, C);
    *count = (int)(p - list);
    return list;
}

void gpt2_choose_muon(Parameter *parameters, int count) {
    for (int i = 0; i < count; i++) {
        Parameter *p = &parameters[i];
        if (p->layer < 0 || p->rank != 2 || p->of_attention) continue;
        p->muon_blocks = i - gpt2_layer_start(parameters, p->layer) == QKV_WEIGHT ? 3 : 1;
    }
}

uint64_t gpt2_count_parameters(const GPT2Config *config, const AttentionStack *stack) {
    uint64_t sum = gpt2_config_parameters(config);
    for (int l = 0; l < config->L; l++) {
        const StackEntry *entry = attention_stack_layer(stack, l);
        sum += attention_parameter_count(entry->attention, &entry->config);
    }
    return sum;
}

int gpt2_layer_start(const Parameter *parameters, int layer) {
    int i = 0;
    while (parameters[i].layer != layer) i++;
    return i;
}

Parameter *gpt2_attention_parameters(Parameter *parameters, int count, int layer) {
    for (int i = 0; i < count; i++)
        if (parameters[i].layer == layer && parameters[i].of_attention) return &parameters[i];
    return NULL;
}

void model_initialize(const ModelTensors *model, uint64_t seed, double std) {
    for (int i = 0; i < model->count; i++) {
        Parameter *p = &model->parameters[i];
        int is_residual = strstr(p->name, "c_proj.weight") != NULL;
        double scale = is_residual ? std / sqrt(2.0 * model->config.L) : std;
        if (p->of_attention) continue;
        if (p->rank == 2)
            random_fill_normal(p->value, p->count, random_key(seed, p->name, 0), scale);
        else
            for (size_t j = 0; j < p->count; j++) p->value[j] = strstr(p->name, ".weight") ? 1 : 0;
    }
    for (int l = 0; l < model->config.L; l++) {
        const StackEntry *entry = attention_stack_layer(&model->stack, l);
        const Parameter *own = gpt2_attention_parameters(model->parameters, model->count, l);
        attention_draw(entry->attention, model->constants[l], own ? own->value : NULL, l, &entry->config);
    }
}

// ---- files

static Tensor parameter_tensor(const Parameter *p, const char *name, const real *data) {
    Tensor tensor = {name, DTYPE_F32, p->rank, {0}, data};
    for (int r = 0; r < p->rank; r++) tensor.shape[r] = p->shape[r];
    return tensor;
}

// Adds the constants of a layer's attention to a list of tensors; returns their number.
static int list_constants(Tensor *list, char (*names)[64], const ModelTensors *model, int l) {
    const StackEntry *entry = attention_stack_layer(&model->stack, l);
    AttentionTensor constants[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_constants(entry->attention, &entry->config, constants, &total);
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof *names, "transformer.h.%d.attn.%s", l, constants[i].name);
        const real *data = model->constants ? model->constants[l] + constants[i].offset : NULL;
        list[i] = (Tensor){names[i], DTYPE_F32, constants[i].rank, {0}, data};
        for (int r = 0; r < constants[i].rank; r++) list[i].shape[r] = constants[i].shape[r];
    }
    return n;
}

// The model's tensors under the names of the file; free() the list. `names` receives the memory of the constants'
// names.
static int list_tensors(const ModelTensors *model, int which, Tensor **tensors, char (**names)[64]) {
    size_t most = (size_t)model->count + (size_t)model->config.L * ATTENTION_TENSORS_MAX;
    Tensor *list = memory_allocate_zeroed(most, sizeof *list, "the list of tensors");
    int count = 0;
    *names = memory_allocate(most, sizeof **names, "the names of tensors");
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        if (which & (p->of_attention ? MODEL_ATTENTION : MODEL_WEIGHTS))
            list[count++] = parameter_tensor(p, p->name, p->value);
    }
    for (int l = 0; (which & MODEL_ATTENTION) && l < model->config.L; l++)
        count += list_constants(list + count, *names + count, model, l);
    *tensors = list;
    return count;
}

// The moments: NAME.m, and where they are AdamW's NAME.v.
static int list_moments(const ModelTensors *model, Tensor **tensors, char (**names)[80]) {
    int count = 0;
    Tensor *list = memory_allocate_zeroed(2 * (size_t)model->count, sizeof *list, "the list of tensors");
    *names = memory_allocate(2 * (size_t)model->count, sizeof **names, "the names of tensors");
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        for (int moment = 0; moment < (p->muon_blocks ? 1 : 2); moment++, count++) {
            snprintf((*names)[count], sizeof **names, "%s.%c", p->name, moment ? 'v' : 'm');
            list[count] = parameter_tensor(p, (*names)[count], moment ? p->v : p->m);
        }
    }
    *tensors = list;
    return count;
}

static int open_model(const Checkpoint *checkpoint, GPT2Config *config, AttentionStack *stack, int B, int T,
                      Error *error) {
    if (gpt2_config_from_json(config, checkpoint->config, checkpoint->path, error)) return -1;
    AttentionConfig sizes = {.B = B,
                             .T = T > config->max_T ? config->max_T : T,
                             .C = config->C,
                             .NH = config->NH,
                             .HS = config->C / config->NH,
                             .max_T = config->max_T};
    const json_t *saved = gpt2_config_attention(checkpoint->config);
    return saved ? attention_stack_from_json(stack, &sizes, saved, error)
                 : attention_stack_configure(stack, "softmax", &sizes, NULL, error);
}

int model_open_checkpoint(Checkpoint *checkpoint, GPT2Config *config, AttentionStack *stack, int B, int T,
                          const char *path, Error *error) {
    if (checkpoint_open_newest(checkpoint, path, CHECKPOINT_WEIGHTS, error)) return -1;
    if (open_model(checkpoint, config, stack, B, T, error) == 0) return 0;
    checkpoint_close(checkpoint);
    return -1;
}

int model_read_checkpoint(const ModelTensors *model, const Checkpoint *checkpoint, int which, Error *error) {
    Tensor *tensors;
    char(*names)[64];
    int count = list_tensors(model, which, &tensors, &names);
    int result = checkpoint_read_model(checkpoint, tensors, count, error);
    free(tensors), free(names);
    return result;
}

int model_read_optimizer(const ModelTensors *model, const Checkpoint *checkpoint, Error *error) {
    Tensor *tensors;
    char(*names)[80];
    int count = list_moments(model, &tensors, &names);
    int result = checkpoint_read_optimizer(checkpoint, tensors, count, error);
    free(tensors), free(names);
    return result;
}

int model_check_checkpoint(const GPT2Config *config, const AttentionStack *stack, const Checkpoint *checkpoint,
                           int which, Error *error) {
    ModelTensors planned = {.config = *config, .stack = *stack};
    planned.parameters = gpt2_list_parameters(config, stack, &planned.count);
    if (which & MODEL_BY_MUON) gpt2_choose_muon(planned.parameters, planned.count);
    int failed = model_read_checkpoint(&planned, checkpoint, which, error) ||
                 ((which & MODEL_MOMENTS) && model_read_optimizer(&planned, checkpoint, error));
    free(planned.parameters);
    return failed ? -1 : 0;
}

int model_read_llmc(const ModelTensors *model, const LlmcModel *file, Error *error) {
    Tensor *tensors;
    char(*names)[64];
    int count = list_tensors(model, MODEL_WEIGHTS, &tensors, &names);
    int result = llmc_model_read(file, tensors, count, error);
    free(tensors), free(names);
    return result;
}

int model_save(const ModelTensors *model, const char *run, int64_t step, const json_t *state, const MemoryFile *files,
               int file_count, Error *error) {
    Tensor *tensors, *moments;
    char(*names)[64], (*moment_names)[80];
    json_t *attention = attention_stack_to_json(&model->stack);
    json_t *config = gpt2_config_to_json(&model->config, attention);
    CheckpointContents contents = {.config = config, .state = state, .files = files, .file_count = file_count};
    contents.model_count = list_tensors(model, MODEL_WEIGHTS | MODEL_ATTENTION, &tensors, &names);
    contents.optimizer_count = list_moments(model, &moments, &moment_names);
    contents.model = tensors, contents.optimizer = moments;
    int result = checkpoint_save(run, step, &contents, error);
    free(tensors), free(names), free(moments), free(moment_names);
    json_decref(attention), json_decref(config);
    return result;
}
