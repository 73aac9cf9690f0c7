// Checkpoints: directories RUN/step_00001000 that Hugging Face can open.
//
//   config.json             the model (for softmax: a plain GPT-2 configuration)
//   model.safetensors       weights under Hugging Face's names, (in,out) layout; an attention's constants beside them
//                           (others may have split it: model.safetensors.index.json names the parts)
//   modeling_slay.py        the model in PyTorch, for any attention but GPT-2's own
//   optimizer.safetensors   AdamW's moments: NAME.m, NAME.v  (absent in a directory that Hugging Face saved)
//   state.json              step, tokens seen, loader position, options, checksums of the files (absent there too)
//   tokenizer.tiktoken      the vocabulary, when the trainer knows one; and the same in tokenizer.json and
//                           tokenizer_config.json, for Hugging Face's AutoTokenizer
//
// A directory appears under its final name only when it is complete and on the disk. While one is written it is called
// step_00001000.tmp; one that is being replaced is step_00001000.old until the new one stands in its place, and counts
// as that step's checkpoint when the new one never came.
#ifndef CORE_CHECKPOINT_H
#define CORE_CHECKPOINT_H

#include "core/base/error.h"
#include "core/base/file.h"
#include "safetensors.h"

#include <jansson.h>

typedef struct { // what a trainer hands over to be saved
    const json_t *config;
    const json_t *state; // the step is state.step; the files' checksums are added by saving
    const Tensor *model;
    int model_count;
    const Tensor *optimizer; // with count 0 no such file is written
    int optimizer_count;
    const MemoryFile *files; // the vocabulary's
    int file_count;
} CheckpointContents;

typedef struct { // an open checkpoint
    char *path;  // the directory
    json_t *config;
    json_t *state; // NULL when there is none
    Safetensors model;
    Safetensors optimizer;
    int has_optimizer; // and it was needed
} Checkpoint;

// ---- saving

// Saves as RUN/step_%08d; an existing complete directory of that step is replaced.
int checkpoint_save(const char *run, int64_t step, const CheckpointContents *contents, Error *error);

// Removes old checkpoints of a run: keeps the newest `keep_last`, every one whose step is a multiple of `keep_every`
// (0: none), the one just saved, and those that somebody else put something into. Removes left-over temporary
// directories too. What cannot be removed stays, and the first such failure is reported.
int checkpoint_prune(const char *run, int64_t saved, int keep_last, int64_t keep_every, Error *error);

// Moves a checkpoint of `run` into the directory `to`, under its name.
int checkpoint_move(const char *run, int64_t step, const char *to, Error *error);

// ---- opening

// Whether `path` is a checkpoint, and not a run with checkpoints in it.
int checkpoint_is(const char *path);

// What has to be there and unharmed. A file that is not needed is not opened: damage in it takes nothing away.
typedef enum {
    CHECKPOINT_WEIGHTS, // to use the model: configuration, weights, vocabulary
    CHECKPOINT_RUN,     // to continue training: the optimizer too
    CHECKPOINT_ALL,     // to vouch for everything, also for what only other programs read
} CheckpointNeed;

// Opens one checkpoint directory and verifies what is needed of it.
int checkpoint_open(Checkpoint *checkpoint, const char *path, CheckpointNeed need, Error *error);
void checkpoint_close(Checkpoint *checkpoint); // safe to call twice and after a failed open

// Opens `path` if it is a checkpoint, else the newest checkpoint of the run `path` that verifies; skipped ones are
// reported with warn().
int checkpoint_open_newest(Checkpoint *checkpoint, const char *path, CheckpointNeed need, Error *error);

// The steps of a run's checkpoints, ascending; free() the list. Returns their number (0 when there are none).
int checkpoint_list(int64_t **steps, const char *run);
// The directory of one of them; free() it.
char *checkpoint_path(const char *run, int64_t step);

// ---- reading

// The path of the vocabulary that the model was trained with; NULL when the checkpoint has none. free() it.
char *checkpoint_tokenizer(const Checkpoint *checkpoint);

// Does the model expect end-of-text before a text? As tokenizer_config.json says (add_bos_token), or else: yes, when it
// was trained here, where every document begins so.
int checkpoint_adds_bos(const Checkpoint *checkpoint, int *adds, Error *error);

// Fills the wanted tensors (`data` is the float destination) from the model file. Names match with and without the
// "transformer." prefix; F16, BF16 and F64 are converted. Refuses missing and unknown tensors, wrong shapes, numbers
// that are not finite, and an lm_head that is not tied to wte. Causal-mask buffers of old files are passed over; so are
// the constants of another attention when none of them is wanted. Where `data` is NULL only name, dtype and shape are
// checked: so a file that is not what config.json says is refused before any memory is spent on the model.
int checkpoint_read_model(const Checkpoint *checkpoint, const Tensor *wanted, int count, Error *error);

// The same for the optimizer's tensors, which have to be F32 and bear exactly the wanted names.
int checkpoint_read_optimizer(const Checkpoint *checkpoint, const Tensor *wanted, int count, Error *error);

#endif
