// The sizes of a GPT-2, and config.json as Hugging Face writes it.
#ifndef CORE_GPT2_CONFIG_H
#define CORE_GPT2_CONFIG_H

#include "core/base/error.h"

#include <jansson.h>
#include <stdint.h>

// Of every LayerNorm: GPT-2's own.
#define LAYER_NORM_EPSILON 1e-5

// Where a token's place in the sequence comes from: GPT-2's table of learned vectors, or nothing but the attention.
typedef enum { POSITIONS_LEARNED, POSITIONS_NONE } Positions;
#define POSITIONS_CHOICES "learned|none"

typedef struct {
    int max_T;     // n_positions: the longest context
    int V;         // vocab_size
    int L;         // n_layer
    int NH;        // n_head
    int C;         // n_embd
    int positions; // Positions
} GPT2Config;

enum { GPT2_VOCABULARY = 50257 }; // GPT-2's own; its last token is end-of-text

// The limits of a model's sizes, wherever they come from: options, config.json, llm.c's files. They are far above any
// GPT-2 and low enough that products of three fit 64 bits.
enum {
    GPT2_CONTEXT_MAX = 1 << 20,
    GPT2_VOCABULARY_MAX = 1 << 20,
    GPT2_LAYERS_MAX = 1 << 10,
    GPT2_HEADS_MAX = 1 << 10,
    GPT2_WIDTH_MAX = 1 << 16
};

// Refuses sizes that are zero, negative or beyond any use, and C that NH does not divide; `path` is for messages.
int gpt2_config_check(const GPT2Config *config, const char *path, Error *error);

// Refuses a model file at `path` whose sizes are not those asked for; a size of 0 asks for nothing.
int gpt2_config_agrees(const GPT2Config *asked, const GPT2Config *file, const char *path, Error *error);

// Reads the sizes and refuses what this program does not compute: another activation, untied heads, another epsilon.
// The model type must be "gpt2", or "slay-gpt2" with an "attention" object.
int gpt2_config_from_json(GPT2Config *config, const json_t *json, const char *path, Error *error);

// The "attention" of a configuration, an object or a list of them, or NULL for GPT-2's own. A borrowed reference.
const json_t *gpt2_config_attention(const json_t *json);

// A new reference. `attention` is NULL or {"name": "softmax"} for a plain GPT-2; any other, and a model without
// learned positions, makes the model type "slay-gpt2", so that nothing takes it for one, and names the classes that
// transformers opens it with (modeling.h).
json_t *gpt2_config_to_json(const GPT2Config *config, const json_t *attention);

// The weights of the model, tied head counted once and the attention's tensors not at all.
uint64_t gpt2_config_parameters(const GPT2Config *config);

#endif
