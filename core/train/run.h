// A run: its directory and lock, the signals that end it, its metrics file and its console.
#ifndef CORE_RUN_H
#define CORE_RUN_H

#include "core/base/error.h"
#include "dataloader/choices.h"
#include "events.h"

#include <jansson.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *directory;
    int lock;           // descriptor of RUN/lock, held for the process's life; -1: not taken yet
    int metrics;        // descriptor of RUN/metrics.jsonl; -1: none
    int64_t metrics_at; // its size: whole lines
    int64_t lines_lost; // lines that could not be written
    Events events;      // --tensorboard
    int llmc_log;       // also llm.c's log, RUN/main.log
    int terminal;       // standard output is a terminal: the step line updates in place
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
    int64_t floored_rows; // signed scores: rows of this step whose sum was negative or replaced by its floor
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
    double rate_factor; // of the learning rate, lower after each of the `rollbacks`
    int rollbacks;
} RunState;

// Refuses what is missing, negative or beyond what a run can reach; states without `seconds`, `ranks` or `rollbacks`
// are of one process that was not timed and never rolled back. `path` is the checkpoint's.
int run_state_from_json(RunState *state, const json_t *json, const char *path, Error *error);

// Looks at the directory, which need not be there yet: where another run holds its lock it is refused, and a lock that
// is there is taken. Nothing is created.
int run_open(Run *run, const char *directory, Error *error);
// Makes the directory and takes its lock, unless run_open already has it.
int run_create(Run *run, Error *error);
// Whether the directory is still the one whose lock this process holds: it may have been removed or replaced.
int run_is_there(const Run *run);
// Whether a directory has nothing in it but a lock, or is not there.
int run_is_empty(const char *directory);
// Opens the metrics: a new file whose first line is `configuration`, or, when a run continues at `step`, the old one
// without the lines of later steps.
int run_open_metrics(Run *run, const json_t *configuration, int64_t step, Error *error);
// The same as llm.c's main.log: `s:STEP trl:LOSS lr:RATE norm:NORM`, and `s:STEP tel:LOSS` of validations. A step that
// is called N elsewhere is trained by llm.c as number N - 1.
int run_open_llmc_log(Run *run, int64_t step, Error *error);
// The same for TensorBoard, in a file of this session's own.
int run_open_events(Run *run, const json_t *configuration, int64_t step, Error *error);
// Lines of steps after `step` go, as when the run goes back to it.
int run_cut_metrics(Run *run, int64_t step, Error *error);
void run_close(Run *run);

// RUN/step_00000100 -> RUN, RUN -> RUN: a checkpoint is continued in the run it belongs to. Fresh memory.
char *run_of_checkpoint(const char *path);
// Whether two paths are one directory.
int run_is_same(const char *a, const char *b);
// Moves what a run saved after `step`, an abandoned branch, into RUN/aside_N, with a copy of the metrics. Without any
// it does nothing; `where` (size) receives the folder, or "".
int run_set_aside(const char *directory, int64_t step, char *where, size_t size, Error *error);
// The first of "PATH", "PATH_2", "PATH_3" ... that is not there; fresh memory.
char *run_free_name(const char *path);

void run_report_step(Run *run, const StepReport *report);
void run_report_validation(Run *run, const ValidationReport *report);
void run_report_evaluation(Run *run, int64_t step, const char *set, const ChoiceReport *report);
void run_report_sample(Run *run, int64_t step, const char *text);                   // UTF-8
void run_report_event(Run *run, int64_t step, const char *event, const char *text); // "saved", "skipped", ...
// The last line of a run that reached its end; without it a run is still going on or was interrupted.
void run_report_done(Run *run, int64_t step, int64_t tokens, double elapsed);
void run_print(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); // a line of its own on the console

// SIGINT, SIGTERM, SIGHUP (unless it is ignored, as under nohup) and SIGPIPE: the signal's number once one has come,
// else 0. A second SIGINT ends the process at once. SIGUSR1 counts as SIGTERM: mpirun hands it on and waits, where
// after SIGTERM it leaves its processes one second.
void run_catch_signals(void);
int run_signal(void);

// Compiler, flags, processor, threads, memory, BLAS: what a reader of the metrics wants to know.
json_t *run_machine(void);

#endif
