// Text from a model: the program around the decoder that the CPU's and the GPU's sampler share. It reads the checkpoint,
// the vocabulary and the prompts, draws tokens and prints them. What differs, the model on its device, comes as a struct of
// functions. Text goes to standard output, everything else to standard error, so that the output can be piped.
#ifndef CORE_SAMPLER_H
#define CORE_SAMPLER_H

#include "core/model/gpt2_parameters.h"

#include <stdio.h>

// ---- drawing a token

typedef struct {
    float temperature; // 0: always the likeliest token
    int top_k;         // among the k likeliest only; 0: all
    float top_p;       // among the likeliest that together have this probability
} SamplerSettings;

typedef struct {
    float weight;
    int token;
} Candidate;

// One token drawn from the logits (V); `uniform` is in [0,1). `candidates` is scratch of V. -1 when a logit is not finite.
int sample_token(const real *logits, int V, const SamplerSettings *settings, double uniform, Candidate *candidates);

// ---- text on the screen: whole UTF-8 characters as they come

typedef struct {
    FILE *out;
    char pending[4]; // the start of a character whose end has not come yet
    int count;
} TextStream;

void stream_put(TextStream *stream, const char *bytes, size_t count);
void stream_flush(TextStream *stream);

// ---- the program

typedef struct {
    const char *model, *tokenizer_path, *prompt, *prompt_file, *prompt_ids, *logits_path, *loss_shards;
    int tokens, samples, begin, stop, stats, interactive, threads, weights;
    SamplerSettings sampler;
    int64_t seed, loss_tokens;
} SampleSettings;

typedef struct {          // a model that decodes one sequence
    int prefill_rows;     // tokens of a prompt that go through the layers at once, at most
    int has_weight_kinds; // --weights: weights in fewer bits
    // A model without weights yet. `config` is for one sequence, prefill_rows at once. Ends the program, in words, when the
    // device cannot have it.
    void *(*create)(const GPT2Config *model, const Attention *attention, const AttentionConfig *config);
    ModelTensors (*tensors)(void *model);                       // in host memory, for the weights to be read into
    void (*begin)(void *model, const SampleSettings *settings); // they have been
    void (*free)(void *model);
    // Feeds n tokens at `position` and behind; returns the logits (V) behind the last, in host memory. With `all_logits`
    // (n,V) those of every token go there too.
    const real *(*step)(void *model, int position, const int *tokens, int n, real *all_logits);
    // What the tokens so far left behind: kept for later, or put back.
    void (*keep_past)(void *model);
    void (*restore_past)(void *model);
    // The losses of one row of tokens, from position 0; where the target is below 0 it is 0.
    void (*row_losses)(void *model, double *losses, const int *inputs, const int *targets, int T);
} SamplerBackend;

// The whole program: parses the options, writes text, returns the exit code.
int sampler_main(const SamplerBackend *backend, int argc, char **argv);

#endif
