// The steps of a run: batches, reports, validation, how many steps fit into a time, what is done about trouble.
#include "training.h"
#include "core/base/memory.h"
#include "core/ranks/parallel.h"
#include "core/base/profile.h"
#include "core/base/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALIBRATION_STEPS = 6 };      // --seconds: steps that are timed before their number is first estimated
static const double LONG_RUN = 3600; // seconds that are worth a warning

double training_elapsed(const Training *training) {
    return training->elapsed_before + clock_seconds() - training->start_time;
}

void training_fail(Training *training, const Error *error) {
    if (!training->failed) training->error = *error;
    training->failed = training->stops = 1;
}

// ---- a step

int training_goes_on(Training *training) {
    const Settings *settings = &training->settings;
    if (training->stops || training->step >= settings->steps) return 0;
    if (settings->profile && training->step == training->first_step) profile_begin();
    training->step_start = clock_seconds();
    training->rows = schedule_batch(settings->batch_start, settings->batch, settings->batch_ramp, training->step);
    training->share = partition_rows(training->rows, parallel_rank(), parallel_ranks());
    training->next_row = training->share.first;
    training->has_batch = 0;
    training->scale = 1.0 / (double)dataloader_counted(training->train, training->rows);
    double most_loss, most_norm;
    spikes_limits(&training->spikes, &most_loss, &most_norm);
    Schedule muon = settings->schedule;
    muon.peak = settings->muon_lr;
    training->update = (Update){.step = training->step,
                                .rate = schedule_rate(&settings->schedule, training->step) * training->rate_factor,
                                .muon_rate = schedule_rate(&muon, training->step) * training->rate_factor,
                                .most_loss = most_loss / training->scale,
                                .most_norm = most_norm};
    return 1;
}

// The rows that are in training->inputs and targets.
static MicroBatch micro_batch(const Training *training, int B) {
    int T = training->settings.T;
    MicroBatch batch = {
        .inputs = training->inputs, .targets = training->targets, .B = B, .T = T, .step = training->step};
    if (training->settings.document_mask &&
        micro_batch_positions(training->positions, training->inputs, B, T, training->end_of_text))
        batch.positions = training->positions;
    return batch;
}

// For a rank without rows, when a step has fewer rows than ranks: a row without targets, whose gradients are zero.
static MicroBatch batch_without_targets(Training *training) {
    for (int t = 0; t < training->settings.T; t++) training->inputs[t] = 0, training->targets[t] = -1;
    MicroBatch batch = micro_batch(training, 1);
    batch.is_first = batch.is_last = 1;
    return batch;
}

int training_next_batch(Training *training, MicroBatch *batch) {
    Error error;
    int64_t first = training->next_row, end = training->share.first + training->share.count;
    int B = end - first < training->rows_at_once ? (int)(end - first) : training->rows_at_once;
    if (training->share.count == 0 && !training->has_batch) {
        *batch = batch_without_targets(training);
    } else {
        if (first >= end) return 0;
        profile_work(WORK_DATA);
        if (dataloader_rows_at(training->train, first, B, training->inputs, training->targets, &error)) {
            training_stop_if(parallel_ranks() > 1 ? -1 : 0, training, &error);
            training_fail(training, &error);
            return 0;
        }
        *batch = micro_batch(training, B);
        batch->first_row = first, batch->is_first = !training->has_batch, batch->is_last = first + B == end;
        batch->scale = training->scale;
    }
    training->next_row += B;
    training->has_batch = 1;
    return 1;
}

// ---- trouble: a loss or gradient that is not finite, or a spike. The weights are as they were before the step.

// What went bad, on the first rank whose forward pass shows it; a gradient's name if none does.
static const char *trouble_of_all_ranks(const StepOutcome *outcome) {
    static Error text;
    error_set(&text, "%s", outcome->trouble ? outcome->trouble : "the loss");
    if (parallel_ranks() == 1) return text.text;
    double ranks_in_forward = outcome->in_forward;
    parallel_sum(&ranks_in_forward, 1);
    parallel_agree(ranks_in_forward > 0 ? outcome->in_forward : outcome->trouble != NULL, &text);
    return text.text;
}

// In words; "" when the step was taken.
static void describe_trouble(const Training *training, const StepOutcome *outcome, double loss, char *text,
                             size_t size) {
    const Update *update = &training->update;
    double most_loss = update->most_loss * training->scale;
    long long step = (long long)training->step + 1;
    *text = 0;
    if (!isfinite(outcome->loss) || !isfinite(outcome->norm))
        snprintf(text, size, "step %lld: %.160s is not finite (loss %g, gradient norm %g)", step,
                 trouble_of_all_ranks(outcome), loss, outcome->norm);
    else if (outcome->loss > update->most_loss || outcome->norm > update->most_norm)
        snprintf(text, size, "step %lld: a spike (loss %g, at most %.4g was expected; gradient norm %g, at most %.4g)",
                 step, loss, most_loss, outcome->norm, update->most_norm);
}

static void advance(Training *training) {
    training->step++;
    training->tokens += (int64_t)training->rows * training->settings.T;
    dataloader_advance(training->train, training->rows);
}

static void give_up(Training *training, const char *text, const char *why) {
    Error error;
    training->failed_together = 1;
    error_set(&error, "%s; %s", text, why);
    training_fail(training, &error);
}

// `stop` leaves the run at the step before, so that it can be continued with other settings; `skip` goes on without the
// step's update; `rollback` leaves everything to training_roll_back.
static void handle_trouble(Training *training, const char *text) {
    const Settings *settings = &training->settings;
    char why[200];
    if (settings->on_nan == ON_NAN_STOP) {
        give_up(training, text,
                "the weights are as they were before; lower --lr or set --clip, or --on-nan skip or rollback");
    } else if (settings->on_nan == ON_NAN_SKIP) {
        advance(training);
        run_report_event(&training->run, training->step, "skipped", text);
        snprintf(why, sizeof why, "that makes %d steps in a row without an update (--nan-limit); lower --lr",
                 settings->nan_limit);
        if (++training->skipped_in_a_row >= settings->nan_limit) give_up(training, text, why);
    } else if (training->rollbacks >= settings->nan_limit || training->saved < 0) {
        snprintf(why, sizeof why, "%d rollbacks did not help (--nan-limit)", training->rollbacks);
        give_up(training, text, training->saved < 0 ? "there is no checkpoint to roll back to yet" : why);
    } else {
        run_print(&training->run, "%s", text);
        training->must_roll_back = 1;
    }
}

// ---- how many steps: --seconds

// Until there has been one, a validation is estimated as a forward pass: a third of a training step's work for as many
// tokens; and a save as what a slow disk takes to write the weights and both moments.
static StepCosts costs_so_far(const Training *training, double per_step) {
    const Settings *settings = &training->settings;
    const double disk_bytes_per_second = 3e8;
    StepCosts costs = {.step = per_step,
                       .validation = training->val_seconds,
                       .save = training->save_seconds,
                       .val_every = settings->val_every,
                       .save_every = settings->save_every};
    if (training->val && costs.validation == 0) {
        double batches = (double)dataloader_targets(training->val) / ((double)settings->batch * settings->T);
        costs.validation = per_step / 3 * batches;
    }
    if (costs.save == 0)
        costs.save = 3.0 * sizeof(float) * (double)gpt2_config_parameters(&settings->model) / disk_bytes_per_second;
    return costs;
}

// Estimates the number of steps from the time of those so far, until three quarters of the time are up; then the number
// stays fixed, so that the schedule can come to its end.
static void estimate_steps(Training *training) {
    Settings *settings = &training->settings;
    int64_t done = training->step - training->first_step;
    double spent = clock_seconds() - training->start_time;
    if (done < CALIBRATION_STEPS) return;
    if (training->steps_are_settled || (spent > 0.75 * settings->seconds && done > CALIBRATION_STEPS)) {
        training->steps_are_settled = 1;
        return;
    }
    StepCosts costs = costs_so_far(training, training->training_seconds / (double)done);
    int64_t more = schedule_steps_that_fit(settings->seconds - spent, &costs);
    settings->steps = training->step + (more > 0 ? more : 1);
    if (done == CALIBRATION_STEPS)
        run_print(&training->run, "about %lld steps fit into %.0f s", (long long)settings->steps, settings->seconds);
}

// The ranks' clocks differ: rank 0 decides.
static void settle_steps(Training *training) {
    Settings *settings = &training->settings;
    if (settings->seconds <= 0) return;
    if (parallel_rank() == 0) estimate_steps(training);
    parallel_broadcast(&settings->steps, sizeof settings->steps);
    settings->schedule.total = settings->steps;
}

// ---- reports

static void warn_of_long_run(const Training *training, double remaining) {
    char duration[32];
    if (training->step - training->first_step != CALIBRATION_STEPS || remaining < LONG_RUN) return;
    warn("at this speed the run takes %s more; --seconds N takes as many steps as fit, --model tiny or small is faster",
         duration_text(remaining, duration));
}

static void report_step(Training *training, const StepOutcome *outcome, double seconds) {
    const Settings *settings = &training->settings;
    int64_t tokens = (int64_t)training->rows * settings->T;
    double remaining = (double)(settings->steps - training->step) * training->step_seconds;
    uint64_t floored = attention_stack_floored_rows(&settings->stack);
    StepReport report = {.step = training->step,
                         .steps = settings->steps,
                         .tokens = training->tokens,
                         .batch_tokens = tokens,
                         .loss = outcome->loss * training->scale,
                         .norm = outcome->norm,
                         .rate = training->update.rate,
                         .seconds = seconds,
                         .elapsed = training_elapsed(training),
                         .remaining = remaining,
                         .gflops = training->flops_per_token * (double)tokens / seconds / 1e9,
                         .machine_gflops = training->machine_gflops,
                         .floored_rows = (int64_t)(floored - training->floored_before)};
    training->floored_before = floored;
    run_report_step(&training->run, &report);
    if (settings->seconds == 0) warn_of_long_run(training, remaining);
}

// ---- between steps

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { SIGNALS = sizeof ending_signals / sizeof *ending_signals };

// What all ranks have to know of each other, in one message: the signal that ends the run, whichever rank it came to,
// and what only the first rank finds out: that its directory is gone, or that a failed save is to be tried again.
static void look_around(Training *training) {
    enum { GONE = SIGNALS, RETRY, WORDS };
    double words[WORDS] = {0}, now = clock_seconds();
    for (int i = 0; i < SIGNALS; i++) words[i] = run_signal() == ending_signals[i];
    if (parallel_rank() == 0 && now - training->last_look > 1) {
        training->last_look = now;
        words[GONE] = !run_is_there(&training->run);
    }
    words[RETRY] = training->saves_failed && now >= training->next_try;
    parallel_sum(words, WORDS);
    for (int i = 0; i < SIGNALS && !training->signal; i++)
        if (words[i] > 0) training->signal = ending_signals[i];
    training->stops |= training->signal || words[GONE] > 0;
    training->retries_save = words[RETRY] > 0;
}

void training_end_step(Training *training, const StepOutcome *outcome) {
    char trouble[512];
    double seconds = clock_seconds() - training->step_start;
    if (training->failed) return; // its data could not be read
    training->training_seconds += seconds;
    training->step_seconds += (training->step_seconds > 0 ? 0.1 : 1) * (seconds - training->step_seconds);
    describe_trouble(training, outcome, outcome->loss * training->scale, trouble, sizeof trouble);
    if (trouble[0]) {
        handle_trouble(training, trouble);
    } else {
        advance(training);
        training->skipped_in_a_row = 0;
        spikes_add(&training->spikes, outcome->loss * training->scale, outcome->norm);
        report_step(training, outcome, seconds);
    }
    settle_steps(training);
    look_around(training);
}

// ---- validation

static int is_due(int64_t step, int64_t every, int64_t last) {
    return step == last || (every > 0 && step % every == 0);
}

int training_validates(Training *training) {
    const Settings *settings = &training->settings;
    int begins =
        training->step == training->first_step && settings->steps > 0; // nothing has been learned since the last
    if (!training->val || begins || training->failed || training->must_roll_back) return 0;
    if (training->validated == training->step || !is_due(training->step, settings->val_every, settings->steps))
        return 0;
    training->validated = training->step;
    training->share = partition_rows(dataloader_rows(training->val), parallel_rank(), parallel_ranks());
    training->next_row = training->share.first;
    training->val_bytes = 0, training->val_targets = 0;
    training->val_seconds = clock_seconds();
    profile_within(WORK_VALIDATION);
    return 1;
}

int training_next_validation(Training *training, MicroBatch *batch) {
    Error error;
    int64_t first = training->next_row, end = training->share.first + training->share.count;
    if (first >= end) return 0;
    int B = end - first < training->rows_at_once ? (int)(end - first) : training->rows_at_once;
    if (dataloader_rows_at(training->val, first, B, training->inputs, training->targets, &error)) {
        training_stop_if(parallel_ranks() > 1 ? -1 : 0, training, &error);
        training_fail(training, &error);
        return 0;
    }
    for (size_t n = 0; n < (size_t)B * (size_t)training->settings.T; n++) {
        if (training->targets[n] < 0) continue;
        training->val_targets++;
        if (training->token_bytes) training->val_bytes += training->token_bytes[training->targets[n]];
    }
    *batch = micro_batch(training, B);
    training->next_row += B;
    return 1;
}

// The mean loss over the fixed validation set; every token counts the same.
void training_end_validation(Training *training, double sum) {
    char text[200];
    double sums[] = {sum, training->val_bytes, (double)training->val_targets};
    training->val_seconds = clock_seconds() - training->val_seconds;
    profile_within(WORK_OTHER);
    if (training->failed) return;
    parallel_sum(sums, 3);
    ValidationReport report = {.step = training->step, .tokens = (int64_t)sums[2], .loss = sums[0] / sums[2]};
    if (sums[1] > 0) report.bits_per_byte = sums[0] / 0.6931471805599453 / sums[1];
    if (isfinite(report.loss)) {
        training->val_loss = report.loss;
        run_report_validation(&training->run, &report);
        return;
    }
    snprintf(text, sizeof text, "validation at step %lld: the loss is not finite", (long long)training->step);
    if (training->settings.on_nan == ON_NAN_SKIP)
        run_report_event(&training->run, training->step, "validation failed", text);
    else
        give_up(training, text, "the weights are too large; go on from an earlier checkpoint with a lower --lr");
}

// ---- multiple-choice sets

int training_evaluates(Training *training) {
    const Settings *settings = &training->settings;
    int begins = training->step == training->first_step && settings->steps > 0;
    if (!training->evaluation.count || begins || training->failed || training->must_roll_back) return 0;
    if (training->evaluated == training->step || !is_due(training->step, settings->eval_every, settings->steps))
        return 0;
    training->evaluated = training->step;
    evaluation_begin(&training->evaluation, parallel_rank(), parallel_ranks());
    profile_within(WORK_VALIDATION);
    return 1;
}

int training_next_evaluation(Training *training, MicroBatch *batch) {
    Evaluation *evaluation = &training->evaluation;
    if (evaluation_next(evaluation, batch)) {
        batch->step = training->step;
        return 1;
    }
    for (int i = 0; i < evaluation->count; i++) {
        Choices *set = evaluation->sets[i];
        parallel_sum(set->losses, set->row_count);
        ChoiceReport report = choices_report(set);
        run_report_evaluation(&training->run, training->step, set->path, &report);
    }
    profile_within(WORK_OTHER);
    return 0;
}

// ---- the end

static void print_end(Training *training) {
    const Settings *settings = &training->settings;
    char duration[32], what[1100];
    if (training->saved == training->step && training->step > training->first_step)
        snprintf(what, sizeof what, "%s %s/step_%08lld",
                 training->signal ? "interrupted, saved:" : "done:", training->run.directory,
                 (long long)training->step);
    else if (training->signal)
        snprintf(what, sizeof what, "interrupted at step %lld, nothing new to save", (long long)training->step);
    else if (settings->steps > 0)
        snprintf(what, sizeof what, "%s is at step %lld already; --steps %lld or more continues it",
                 training->run.directory, (long long)training->step, (long long)training->step + 1);
    else
        snprintf(what, sizeof what, "done: validated, nothing to save");
    run_print(&training->run, "%s  %s  peak memory %.0f MB", what, duration_text(training_elapsed(training), duration),
              (double)memory_peak_bytes() / 1e6);
}

int training_end(Training *training) {
    Run *run = &training->run;
    int64_t done = training->step - training->first_step;
    if (training->settings.profile && done > 0) profile_print(stdout, done);
    if (training->failed) {
        if (run->line_open) printf("\n");
        training_stop_if(-1, training, &training->error);
    }
    if (!training->signal && done > 0)
        run_report_done(run, training->step, training->tokens, training_elapsed(training));
    print_end(training);
    int lost = run->lines_lost > 0 || run->events.lost > 0, code = training->signal ? 128 + training->signal : lost;
    if (run->events.lost)
        warn("%.700s lacks %lld events that could not be written", run->events.path, (long long)run->events.lost);
    if (run->lines_lost)
        warn("%.700s/metrics.jsonl lacks %lld lines that could not be written", run->directory,
             (long long)run->lines_lost);
    if (training->signal == SIGPIPE && !freopen("/dev/null", "w", stdout)) code = 1; // nobody reads it any more
    run_close(run);
    dataloader_close(training->train), dataloader_close(training->val);
    evaluation_free(&training->evaluation);
    spikes_free(&training->spikes);
    tokenizer_free(training->tokenizer), free(training->sample), free(training->logits);
    free(training->inputs), free(training->targets), free(training->positions), free(training->token_bytes);
    parallel_end();
    return code;
}
