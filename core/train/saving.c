// Saving a run, and going back to what was saved. A save that fails never ends a run, unless it is the last one.
#include "training.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/ranks/parallel.h"
#include "core/base/profile.h"
#include "core/base/progress.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double RETRY_SECONDS = 30, ROLLBACK_RATE = 0.5;

static int is_last_save(const Training *training) {
    return training->stops || training->step >= training->settings.steps;
}

int training_saves(const Training *training) {
    const Settings *settings = &training->settings;
    int is_due = settings->save_every > 0 && training->step % settings->save_every == 0;
    if (training->must_roll_back || training->saved == training->step) return 0;
    // Rollback needs something to go back to from the first step on.
    if (training->step == training->first_step)
        return settings->on_nan == ON_NAN_ROLLBACK && training->saved < 0 && !is_last_save(training);
    return is_last_save(training) || training->retries_save || is_due;
}

// ---- one save

static json_t *state_of(const Training *training) {
    json_t *state =
        json_pack("{s:I, s:I, s:f, s:i, s:o, s:o}", "step", (json_int_t)training->step, "tokens",
                  (json_int_t)training->tokens, "seconds", training_elapsed(training), "ranks", parallel_ranks(),
                  "loader", dataloader_to_json(training->train), "options", settings_to_json(&training->options));
    json_made(state, "the state");
    if (training->val_loss > 0) json_put(state, "validation_loss", json_number(training->val_loss));
    if (training->rollbacks > 0) json_put(state, "rate_factor", json_number(training->rate_factor));
    if (training->rollbacks > 0) json_put(state, "rollbacks", json_integer(training->rollbacks));
    if (training->spikes.count > 0) json_put(state, "spikes", spikes_to_json(&training->spikes));
    return state;
}

static int write_checkpoint(Training *training, const ModelTensors *model, Error *error) {
    json_t *state = state_of(training);
    int result = model_save(model, training->run.directory, training->step, state, training->vocabulary,
                            training->vocabulary_files, error);
    json_decref(state);
    return result;
}

static void prune(Training *training) {
    const Settings *settings = &training->settings;
    Error error;
    if (!checkpoint_prune(training->run.directory, training->saved, settings->keep_last, settings->keep_every, &error))
        return;
    if (strcmp(error.text, training->prune_warning.text)) warn("%s; the run goes on", error.text);
    training->prune_warning = error;
}

static void take_note_of_save(Training *training) {
    char text[1200];
    training->saved = training->step;
    training->saves_failed = 0;
    snprintf(text, sizeof text, "saved %.900s/step_%08lld", training->run.directory, (long long)training->step);
    run_report_event(&training->run, training->step, "saved", text);
    prune(training);
}

// ---- a run whose directory is gone

// The directory was removed or replaced: somebody else may be at work there. What has been learned goes elsewhere, and
// the run ends.
static void move_to_rescue(Training *training) {
    Error error, why;
    size_t size = strlen(training->run.directory) + 16;
    char *wanted = memory_resize(NULL, size, 1, "a path");
    snprintf(wanted, size, "%s.rescued", training->run.directory);
    char *place = run_free_name(wanted);
    error_set(&error,
              "%.400s was removed or replaced while the run was writing to it; the run ends, its weights are in "
              "%.400s",
              training->run.directory, place);
    training_fail(training, &error);
    Run gone = training->run;
    gone.metrics = -1; // its file has no name any more
    training->run =
        (Run){.directory = place, .lock = -1, .metrics = -1, .quiet = gone.quiet, .terminal = gone.terminal};
    if (run_create(&training->run, &why)) error_prefix(&training->error, why.text);
    run_close(&gone);
    free(wanted);
}

// ---- saving with patience

// The last save waits for space as long as it may; a signal ends the wait.
static int may_wait(const Training *training, double since) {
    int is_hasty = run_signal() && run_signal() != training->signal;
    return is_last_save(training) && !is_hasty && clock_seconds() - since < training->settings.save_wait;
}

static void save_with_patience(Training *training, const ModelTensors *model) {
    Error error;
    double since = clock_seconds();
    int is_told = 0;
    while (write_checkpoint(training, model, &error)) {
        int waits = may_wait(training, since), is_last = is_last_save(training);
        if (!is_last) warn("not saved: %s; the run goes on", error.text);
        if (waits && !is_told) warn("not saved: %s; trying again until --save-wait is over", error.text);
        is_told = 1;
        training->saves_failed++;
        training->next_try = clock_seconds() + RETRY_SECONDS;
        if (!waits && is_last) {
            Error failure;
            error_set(&failure, "the last save failed: %.900s", error.text);
            training_fail(training, &failure);
        }
        if (!waits) return;
        sleep(1);
    }
    training->save_seconds = clock_seconds() - since;
    take_note_of_save(training);
}

void training_save(Training *training, const ModelTensors *model) {
    profile_within(WORK_SAVING);
    if (is_last_save(training) && parallel_timeout() > 0) // for which rank 0 may wait, and the others for rank 0
        parallel_set_timeout(training->settings.rank_timeout + training->settings.save_wait);
    if (parallel_rank() == 0) {
        if (!run_is_there(&training->run)) move_to_rescue(training);
        save_with_patience(training, model);
        if (is_last_save(training) && !run_is_there(&training->run))
            warn("%.700s: removed or replaced while the last checkpoint was saved; what stood there before is gone",
                 training->run.directory);
    }
    if (parallel_rank() > 0 || is_last_save(training)) training->saved = training->step; // tried as often as it may be
    training->retries_save = 0;
    profile_within(WORK_OTHER);
}

// ---- rollback

int training_rolls_back(const Training *training) {
    return training->must_roll_back;
}

static int read_saved(Training *training, const ModelTensors *model, Error *error) {
    Checkpoint checkpoint;
    int rollbacks = training->rollbacks + 1;
    double factor = training->rate_factor * ROLLBACK_RATE;
    if (checkpoint_open_newest(&checkpoint, training->settings.out, CHECKPOINT_RUN, error)) return -1;
    int failed = model_read_checkpoint(model, &checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION, error) ||
                 model_read_optimizer(model, &checkpoint, error) ||
                 training_read_state(training, checkpoint.state, checkpoint.path, error);
    checkpoint_close(&checkpoint);
    training->rollbacks = rollbacks, training->rate_factor = factor;
    return failed ? -1 : 0;
}

void training_roll_back(Training *training, const ModelTensors *model) {
    Error error;
    char text[200];
    int64_t from = training->step;
    training->must_roll_back = 0;
    training_stop_together_if(read_saved(training, model, &error), training, &error);
    training->saved = training->step, training->validated = training->sampled = -1;
    if (parallel_rank() == 0 && run_cut_metrics(&training->run, training->step, &error)) warn("%s", error.text);
    snprintf(text, sizeof text, "rolled back from step %lld to step %lld, the learning rate is multiplied by %g",
             (long long)from, (long long)training->step, training->rate_factor);
    run_report_event(&training->run, training->step, "rolled back", text);
}
