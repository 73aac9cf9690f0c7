// The weights of a GPT-2 as a list of named tensors, in the files' order: how they get their first values, come from
// checkpoints and llm.c's files, and go into checkpoints. Both trainers use it; for a model on a GPU the list holds the
// copies in host memory.
#ifndef CORE_GPT2_PARAMETERS_H
#define CORE_GPT2_PARAMETERS_H

#include "attention/stack.h"
#include "checkpoint.h"
#include "gpt2_config.h"
#include "llmc_model.h"

typedef struct { // one weight tensor with all that training keeps for it
    char name[64];
    int rank;
    uint64_t shape[4];
    size_t count;
    int decays;         // weight decay applies to it
    int muon_blocks;    // Muon updates it, as so many matrices side by side; 0: AdamW does
    int layer;          // -1: of none
    int of_attention;   // a parameter of the layer's attention; they are the layer's last
    size_t block_place; // the attention's parameters of a layer are one block: the tensor's place in it
    size_t block_count; // its first tensor: the block's size, else 0
    real *value, *gradient, *m, *v; // (count) each, or NULL; m, v: AdamW's moments, m Muon's momentum
} Parameter;

// The tensors of a layer in the order of the list; a trainer's struct of a layer's weights has its pointers in this
// order.
typedef enum {
    LN1_WEIGHT, LN1_BIAS, QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS,
    LN2_WEIGHT, LN2_BIAS, FC_WEIGHT, FC_BIAS, FCPROJ_WEIGHT, FCPROJ_BIAS, LAYER_TENSORS
} LayerTensor;

typedef struct { // what of a model goes into files
    GPT2Config config;
    AttentionStack stack;
    Parameter *parameters; // wte, wpe if there are positions, of each layer LAYER_TENSORS and the attention's, ln_f's
    int count;
    real **constants; // the attention's, per layer
} ModelTensors;

// What memory a model has: for decoding; gradients, activations and moments too; all but moments, which the ranks
// share.
typedef enum { TRAINS_NOT, TRAINS, TRAINS_SHARING_MOMENTS } Trains;
enum { BY_MUON = 4 }; // may be added to these: the matrices of the blocks are Muon's
// What a model's tensors are wanted in host memory for.
typedef enum { HOST_TO_SAVE, HOST_TO_FILL } HostPurpose;

// The list with names and shapes, without memory for the numbers; free() it.
Parameter *gpt2_list_parameters(const GPT2Config *config, const AttentionStack *stack, int *count);
// Leaves the matrices of the blocks to Muon.
void gpt2_choose_muon(Parameter *parameters, int count);
// All trained numbers: the model's weights and its attentions' parameters.
uint64_t gpt2_count_parameters(const GPT2Config *config, const AttentionStack *stack);
// The index of a layer's first tensor.
int gpt2_layer_start(const Parameter *parameters, int layer);
// The attention's parameters of a layer: the first of them, or NULL.
Parameter *gpt2_attention_parameters(Parameter *parameters, int count, int layer);

// GPT-2's initialisation: N(0, std), the projections into the residual stream smaller by sqrt(2L), biases 0, LayerNorm
// weights 1; and the attention's constants. Each tensor has a random stream of its own, so that models that differ only
// in their attention start equal.
void model_initialize(const ModelTensors *model, uint64_t seed, double std);

// The weights of a GPT-2; what belongs to the attention, constants and parameters; the optimiser's moments of all, of
// which Muon has fewer.
enum { MODEL_WEIGHTS = 1, MODEL_ATTENTION = 2, MODEL_MOMENTS = 4, MODEL_BY_MUON = 8 };
// Does the checkpoint have the tensors of such a model, in their shapes? To be asked before the model is allocated: the
// sizes in config.json may be anything, what the file holds is bounded by its size.
int model_check_checkpoint(const GPT2Config *config, const AttentionStack *stack, const Checkpoint *checkpoint,
                           int which, Error *error);
// Opens a checkpoint, or the newest one of a run, to use its model: its sizes and its attention, softmax where it names
// none, for B rows of T tokens, or as many as there are positions. Close it when it has been read.
int model_open_checkpoint(Checkpoint *checkpoint, GPT2Config *config, AttentionStack *stack, int B, int T,
                          const char *path, Error *error);
int model_read_checkpoint(const ModelTensors *model, const Checkpoint *checkpoint, int which, Error *error);
int model_read_optimizer(const ModelTensors *model, const Checkpoint *checkpoint, Error *error);
int model_read_llmc(const ModelTensors *model, const LlmcModel *file, Error *error);
// Saves RUN/step_...: weights, constants, moments, `state`, and the vocabulary's files.
int model_save(const ModelTensors *model, const char *run, int64_t step, const json_t *state, const MemoryFile *files,
               int file_count, Error *error);

#endif
