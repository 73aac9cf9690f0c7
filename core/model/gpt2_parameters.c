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

static Parameter parameter(const char *name, int rank, size_t rows, size_t columns) {
    Parameter p = {.rank = rank, .shape = {rank == 2 ? rows : columns, columns}, .count = rows * columns};
    snprintf(p.name, sizeof p.name, "transformer.%s", name);
    return p;
}

Parameter *gpt2_list_parameters(const GPT2Config *config, int *count) {
    size_t C = (size_t)config->C, L = (size_t)config->L;
    Parameter *list = memory_allocate_zeroed(4 + L * LAYER_TENSORS, sizeof *list, "the list of weights"), *p = list;
    *p++ = parameter("wte.weight", 2, (size_t)config->V, C);
    *p++ = parameter("wpe.weight", 2, (size_t)config->max_T, C);
    for (size_t l = 0; l < L; l++) {
        for (int i = 0; i < LAYER_TENSORS; i++) {
            char name[48];
            size_t rows = (size_t)layer_tensors[i].rows;
            snprintf(name, sizeof name, "h.%zu.%s", l, layer_tensors[i].name);
            *p++ = parameter(name, rows ? 2 : 1, rows ? rows * C : 1, (size_t)layer_tensors[i].columns * C);
        }
    }
    *p++ = parameter("ln_f.weight", 1, 1, C);
    *p++ = parameter("ln_f.bias", 1, 1, C);
    *count = (int)(p - list);
    return list;
}

void model_initialize(const ModelTensors *model, uint64_t seed, double std) {
    for (int i = 0; i < model->count; i++) {
        Parameter *p = &model->parameters[i];
        int is_residual = strstr(p->name, "c_proj.weight") != NULL;
        double scale = is_residual ? std / sqrt(2.0 * model->config.L) : std;
        if (p->rank == 2)
            random_fill_normal(p->value, p->count, random_key(seed, p->name, 0), scale);
        else
            for (size_t j = 0; j < p->count; j++) p->value[j] = strstr(p->name, ".weight") ? 1 : 0;
    }
    for (int l = 0; l < model->config.L; l++)
        attention_draw(model->attention, model->constants[l], NULL, l, &model->attention_config);
}

// ---- files

// The model's tensors under the names of the file; free() the list. `names` receives the memory of the constants'
// names.
static int list_tensors(const ModelTensors *model, int which, Tensor **tensors, char (**names)[64]) {
    AttentionTensor constants[ATTENTION_TENSORS_MAX];
    size_t total;
    int per_layer = attention_constants(model->attention, &model->attention_config, constants, &total), count = 0;
    size_t most = (size_t)model->count + (size_t)(per_layer * model->config.L);
    Tensor *list = memory_allocate_zeroed(most, sizeof *list, "the list of tensors");
    *names = memory_allocate(most, sizeof **names, "the names of tensors");
    for (int i = 0; (which & MODEL_WEIGHTS) && i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        list[count++] = (Tensor){p->name, DTYPE_F32, p->rank, {p->shape[0], p->shape[1]}, p->value};
    }
    for (int l = 0; (which & MODEL_CONSTANTS) && l < model->config.L; l++) {
        for (int i = 0; i < per_layer; i++) {
            Tensor *tensor = &list[count];
            snprintf((*names)[count], sizeof **names, "transformer.h.%d.attn.%s", l, constants[i].name);
            const real *data = model->constants ? model->constants[l] + constants[i].offset : NULL;
            *tensor = (Tensor){(*names)[count], DTYPE_F32, constants[i].rank, {0}, data};
            for (int r = 0; r < constants[i].rank; r++) tensor->shape[r] = constants[i].shape[r];
            count++;
        }
    }
    *tensors = list;
    return count;
}

// AdamW's moments: NAME.m and NAME.v.
static int list_moments(const ModelTensors *model, Tensor **tensors, char (**names)[80]) {
    int count = 0;
    Tensor *list = memory_allocate_zeroed(2 * (size_t)model->count, sizeof *list, "the list of tensors");
    *names = memory_allocate(2 * (size_t)model->count, sizeof **names, "the names of tensors");
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        for (int moment = 0; moment < 2; moment++, count++) {
            snprintf((*names)[count], sizeof **names, "%s.%c", p->name, moment ? 'v' : 'm');
            list[count] =
                (Tensor){(*names)[count], DTYPE_F32, p->rank, {p->shape[0], p->shape[1]}, moment ? p->v : p->m};
        }
    }
    *tensors = list;
    return count;
}

static int open_model(const Checkpoint *checkpoint, GPT2Config *config, const Attention **attention,
                      AttentionConfig *attention_config, Error *error) {
    if (gpt2_config_from_json(config, checkpoint->config, checkpoint->path, error)) return -1;
    attention_config->C = config->C, attention_config->NH = config->NH, attention_config->HS = config->C / config->NH;
    attention_config->max_T = config->max_T;
    if (attention_config->T > config->max_T) attention_config->T = config->max_T;
    *attention = attention_find("softmax");
    const json_t *saved = gpt2_config_attention(checkpoint->config);
    return saved ? attention_from_json(attention, attention_config, saved, error)
                 : attention_configure(*attention, attention_config, NULL, error);
}

int model_open_checkpoint(Checkpoint *checkpoint, GPT2Config *config, const Attention **attention,
                          AttentionConfig *attention_config, const char *path, Error *error) {
    if (checkpoint_open_newest(checkpoint, path, CHECKPOINT_WEIGHTS, error)) return -1;
    if (open_model(checkpoint, config, attention, attention_config, error) == 0) return 0;
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

int model_check_checkpoint(const GPT2Config *config, const Attention *attention,
                           const AttentionConfig *attention_config, const Checkpoint *checkpoint, int which,
                           Error *error) {
    ModelTensors planned = {.config = *config, .attention = attention, .attention_config = *attention_config};
    planned.parameters = gpt2_list_parameters(config, &planned.count);
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
    json_t *attention = attention_to_json(model->attention, &model->attention_config);
    json_t *config = gpt2_config_to_json(&model->config, attention);
    CheckpointContents contents = {.config = config, .state = state, .files = files, .file_count = file_count};
    contents.model_count = list_tensors(model, MODEL_WEIGHTS | MODEL_CONSTANTS, &tensors, &names);
    contents.optimizer_count = list_moments(model, &moments, &moment_names);
    contents.model = tensors, contents.optimizer = moments;
    int result = checkpoint_save(run, step, &contents, error);
    free(tensors), free(names), free(moments), free(moment_names);
    json_decref(attention), json_decref(config);
    return result;
}
