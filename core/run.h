// A run: its directory and lock, the signals that end it, its metrics file and its console.
#ifndef CORE_RUN_H
#define CORE_RUN_H

#include "error.h"

#include <jansson.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *directory;
    int lock;      // descriptor of RUN/lock, held for the process's life
    FILE *metrics; // RUN/metrics.jsonl
    int terminal;  // standard output is a terminal: the step line updates in place
    int quiet;
    int line_open; // a step line stands on the terminal without its line break
} Run;

typedef struct {         // one step, for the console and the metrics
    int64_t step, steps; // done so far, in all
    int64_t tokens;      // seen so far
    int64_t batch_tokens;
    double loss, norm, rate;
    double seconds; // this step
    double elapsed, remaining;
    double gflops, machine_gflops;
    int64_t floored_rows; // attentions with signed scores: rows of this step whose denominator was too near zero
} StepReport;

typedef struct {
    int64_t step;
    int64_t tokens;       // in the validation set
    double loss;          // nats per token
    double bits_per_byte; // 0 when no vocabulary is known
} ValidationReport;

typedef struct { // what state.json says of a run so far
    int64_t step, tokens;
    double seconds;
    int ranks;
} RunState;

// Refuses what is missing, negative or beyond what a run can reach; states without `seconds` or `ranks` are of one process
// that was not timed. `path` is the checkpoint's.
int run_state_from_json(RunState *state, const json_t *json, const char *path, Error *error);

// Makes the directory and takes its lock: a second run in it is refused.
int run_open(Run *run, const char *directory, Error *error);
// Opens the metrics: a new file whose first line is `configuration`, or, when a run continues at `step`, the old one
// without the lines of later steps.
int run_open_metrics(Run *run, const json_t *configuration, int64_t step, Error *error);
void run_close(Run *run);

// RUN/step_00000100 -> RUN, RUN -> RUN: a checkpoint is continued in the run it belongs to. Fresh memory.
char *run_of_checkpoint(const char *path);

void run_report_step(Run *run, const StepReport *report);
void run_report_validation(Run *run, const ValidationReport *report);
void run_report_event(Run *run, int64_t step, const char *event, const char *text); // "saved", "skipped", ...
// The last line of a run that reached its end; without it a run is still going on or was interrupted.
void run_report_done(Run *run, int64_t step, int64_t tokens, double elapsed);
void run_print(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); // a line of its own on the console

// SIGINT and SIGTERM: the signal's number once one has come, else 0. A second SIGINT ends the process at once. SIGUSR1
// counts as SIGTERM: mpirun hands it on and waits, where after SIGTERM it leaves its processes one second.
void run_catch_signals(void);
int run_signal(void);

// Compiler, flags, processor, threads, memory, BLAS: what a reader of the metrics wants to know.
json_t *run_machine(void);

#endif
