// What the training loop at the bottom of train_gpt2.c and train_gpt2.cu calls: everything about a run that does not
// depend on the device. The loop goes through these in their order; a function whose work is only the first rank's
// returns at once on the others. An error that no run can go on with ends the program in one line.
#ifndef CORE_TRAINING_H
#define CORE_TRAINING_H

#include "core/model/evaluation.h"
#include "core/model/gpt2_parameters.h"
#include "core/model/micro_batch.h"
#include "core/ranks/partition.h"
#include "run.h"
#include "settings.h"
#include "spikes.h"
#include "dataloader/dataloader.h"
#include "dataloader/tokenizer.h"

typedef struct {      // how the weights are to be updated
    int64_t step;     // of the optimiser, from 0
    double rate;      // learning rate
    double muon_rate; // of Muon's matrices
    double most_loss; // the step is not taken when the sum of its losses is larger, or not finite
    double most_norm; // likewise its gradient norm
} Update;

typedef struct {         // what a step came to, on all ranks together
    double loss;         // the sum over all its micro-batches
    double norm;         // of the gradients, before clipping
    const char *trouble; // what was not finite on this rank, in words; NULL: nothing
    int in_forward;      // it was so in the forward pass already
} StepOutcome;

typedef struct {           // what the model runs on
    double gflops;         // its rate on a large matrix product
    const char *device;    // its name; NULL: the processor
    const char *memory;    // the model's memory plan in words
    uint64_t memory_bytes; // in all
    const char *notes;     // anything else to say about the attention on this device; NULL: nothing
    const char *gelu;      // where the GELU is computed; NULL: nothing to say
} Machine;

// Where the weights come from.
typedef enum { START_FRESH, START_CHECKPOINT, START_LLMC, START_RUN } Start;

typedef struct {
    Settings settings;
    Options options;
    Run run;

    Start start;
    Checkpoint checkpoint; // --init, --resume: open until the model is loaded
    LlmcModel llmc;        // --init
    int parts;             // of it that --init takes: MODEL_WEIGHTS, and MODEL_ATTENTION where the attention is its own

    DataLoader *train, *val;
    Evaluation evaluation;                  // --eval
    int *token_bytes;                       // (V) bytes of each token's text; NULL without a vocabulary
    MemoryFile vocabulary[TOKENIZER_FILES]; // its files, for every checkpoint
    int vocabulary_files;                   // 0 without one, and on ranks that save nothing
    Tokenizer *tokenizer;                   // --sample-every: it; NULL: none is known
    int rows_at_once;                       // of a rank: micro_batch, or less when its share of the batch is
    int *inputs, *targets;                  // (rows_at_once,T)
    int *positions;                         // (rows_at_once,T) --document-mask: of the inputs in their documents

    // the step at hand
    int64_t step;       // of the optimiser, from 0; the steps done so far
    int64_t first_step; // the one that this process began with
    int rows;           // of the step's whole batch
    Rows share;         // this rank's
    int64_t next_row;   // of the share, or of the validation set's
    int has_batch;      // a micro-batch of this step went through the model
    double scale;       // the gradients are those of scale * (sum of losses)
    Update update;
    double step_start;

    // the run so far
    int64_t tokens;               // seen
    double start_time;            // clock when the first step began
    double elapsed_before;        // seconds of the run before it was resumed
    double step_seconds;          // smoothed
    double training_seconds;      // in steps, since the start
    double val_loss, val_seconds; // of the last validation
    double val_bytes;             // of text in it
    int64_t val_targets;
    double save_seconds;     // of the last save
    int64_t validated;       // the step of the last validation; -1: none yet
    int64_t evaluated;       // likewise of --eval
    uint64_t floored_before; // rows with a floored denominator, up to the last step
    double flops_per_token;
    double machine_gflops;
    int steps_are_settled; // --seconds: their number is final

    // --sample-every: the one at hand
    int *sample, sample_count; // (T) its tokens so far, the first an end-of-text
    int sample_end;            // how many there can be
    int end_of_text;           // the token
    real *logits;              // (V) of what follows, which the model fills in
    int64_t sampled;           // the step of the last one; -1: none yet

    // trouble
    SpikeDetector spikes;
    double rate_factor; // of the learning rate, lower after each rollback
    int rollbacks;      // so far
    int skipped_in_a_row;
    int must_roll_back;

    // saving
    int64_t saved;       // the step of the last save; -1: none
    int saves_failed;    // since the last one that went well
    double next_try;     // clock when a failed save is tried again
    int retries_save;    // all ranks: now
    double last_look;    // clock when the run directory was last looked for
    Error prune_warning; // the last one, which is not repeated

    int signal; // all ranks: the one that ends the run, or 0
    int stops;  // all ranks: no further step
    int failed; // with an error, which is reported at the end
    Error error;
    int failed_together; // all ranks have the same error: one of them says it
    double begun;        // clock when the program started
} Training;

// ---- before the first step

// Options, ranks, the data and what to start from. Nothing large is allocated yet, and no file or directory made.
void training_open(Training *training, int argc, char **argv);
// On a device with memory of its own, unless --micro-batch is given: the largest equal parts of a rank's share of the
// batch that fit on every rank. `plan` as below.
void training_choose_micro_batch(Training *training, uint64_t available,
                                 uint64_t (*plan)(const Settings *settings, char *text, size_t size));
// Refuses a run whose memory plan exceeds what the machine has, and names options that would fit. `plan` computes the
// bytes of a model and, with `text`, what they are for.
void training_check_memory(const Training *training, uint64_t available,
                           uint64_t (*plan)(const Settings *settings, char *text, size_t size));
// Draws or reads the weights; when a run continues, also AdamW's moments and the place in the data.
void training_load(Training *training, const ModelTensors *model);
// Makes the run directory, prints what is to happen and opens the metrics.
void training_begin(Training *training, double flops_per_token, const Machine *machine);

// ---- the loop

// Whether there is a step to do; begins it.
int training_goes_on(Training *training);
// The next micro-batch of this rank's share of the step; 0 when there is none left.
int training_next_batch(Training *training, MicroBatch *batch);
// Takes note of a step, reports it, and decides what follows from trouble.
void training_end_step(Training *training, const StepOutcome *outcome);

int training_validates(Training *training);
int training_next_validation(Training *training, MicroBatch *batch);
void training_end_validation(Training *training, double sum); // of the losses on this rank

// --eval: the model fills in evaluation.row_losses for each batch; the last call reports.
int training_evaluates(Training *training);
int training_next_evaluation(Training *training, MicroBatch *batch);

// Whether a sample is due; begins it. The model reads it so far as a batch of one row; the logits after its last token
// go into training->logits, from which the next one is drawn.
int training_samples(Training *training);
int training_next_sample(Training *training, MicroBatch *batch);
void training_put_sample(Training *training);

int training_saves(const Training *training);
void training_save(Training *training, const ModelTensors *model);

// Back to the last checkpoint, at a lower rate.
int training_rolls_back(const Training *training);
void training_roll_back(Training *training, const ModelTensors *model);

// The last line; returns the program's exit code.
int training_end(Training *training);

// What memory a run's model has: Trains, and BY_MUON where the optimiser is Muon.
int training_memory(const Settings *settings);

// ---- between the files of this room

double training_elapsed(const Training *training); // seconds, with those before a resumption
int training_read_state(Training *training, const json_t *state, const char *path, Error *error);
void training_fail(Training *training, const Error *error); // all ranks: saves and stops
// Ends the program with the error, if there is one. An error that all ranks share is reported once; one that only this
// rank has ends the others too.
void training_stop_if(int status, const Training *training, const Error *error);
// The same for what every rank does before the first step: they wait for each other's verdict.
void training_stop_together_if(int status, Training *training, Error *error);

#endif
