// Which attention each layer of a model has: one for all, or a list that is repeated over the layers.
//
//     slay                             every layer
//     slay*3,softmax                   three layers of slay, one of softmax, and so on
//     slay*3:decay=learned,softmax:window=64
//
// An option on the command line (--decay learned) applies to every entry that has it, one within an entry to that one.
#ifndef ATTENTION_STACK_H
#define ATTENTION_STACK_H

#include "attention.h"

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    int layers; // how many in a row
} StackEntry;

enum { STACK_ENTRIES_MAX = 16 };

typedef struct {
    StackEntry entries[STACK_ENTRIES_MAX];
    int count;
} AttentionStack;

AttentionStack attention_stack_of(const Attention *attention, const AttentionConfig *config);
const StackEntry *attention_stack_layer(const AttentionStack *stack, int layer);

// From the text of --attention; `given` holds the sizes and the values of the options that were given.
int attention_stack_configure(AttentionStack *stack, const char *text, const AttentionConfig *given,
                              const Options *options, Error *error);
// Refuses a list with more layers than the model.
int attention_stack_check_layers(const AttentionStack *stack, int layers, Error *error);

// As it stands in checkpoints: the attention's object, or a list of them with "layers". Reading takes the sizes (B, T,
// C, NH, max_T) from `sizes`.
json_t *attention_stack_to_json(const AttentionStack *stack);
int attention_stack_from_json(AttentionStack *stack, const AttentionConfig *sizes, const json_t *json, Error *error);

// Changes sizes of all entries. HS follows.
void attention_stack_set_batch(AttentionStack *stack, int B, int T);
void attention_stack_set_model(AttentionStack *stack, int C, int NH, int max_T);

// The sizes, which are the same for all entries.
static inline const AttentionConfig *attention_stack_sizes(const AttentionStack *stack) {
    return &stack->entries[0].config;
}

const char *attention_stack_name(const AttentionStack *stack, char *text, size_t size); // "slay*3,softmax"
// Whether decoding can go on forever: no cache grows with the positions, and every position means something.
int attention_stack_is_endless(const AttentionStack *stack);
// Whether there is a mechanism to which positions beyond max_T mean nothing.
int attention_stack_has_horizon(const AttentionStack *stack);
size_t attention_stack_work_size(const AttentionStack *stack); // the largest of its entries
uint64_t attention_stack_floored_rows(const AttentionStack *stack);

#endif
