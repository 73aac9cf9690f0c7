// The training loop that the CPU's and the GPU's trainer share: options, data, start and resume, steps, validation,
// checkpoints, console and metrics. What differs, the model on its device, comes as a struct of functions.
#ifndef CORE_TRAINER_H
#define CORE_TRAINER_H

#include "gpt2_parameters.h"
#include "settings.h"

typedef struct {        // rows that go through the model at once
    const int *inputs;  // (B,T)
    const int *targets; // (B,T); below 0: no target
    int B, T;
    int64_t step;      // of the optimiser, from 0
    int64_t first_row; // of these rows within the step's whole batch
    int is_first;      // of the step on this rank: gradients are overwritten, else added to
    int is_last;       // of the step on this rank: each layer's gradients may go to the other ranks as soon as they are made
    double scale;      // the gradients are those of scale * (sum of the losses)
} MicroBatch;

typedef struct {     // what a step came to, on all ranks together
    double loss;     // the sum over all its micro-batches
    double norm;     // of the gradients, before clipping
    const char *bad; // the first tensor of this rank's whose gradient is not finite, or NULL
} StepOutcome;

typedef struct {
    // Plans and allocates a model for micro-batches of settings->micro_batch rows of settings->T tokens.
    void *(*create)(const Settings *settings, const Attention *attention);
    void (*free)(void *model);
    // The model's tensors in host memory. `fetch` brings them up to date before a file is written, `send` hands them over
    // after one was read; both are NULL for a model that lives in host memory.
    ModelTensors (*tensors)(void *model);
    void (*fetch)(void *model);
    void (*send)(void *model);

    void (*gradients)(void *model, const MicroBatch *batch);  // forward and backward; a device may still be at it after
    double (*evaluate)(void *model, const MicroBatch *batch); // forward, without dropout; returns the sum of the losses
    // AdamW's step number `step` (from 0) with gradients clipped to the norm settings->clip (0: not clipped). When loss or
    // norm is not finite the weights stay as they are. One call, so that a device decides all this without the host.
    StepOutcome (*update)(void *model, const Settings *settings, int64_t step, double rate);
    // Many ranks: whether the model sums its gradients over them. Without it the trainer refuses more than one rank.
    int sums_over_ranks;
    // ZeRO: the moments are spread over the ranks, but files hold whole ones. `join_moments` makes place for them in the
    // list of tensors; with `fill` it brings them all to rank 0's. `split_moments` takes it away; with `keep` each rank
    // keeps its part. All ranks call them.
    void (*join_moments)(void *model, int fill);
    void (*split_moments)(void *model, int keep);
    // What went bad first in this rank's last forward and backward pass, in words.
    const char *(*find_trouble)(void *model, const char *bad_gradient);

    double (*flops_per_token)(const void *model);
    double (*machine_gflops)(void); // the device's own rate on a large matrix product
    const char *(*device)(void);    // its name; NULL: the processor
    void (*print_memory)(const void *model);
} Backend;

// The whole program: parses the options, trains, returns the exit code.
int trainer_main(const Backend *backend, int argc, char **argv);

#endif
