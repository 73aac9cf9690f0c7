// What the loop at the bottom of sample_gpt2.c and sample_gpt2.cu calls: everything about sampling that does not depend
// on the device. Text goes to standard output, everything else to standard error, so that the output can be piped. An
// error ends the program in one line.
#ifndef CORE_SAMPLING_H
#define CORE_SAMPLING_H

#include "core/model/gpt2_parameters.h"
#include "dataloader/dataloader.h"
#include "dataloader/tokenizer.h"
#include "drawing.h"
#include "line_editor.h"
#include "text_stream.h"

typedef struct {
    const char *model, *tokenizer_path, *prompt, *prompt_file, *prompt_ids, *logits_path, *loss_shards, *losses_path;
    int tokens, samples, begin, stop, stats, interactive, threads, weights, length;
    DrawSettings draw;
    int64_t seed, loss_tokens;
} SampleSettings;

typedef struct {       // what the decoder is to read next
    const int *tokens; // (n)
    int n, position;   // of the first
} Feed;

typedef struct {              // rows of --loss: the one at hand, or with --losses all of them
    int *inputs, *targets;    // (rows,T), (rows,T); a target below 0 does not count
    float *losses;            // (rows,T), or NULL
    unsigned char *likeliest; // (rows,T), or NULL: whether the target was the likeliest token
} LossRows;

typedef struct {
    SampleSettings settings;

    // the model
    GPT2Config config;
    AttentionStack stack;  // one sequence, as many tokens at once as the decoder takes
    int context;           // positions that the decoder can go through before it has to begin anew
    Checkpoint checkpoint; // open until the weights are loaded
    LlmcModel llmc;        // likewise, for a model file of llm.c's
    int is_llmc;
    Tokenizer *tokenizer; // NULL when none is known: prompts and output are numbers
    int end_of_text;      // the token

    // the text at hand
    LineEditor *editor;          // asks for prompts; NULL: there is one, which is in the history already
    int *history, history_count; // the text so far as tokens; of a text without end the prompt and the last token
    int prompts;                 // so far
    int prompt_count;            // tokens of the history that are the prompt
    int past;                    // of these, what the decoder reads once for all samples; 0: each reads all of it
    int sample;                  // samples of this prompt so far
    int drawn;                   // tokens of this sample so far
    int ended;                   // it has come to its end
    uint64_t key;                // of its random numbers
    int position;                // tokens that the decoder has seen
    Candidate *candidates;       // (V)
    TextStream stream;

    DataLoader *loader; // --loss
    int64_t row;        // the next one
    int row_tokens;     // of a row
    LossRows rows, at;  // what there is room for, and the row at hand
    real *logits;          // --logits: (history_count, V)

    double begun;     // clock when the decoder began to read
    int reads_prompt; // several tokens, not just the last one drawn
    double prefill_seconds, decode_seconds;
    int64_t prefill_tokens, decode_tokens;
    int failed; // with an error, which is told at the end
    Error error;
} Sampling;

// ---- before the first token

// Options, the model's configuration and its vocabulary. The decoder takes up to `prefill_rows` tokens at once, and,
// with `has_weight_kinds`, weights in fewer bits (--weights).
void sampling_open(Sampling *sampling, int prefill_rows, int has_weight_kinds, int argc, char **argv);
// The same without the options: settings.model, tokenizer_path and threads say what there is to open.
void sampling_open_model(Sampling *sampling, int prefill_rows, int needs_vocabulary);
// Reads the weights.
void sampling_load(Sampling *sampling, const ModelTensors *model);
// Opens what there is to read: a prompt, the terminal or, for --loss, token shards.
void sampling_begin(Sampling *sampling);

// ---- the loop

int sampling_next_prompt(Sampling *sampling);
int sampling_next_sample(Sampling *sampling); // begins another text after the prompt
// What the sample's next token depends on: the prompt, then each token as it was drawn. 0 when the sample has ended.
int sampling_next_feed(Sampling *sampling, Feed *feed);
// A token drawn from the logits (V); -1 when they are not finite.
int sampling_draw(Sampling *sampling, const real *logits);
// Adds the token to the sample, or ends it.
void sampling_put(Sampling *sampling, int token);

// --loss: the next row is in `at`, with room for its losses where --losses wants them; then the sum over all rows.
int sampling_next_row(Sampling *sampling);
void sampling_end_loss(Sampling *sampling, double sum);
// --logits: writes them.
void sampling_write_logits(Sampling *sampling);

// Statistics, and errors; returns the program's exit code.
int sampling_end(Sampling *sampling);

#endif
