// The settings of a training run, and the option table that both trainers share.
#ifndef CORE_SETTINGS_H
#define CORE_SETTINGS_H

#include "attention/stack.h"
#include "core/model/gpt2_config.h"
#include "core/base/options.h"
#include "schedule.h"

// What to do about a step whose loss or gradient is not finite, or a spike: its update is not made in any case.
typedef enum { ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_ROLLBACK } OnNan;
// What backward computes again instead of keeping it: nothing; LayerNorm's and GELU's outputs; everything in a block.
typedef enum { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_BLOCKS, RECOMPUTE_LEVELS } Recompute;

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } Optimizer;

// Whether a GPU's matrix products compute the GELU too: where that is one kernel, always, never.
typedef enum { FUSE_GELU_AUTO, FUSE_GELU_YES, FUSE_GELU_NO } FuseGelu;

typedef struct {
    // data
    const char *train, *val; // shards: a file, a directory or a glob
    const char *eval;        // multiple-choice sets, separated by commas
    const char *tokenizer;   // vocabulary file: bits per byte, and saved with the checkpoints
    int shuffle, documents;
    int document_mask; // nothing looks across an end-of-text
    // run
    const char *out;    // run directory
    const char *resume; // a run or checkpoint to continue
    const char *init;   // weights to start from: a checkpoint, a Hugging Face directory or an llm.c model file
    int force;
    // model
    int preset;
    GPT2Config model;                 // max_T is --context
    const char *attention;            // a name, or a list: see attention/stack.h
    AttentionConfig attention_config; // what the attention's options say; of a single attention all of it
    AttentionStack stack;             // what follows for the layers
    float dropout;
    float init_std;
    // batch
    int T;                   // tokens per row
    int batch, micro_batch;  // rows per step, rows at once
    int chooses_micro_batch; // --micro-batch was not given: a GPU's trainer takes as many rows as fit
    int recompute;           // Recompute
    int batch_start;         // rows per step at the start of the ramp; 0: no ramp
    int64_t batch_ramp;      // steps
    // optimisation
    int64_t steps;
    float seconds; // stop after so long, with the schedule fitted to it; 0: by steps
    Schedule schedule;
    int optimizer;                // Optimizer
    float muon_lr, muon_momentum; // the peak rate follows the same schedule
    float beta1, beta2, adam_eps, weight_decay, clip;
    int64_t seed;
    int on_nan;       // OnNan
    int nan_limit;    // skipped steps in a row, or rollbacks in all, that a run puts up with
    float spike;      // loss or norm so many standard deviations above the mean counts as not finite; 0: none does
    int spike_window; // steps that mean and deviation are taken over
    int zero;         // many processes: stage of ZeRO, 0 or 1
    int ranks, rank;  // without MPI, as core/ranks/parallel.h reads them before all others
    const char *rendezvous;
    float rank_timeout; // seconds that a rank waits for the others; 0: for ever
    // reporting
    int64_t val_every, val_tokens, eval_every;
    int64_t save_every;
    int save_wait; // seconds that the last save of a run may wait for space
    int keep_last;
    int64_t keep_every;
    int quiet, profile;
    int llmc_log;         // also llm.c's main.log
    int tensorboard;      // event files for TensorBoard in the run's directory
    int64_t sample_every; // steps between samples; 0: none
    int sample_tokens;
    const char *sample_prompt;
    int graphs;    // GPU: a micro-batch is one CUDA graph
    int fuse_gelu; // FuseGelu
    int threads;
} Settings;

Settings settings_default(void);
// Builds the option table over `settings`.
void settings_options(Options *options, Settings *settings);
// After parsing: fills in what follows from other settings (preset sizes, attention defaults) and refuses what
// contradicts itself. `saved_attention` is the configuration of a checkpoint that is continued, or NULL.
int settings_finish(Settings *settings, Options *options, const json_t *saved_attention, Error *error);

// The settings as a checkpoint keeps them, without those that belong to one call of the program (--out, --resume, ...);
// the attention's own options are in the model's configuration instead.
json_t *settings_to_json(const Options *options);
// Takes over the settings of a saved run for every option that is not on the command line. One that is there, differs,
// and would make it a different run (batch, data order, seed, model, attention) is refused unless `force`.
int settings_resume(Options *options, const json_t *saved, const json_t *saved_attention, int force, Error *error);

// All settings, a line per topic; of the attention's options only those it uses, and of --model nothing when the sizes
// are not that model's.
void settings_print(const Settings *settings, const Options *options, const json_t *attention, FILE *out);

// ---- the models that --model names

const char *settings_preset_name(int preset);
void settings_use_preset(Settings *settings, int preset); // all sizes but the vocabulary's
// When --model is on the command line: its sizes, where no other option says more.
void settings_apply_given_preset(Settings *settings, Options *options);

#endif
