#include "trainer.h"
#include "file.h"
#include "json.h"
#include "matmul.h"
#include "memory.h"
#include "parallel.h"
#include "profile.h"
#include "progress.h"
#include "random.h"
#include "run.h"
#include "threads.h"
#include "../attention/linear.h"
#include "../dataloader/dataloader.h"
#include "../dataloader/tokenizer.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CALIBRATION_STEPS = 6 }; // --seconds: steps that are timed before their number is first estimated

typedef struct {
    Settings settings;
    Options options;
    const Backend *backend;
    const Attention *attention;
    void *model;
    int64_t step; // of the optimiser, from 0
    DataLoader *train, *val;
    int *token_bytes;      // (V) bytes of each token's text; NULL without a vocabulary
    int rows_at_once;      // of a rank: micro_batch, or less when its share of the batch is
    int *inputs, *targets; // (rows_at_once,T)
    Run run;
    double machine_gflops;
    double begun;                 // clock when the program started
    double start, elapsed_before; // clock at the start; seconds of the run before it was resumed
    int64_t tokens;               // seen so far
    double val_loss, val_seconds; // of the last validation
    double step_seconds;          // smoothed
    double training_seconds;      // in steps, since the start
    uint64_t floored_before;      // rows with a floored denominator, up to the last step
    int settled;                  // --seconds: the number of steps is final
    int failed_together;          // all ranks have the same error: one of them says it
} Trainer;

// ---- starting

// The vocabulary's size, and how many bytes each token stands for.
static int load_vocabulary(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    Tokenizer *tokenizer;
    if (!settings->tokenizer) return 0;
    if (tokenizer_load(&tokenizer, settings->tokenizer, settings->model.V, error)) return -1;
    int V = tokenizer_vocab_size(tokenizer), failed = settings->model.V && settings->model.V != V;
    if (failed)
        error_set(error, "%.700s: expected a vocabulary of %d tokens for this model, found %d", settings->tokenizer,
                  settings->model.V, V);
    settings->model.V = V;
    trainer->token_bytes = memory_allocate((size_t)V, sizeof(int), "the tokens' lengths");
    for (int id = 0; id < V; id++) {
        size_t bytes;
        tokenizer_token(tokenizer, (uint32_t)id, &bytes);
        trainer->token_bytes[id] = (int)bytes;
    }
    tokenizer_free(tokenizer);
    return failed ? -1 : 0;
}

static int open_data(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    if (!settings->train) return error_set(error, "no training data: give --train SHARDS (make quickstart makes some)");
    DataLoaderConfig config = {.pattern = settings->train,
                               .T = settings->T,
                               .vocab = settings->model.V,
                               .shuffle = settings->shuffle,
                               .documents = settings->documents,
                               .seed = random_key((uint64_t)settings->seed, "data order", 0),
                               .least_rows = 1};
    if (dataloader_open(&trainer->train, &config, error)) return -1;
    if (!settings->val) return 0;
    DataLoaderConfig val = {.pattern = settings->val,
                            .T = settings->T,
                            .vocab = settings->model.V,
                            .whole = 1,
                            .documents = settings->documents,
                            .limit = settings->val_tokens};
    if (dataloader_open(&trainer->val, &val, error)) return -1;
    int shared = dataloader_shared_shards(trainer->train, trainer->val);
    if (shared) warn("%d of the validation shards are training shards too; the validation loss will flatter", shared);
    return 0;
}

// Allocates the model and returns its tensors, ready to be filled.
static ModelTensors create_model(Trainer *trainer) {
    const Settings *settings = &trainer->settings;
    int share = (settings->batch + parallel_ranks() - 1) / parallel_ranks();
    trainer->rows_at_once = settings->micro_batch < share ? settings->micro_batch : share;
    size_t N = (size_t)trainer->rows_at_once * (size_t)settings->T;
    Settings here = *settings;
    here.micro_batch = here.attention_config.B = trainer->rows_at_once;
    trainer->model = trainer->backend->create(&here, trainer->attention);
    trainer->inputs = memory_allocate(N, sizeof(int), "the inputs");
    trainer->targets = memory_allocate(N, sizeof(int), "the targets");
    return trainer->backend->tensors(trainer->model);
}

static void initialize_model(const Trainer *trainer, const ModelTensors *model) {
    model_initialize(model, (uint64_t)trainer->settings.seed, trainer->settings.init_std);
}

static int start_fresh(Trainer *trainer, Error *error) {
    if (load_vocabulary(trainer, error)) return -1;
    if (settings_finish(&trainer->settings, &trainer->options, &trainer->attention, NULL, error)) return -1;
    if (open_data(trainer, error)) return -1;
    ModelTensors model = create_model(trainer);
    initialize_model(trainer, &model);
    return 0;
}

static int check_checkpoint(const Trainer *trainer, const Checkpoint *checkpoint, int which, Error *error) {
    const Settings *settings = &trainer->settings;
    return model_check_checkpoint(&settings->model, trainer->attention, &settings->attention_config, checkpoint, which,
                                  error);
}

// Weights of a Hugging Face directory or of one of our checkpoints; its attention is taken over unless another is asked
// for.
static int start_from_checkpoint(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    Checkpoint checkpoint;
    GPT2Config config;
    if (checkpoint_open_newest(&checkpoint, settings->init, error)) return -1;
    const json_t *saved = gpt2_config_attention(checkpoint.config);
    if (options_find(&trainer->options, "attention")->given) saved = NULL;
    int which = MODEL_WEIGHTS | (saved ? MODEL_CONSTANTS : 0);
    int failed = gpt2_config_from_json(&config, checkpoint.config, settings->init, error) ||
                 gpt2_config_agrees(&settings->model, &config, settings->init, error);
    settings->model = config;
    failed = failed || load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, &trainer->attention, saved, error) ||
             check_checkpoint(trainer, &checkpoint, which, error) || open_data(trainer, error);
    if (!failed) {
        ModelTensors model = create_model(trainer);
        initialize_model(trainer, &model); // draws the constants that the file may lack
        failed = model_read_checkpoint(&model, &checkpoint, which, error);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int start_from_llmc(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    LlmcModel file;
    if (llmc_model_open(&file, settings->init, error)) return -1;
    int failed = gpt2_config_agrees(&settings->model, &file.config, settings->init, error);
    settings->model = file.config;
    failed = failed || load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, &trainer->attention, NULL, error) ||
             open_data(trainer, error);
    if (!failed) {
        ModelTensors model = create_model(trainer);
        initialize_model(trainer, &model);
        failed = model_read_llmc(&model, &file, error);
    }
    llmc_model_close(&file);
    return failed ? -1 : 0;
}

// What the state file says of the run so far.
static int read_state(Trainer *trainer, const json_t *state, const char *path, Error *error) {
    RunState before;
    if (run_state_from_json(&before, state, path, error)) return -1;
    trainer->step = before.step;
    trainer->tokens = before.tokens;
    trainer->elapsed_before = before.seconds;
    return dataloader_from_json(trainer->train, json_object_get(state, "loader"), trainer->settings.force, error);
}

static int read_optimizer(Trainer *trainer, const Checkpoint *checkpoint, Error *error) {
    if (trainer->backend->join_moments) trainer->backend->join_moments(trainer->model, 0);
    ModelTensors model = trainer->backend->tensors(trainer->model);
    int status = model_read_optimizer(&model, checkpoint, error);
    if (trainer->backend->split_moments) trainer->backend->split_moments(trainer->model, status == 0);
    return status;
}

// As many threads as before, for the same bits; but another number of ranks has other cores for each.
static void use_threads(Trainer *trainer, const json_t *state) {
    const json_t *saved = json_object_get(state, "ranks");
    int ranks = saved ? (int)json_integer_value(saved) : 1;
    if (ranks != parallel_ranks() && !options_find(&trainer->options, "threads")->given)
        trainer->settings.threads = parallel_threads();
    threads_use(trainer->settings.threads);
}

static int start_from_run(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    Checkpoint checkpoint;
    if (checkpoint_open_newest(&checkpoint, settings->resume, error)) return -1;
    const json_t *saved_attention = gpt2_config_attention(checkpoint.config);
    json_t *softmax = json_made(json_pack("{s:s}", "name", "softmax"), "an attention");
    if (!saved_attention) saved_attention = softmax;
    int failed = 0, was_timed = options_find(&trainer->options, "seconds")->given;
    if (!checkpoint.state || !checkpoint.has_optimizer)
        failed =
            error_set(error, "%.700s: expected a checkpoint with optimizer and state, found weights alone; use --init",
                      checkpoint.path);
    failed = failed ||
             settings_resume(&trainer->options, json_object_get(checkpoint.state, "options"), saved_attention,
                             settings->force, error) ||
             load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, &trainer->attention, saved_attention, error) ||
             check_checkpoint(trainer, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS | MODEL_MOMENTS, error) ||
             open_data(trainer, error);
    if (!was_timed) settings->seconds = 0; // the number of steps was settled when the run began
    use_threads(trainer, checkpoint.state);
    if (!failed) {
        ModelTensors model = create_model(trainer);
        failed = model_read_checkpoint(&model, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS, error) ||
                 read_optimizer(trainer, &checkpoint, error) ||
                 read_state(trainer, checkpoint.state, checkpoint.path, error);
    }
    json_decref(softmax);
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int start(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    if (settings->resume && settings->init) return error_set(error, "options --resume and --init exclude each other");
    if (settings->resume && !file_is_directory(settings->resume))
        return error_set(error, "%.700s: expected a run to resume, found no such directory", settings->resume);
    if (settings->resume && !options_find(&trainer->options, "out")->given)
        settings->out = run_of_checkpoint(settings->resume);
    trainer->run = (Run){.lock = -1};
    if (parallel_rank() == 0 && run_open(&trainer->run, settings->out, error)) return -1;
    trainer->run.quiet = settings->quiet;
    trainer->run.terminal &= parallel_ranks() == 1; // launchers pretend one
    if (settings->resume) return start_from_run(trainer, error);
    int64_t *steps;
    int existing = parallel_rank() == 0 ? checkpoint_list(&steps, settings->out) : 0;
    if (existing) free(steps);
    if (existing)
        return error_set(error, "%.700s: a run is there already; --resume it, choose another --out, or remove it",
                         settings->out);
    if (!settings->init) return start_fresh(trainer, error);
    if (llmc_model_is(settings->init)) return start_from_llmc(trainer, error);
    return start_from_checkpoint(trainer, error);
}

// ---- many ranks

static int compare_options(const Trainer *trainer, Error *error) {
    if (parallel_ranks() > 1 && !trainer->backend->sums_over_ranks)
        return error_set(error, "started as one of %d processes, but built without NCCL; install it and make again",
                         parallel_ranks());
    json_t *options = options_to_json(&trainer->options);
    json_object_del(options, "threads");
    int status = parallel_compare(options, "option --", error);
    json_decref(options);
    return status;
}

static uint64_t hash_tensors(const ModelTensors *model) {
    uint64_t hash = 0;
    for (int i = 0; i < model->count; i++)
        hash = XXH3_64bits_withSeed(model->parameters[i].value, model->parameters[i].count * sizeof(real), hash);
    AttentionConstant constants[ATTENTION_CONSTANTS_MAX];
    size_t per_layer;
    attention_constants(model->attention, &model->attention_config, constants, &per_layer);
    for (int l = 0; per_layer && l < model->config.L; l++)
        hash = XXH3_64bits_withSeed(model->constants[l], per_layer * sizeof(real), hash);
    return hash;
}

// All ranks must begin with the same weights and constants, at the same place in the same data.
static int compare_starts(const Trainer *trainer, Error *error) {
    if (parallel_ranks() == 1) return 0;
    ModelTensors model = trainer->backend->tensors(trainer->model);
    json_t *start = json_pack("{s:I, s:I, s:I, s:I, s:I}", "step", (json_int_t)trainer->step, "position in the data",
                              (json_int_t)dataloader_position(trainer->train), "training data's fingerprint",
                              (json_int_t)dataloader_fingerprint(trainer->train), "validation data's fingerprint",
                              (json_int_t)(trainer->val ? dataloader_fingerprint(trainer->val) : 0), "weights' hash",
                              (json_int_t)hash_tensors(&model));
    int status = parallel_compare(json_made(start, "the start"), "the ", error);
    json_decref(start);
    return status;
}

// Ends the program with the error, if there is one. An error that all ranks share is told once; one that only this rank
// has ends the others too.
static void stop_if(int status, const Trainer *trainer, const Error *error) {
    if (status == 0) return;
    if (trainer->failed_together) error_set_rank(-1);
    if (!trainer->failed_together || parallel_rank() == 0) error_print(error);
    if (trainer->failed_together) parallel_end();
    exit(1);
}

// The same for what every rank does before the first step: they wait for each other's verdict.
static void stop_together_if(int status, Trainer *trainer, Error *error) {
    trainer->failed_together = 1;
    stop_if(parallel_agree(status, error), trainer, error);
    trainer->failed_together = parallel_ranks() == 1;
}

// ---- what the user sees first

static void print_start(const Trainer *trainer, const json_t *machine) {
    const Settings *settings = &trainer->settings;
    json_t *attention = attention_to_json(trainer->attention, &settings->attention_config);
    settings_print(&trainer->options, attention, stdout);
    json_decref(attention);
    printf("%-14s%llu, %.1f MFLOP per token and step\n", "parameters",
           (unsigned long long)gpt2_config_parameters(&settings->model),
           trainer->backend->flops_per_token(trainer->model) / 1e6);
    trainer->backend->print_memory(trainer->model);
    printf("%-14s%lld tokens in %d shards, %lld rows of %d\n", "training data",
           (long long)dataloader_tokens(trainer->train), dataloader_shards(trainer->train),
           (long long)dataloader_rows(trainer->train), settings->T);
    if (trainer->val)
        printf("%-14s%lld tokens, the same every time\n", "validation", (long long)dataloader_targets(trainer->val));
    printf("%-14s%s, %d threads, %s", "machine", json_string_value(json_object_get(machine, "processor")),
           omp_get_max_threads(), json_string_value(json_object_get(machine, "blas")));
    if (parallel_ranks() > 1) printf(", %d ranks", parallel_ranks());
    if (trainer->backend->device) printf(", %s", trainer->backend->device());
    printf(", %.0f GFLOP/s\n", trainer->machine_gflops);
    if (trainer->step) printf("%-14sat step %lld\n", "continues", (long long)trainer->step);
    printf("\n");
    fflush(stdout);
}

static int open_metrics(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    json_t *machine = run_machine();
    trainer->machine_gflops = trainer->backend->machine_gflops();
    parallel_sum(&trainer->machine_gflops, 1);
    if (parallel_rank() > 0) return json_decref(machine), 0;
    json_put(machine, "ranks", json_integer(parallel_ranks()));
    json_put(machine, "gflops", json_number(trainer->machine_gflops));
    json_put(machine, "startup_seconds", json_number(clock_seconds() - trainer->begun));
    if (trainer->backend->device) json_put(machine, "device", json_readable(trainer->backend->device()));
    if (!settings->quiet) print_start(trainer, machine);
    json_t *attention = attention_to_json(trainer->attention, &settings->attention_config);
    json_t *line = json_pack("{s:s, s:o, s:o, s:o, s:I, s:o}", "type", "configuration", "options",
                             settings_to_json(&trainer->options), "attention", attention, "model",
                             gpt2_config_to_json(&settings->model, attention), "parameters",
                             (json_int_t)gpt2_config_parameters(&settings->model), "machine", machine);
    int result = run_open_metrics(&trainer->run, json_made(line, "the configuration"), trainer->step, error);
    json_decref(line);
    return result;
}

// ---- one step

typedef struct {
    double loss, norm, rate;
    int rows;
    const char *trouble; // NULL, or what was not finite
} StepResult;

static MicroBatch micro_batch(const Trainer *trainer, int B) {
    return (MicroBatch){.inputs = trainer->inputs,
                        .targets = trainer->targets,
                        .B = B,
                        .T = trainer->settings.T,
                        .step = trainer->step};
}

// A rank without rows, when a step has fewer than there are ranks: a row without targets, whose gradients are zero.
static void no_gradients(Trainer *trainer) {
    for (int t = 0; t < trainer->settings.T; t++) trainer->inputs[t] = 0, trainer->targets[t] = -1;
    MicroBatch batch = micro_batch(trainer, 1);
    batch.is_first = batch.is_last = 1;
    trainer->backend->gradients(trainer->model, &batch);
}

// Gradients of this rank's rows of one step's batch, accumulated over micro-batches.
static int accumulate_gradients(Trainer *trainer, int rows, double scale, Error *error) {
    Rows share = partition_rows(rows, parallel_rank(), parallel_ranks());
    int64_t end = share.first + share.count;
    if (share.count == 0) no_gradients(trainer);
    for (int64_t first = share.first; first < end; first += trainer->rows_at_once) {
        int B = end - first < trainer->rows_at_once ? (int)(end - first) : trainer->rows_at_once;
        profile_work(WORK_DATA);
        if (dataloader_rows_at(trainer->train, first, B, trainer->inputs, trainer->targets, error)) return -1;
        MicroBatch batch = micro_batch(trainer, B);
        batch.first_row = first, batch.is_first = first == share.first, batch.is_last = first + B == end;
        batch.scale = scale;
        trainer->backend->gradients(trainer->model, &batch);
    }
    return 0;
}

// What went bad, on the first rank whose forward pass shows it; a gradient's name if none does.
static const char *trouble_of_all_ranks(const Trainer *trainer, const char *bad_gradient) {
    static Error text;
    const char *here = trainer->backend->find_trouble(trainer->model, NULL); // "the head": no tensor before it
    error_set(&text, "%s", trainer->backend->find_trouble(trainer->model, bad_gradient));
    if (parallel_ranks() == 1) return text.text;
    int in_forward = strcmp(here, "the head") != 0;
    double ranks_in_forward = in_forward;
    parallel_sum(&ranks_in_forward, 1);
    parallel_agree(ranks_in_forward > 0 ? in_forward : bad_gradient != NULL, &text);
    return text.text;
}

static int train_step(Trainer *trainer, StepResult *result, Error *error) {
    const Settings *settings = &trainer->settings;
    const Backend *backend = trainer->backend;
    *result = (StepResult){.rate = schedule_rate(&settings->schedule, trainer->step)};
    result->rows = schedule_batch(settings->batch_start, settings->batch, settings->batch_ramp, trainer->step);
    double scale = 1.0 / ((double)result->rows * settings->T);
    if (accumulate_gradients(trainer, result->rows, scale, error)) return -1;
    StepOutcome outcome = backend->update(trainer->model, settings, trainer->step++, result->rate);
    result->loss = outcome.loss * scale, result->norm = outcome.norm;
    dataloader_advance(trainer->train, result->rows);
    trainer->tokens += (int64_t)result->rows * settings->T;
    if (!isfinite(result->loss) || !isfinite(result->norm)) // it has not reached the weights
        result->trouble = trouble_of_all_ranks(trainer, outcome.bad);
    return 0;
}

// ---- validation and checkpoints

// The mean loss over the fixed validation set; every token counts the same.
static int validate(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    double sum = 0, bytes = 0, start_time = clock_seconds();
    profile_within(WORK_VALIDATION);
    Rows share = partition_rows(dataloader_rows(trainer->val), parallel_rank(), parallel_ranks());
    int64_t end = share.first + share.count, tokens = 0;
    for (int64_t first = share.first; first < end; first += trainer->rows_at_once) {
        int B = end - first < trainer->rows_at_once ? (int)(end - first) : trainer->rows_at_once;
        if (dataloader_rows_at(trainer->val, first, B, trainer->inputs, trainer->targets, error)) return -1;
        MicroBatch batch = micro_batch(trainer, B);
        sum += trainer->backend->evaluate(trainer->model, &batch);
        for (size_t n = 0; n < (size_t)B * (size_t)settings->T; n++) {
            if (trainer->targets[n] < 0) continue;
            tokens++;
            if (trainer->token_bytes) bytes += trainer->token_bytes[trainer->targets[n]];
        }
    }
    double sums[] = {sum, bytes, (double)tokens};
    parallel_sum(sums, 3);
    sum = sums[0], bytes = sums[1], tokens = (int64_t)sums[2];
    ValidationReport report = {.step = trainer->step, .tokens = tokens, .loss = sum / (double)tokens};
    if (bytes > 0) report.bits_per_byte = sum / 0.6931471805599453 / bytes;
    trainer->val_loss = report.loss;
    trainer->val_seconds = clock_seconds() - start_time;
    run_report_validation(&trainer->run, &report);
    profile_within(WORK_OTHER);
    return 0;
}

static double elapsed(const Trainer *trainer) {
    return trainer->elapsed_before + clock_seconds() - trainer->start;
}

static int write_checkpoint(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    json_t *state =
        json_pack("{s:I, s:I, s:f, s:i, s:o, s:o}", "step", (json_int_t)trainer->step, "tokens",
                  (json_int_t)trainer->tokens, "seconds", elapsed(trainer), "ranks", parallel_ranks(), "loader",
                  dataloader_to_json(trainer->train), "options", settings_to_json(&trainer->options));
    json_made(state, "the state");
    if (trainer->val_loss > 0) json_put(state, "validation_loss", json_number(trainer->val_loss));
    ModelTensors model = trainer->backend->tensors(trainer->model);
    int result = model_save(&model, settings->out, trainer->step, state, settings->tokenizer, error);
    json_decref(state);
    if (result) return -1;
    char text[1200];
    snprintf(text, sizeof text, "saved %.900s/step_%08lld", settings->out, (long long)trainer->step);
    run_report_event(&trainer->run, trainer->step, "saved", text);
    return checkpoint_prune(settings->out, settings->keep_last, settings->keep_every, error);
}

static int save(Trainer *trainer, Error *error) {
    const Backend *backend = trainer->backend;
    profile_within(WORK_SAVING);
    if (backend->fetch) backend->fetch(trainer->model);
    if (backend->join_moments) backend->join_moments(trainer->model, 1);
    int status = parallel_rank() == 0 ? write_checkpoint(trainer, error) : 0;
    if (backend->split_moments) backend->split_moments(trainer->model, 0);
    profile_within(WORK_OTHER);
    return status;
}

// ---- the loop

static int is_due(int64_t step, int64_t every, int64_t last) {
    return step == last || (every > 0 && step % every == 0);
}

// The signal that ends the run, whichever rank it came to: all of them stop after the same step.
static int signal_of_all_ranks(void) {
    double interrupted = run_signal() == SIGINT, terminated = run_signal() && run_signal() != SIGINT;
    if (parallel_ranks() == 1) return run_signal();
    double sums[] = {interrupted, terminated};
    parallel_sum(sums, 2);
    return sums[1] > 0 ? SIGTERM : sums[0] > 0 ? SIGINT : 0;
}

// --seconds: estimates the number of steps from the time of those so far, until half the time is over; then it stays.
static void estimate_steps(Trainer *trainer, int64_t first_step) {
    Settings *settings = &trainer->settings;
    int64_t done = trainer->step - first_step;
    double spent = clock_seconds() - trainer->start;
    if (done < CALIBRATION_STEPS) return;
    if (trainer->settled || (spent > settings->seconds / 2 && done > CALIBRATION_STEPS)) {
        trainer->settled = 1;
        return;
    }
    double per_step = trainer->training_seconds / (double)done;
    if (trainer->val) { // validating is a forward pass: a third of a training step's work for as many tokens
        double batches = (double)dataloader_targets(trainer->val) / ((double)settings->batch * settings->T);
        double validation = trainer->val_seconds > 0 ? trainer->val_seconds : per_step / 3 * batches;
        spent += validation; // the last one
        if (settings->val_every > 0) per_step += validation / (double)settings->val_every;
    }
    int64_t more = spent < settings->seconds ? (int64_t)((settings->seconds - spent) / per_step) : 0;
    settings->steps = trainer->step + (more > 0 ? more : 1);
    if (done == CALIBRATION_STEPS)
        run_print(&trainer->run, "about %lld steps fit into %.0f s", (long long)settings->steps, settings->seconds);
}

// The ranks' clocks differ: rank 0 decides.
static void settle_steps(Trainer *trainer, int64_t first_step) {
    Settings *settings = &trainer->settings;
    if (settings->seconds <= 0) return;
    if (parallel_rank() == 0) estimate_steps(trainer, first_step);
    parallel_broadcast(&settings->steps, sizeof settings->steps);
    settings->schedule.total = settings->steps;
}

static void report_step(Trainer *trainer, const StepResult *result, double seconds) {
    const Settings *settings = &trainer->settings;
    int64_t tokens = (int64_t)result->rows * settings->T;
    double smoothing = trainer->step_seconds > 0 ? 0.1 : 1;
    trainer->step_seconds += smoothing * (seconds - trainer->step_seconds);
    trainer->training_seconds += seconds;
    StepReport report = {.step = trainer->step,
                         .steps = settings->steps,
                         .tokens = trainer->tokens,
                         .batch_tokens = tokens,
                         .loss = result->loss,
                         .norm = result->norm,
                         .rate = result->rate,
                         .seconds = seconds,
                         .elapsed = elapsed(trainer),
                         .remaining = (double)(settings->steps - trainer->step) * trainer->step_seconds,
                         .gflops = trainer->backend->flops_per_token(trainer->model) * (double)tokens / seconds / 1e9,
                         .machine_gflops = trainer->machine_gflops,
                         .floored_rows = (int64_t)(linear_floored_rows() - trainer->floored_before)};
    trainer->floored_before = linear_floored_rows();
    run_report_step(&trainer->run, &report);
}

// A loss or gradient that is not finite: the weights are untouched. `stop` ends the run, `skip` goes on without the step.
static int handle_trouble(Trainer *trainer, const StepResult *result, Error *error) {
    char text[256];
    snprintf(text, sizeof text, "step %lld: %.160s is not finite (loss %g, gradient norm %g)", (long long)trainer->step,
             result->trouble, result->loss, result->norm);
    if (trainer->settings.on_nan == ON_NAN_STOP) {
        trainer->failed_together = 1;
        return error_set(error, "%s; the weights are as they were before; lower --lr or set --clip, or --on-nan skip",
                         text);
    }
    run_report_event(&trainer->run, trainer->step, "skipped", text);
    return 0;
}

static int train(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    int64_t first_step = trainer->step, saved = -1;
    trainer->start = clock_seconds();
    if (settings->profile) profile_begin();
    if (trainer->step >= settings->steps && trainer->val) return validate(trainer, error); // nothing left but to look
    while (trainer->step < settings->steps && !signal_of_all_ranks()) {
        StepResult result;
        double step_start = clock_seconds();
        if (train_step(trainer, &result, error)) return -1;
        if (result.trouble && handle_trouble(trainer, &result, error)) return -1;
        if (!result.trouble) report_step(trainer, &result, clock_seconds() - step_start);
        settle_steps(trainer, first_step);
        if (trainer->val && is_due(trainer->step, settings->val_every, settings->steps) && validate(trainer, error))
            return -1;
        if (is_due(trainer->step, settings->save_every, settings->steps)) {
            if (save(trainer, error)) return -1;
            saved = trainer->step;
        }
    }
    if (saved != trainer->step && trainer->step > first_step && save(trainer, error)) return -1;
    if (settings->profile) profile_print(stdout, trainer->step - first_step);
    return 0;
}

static void list_attentions(void) {
    for (int i = 0; attention_registry[i]; i++)
        printf("%-14s %s\n", attention_registry[i]->name, attention_registry[i]->summary);
}

// Reads the options, finds out what to train, and makes sure that all ranks found the same.
static void prepare(Trainer *trainer, int argc, char **argv) {
    Error error;
    settings_options(&trainer->options, &trainer->settings);
    stop_together_if(options_parse(&trainer->options, argc, argv, NULL, 0, NULL, &error), trainer, &error);
    if (!strcmp(trainer->settings.attention, "list")) list_attentions(), exit(0);
    stop_together_if(compare_options(trainer, &error), trainer, &error);
    if (!trainer->settings.threads && parallel_ranks() > 1) trainer->settings.threads = parallel_threads();
    trainer->settings.threads = threads_use(trainer->settings.threads);
    run_catch_signals();
    stop_together_if(start(trainer, &error), trainer, &error);
    stop_together_if(compare_starts(trainer, &error), trainer, &error);
    if (trainer->backend->send) trainer->backend->send(trainer->model);
    stop_together_if(open_metrics(trainer, &error), trainer, &error);
}

int trainer_main(const Backend *backend, int argc, char **argv) {
    static Trainer trainer;
    Error error;
    threads_wait_politely(argv);
    error_set_program(argv[0]);
    trainer.begun = clock_seconds();
    parallel_start();
    trainer.backend = backend;
    trainer.settings = settings_default();
    prepare(&trainer, argc, argv);
    stop_if(train(&trainer, &error), &trainer, &error);
    int signal = signal_of_all_ranks();
    if (!signal) run_report_done(&trainer.run, trainer.step, trainer.tokens, elapsed(&trainer));
    char duration[32];
    run_print(&trainer.run, "%s %s/step_%08lld  %s  peak memory %.0f MB",
              signal ? "interrupted, saved:" : "done:", trainer.settings.out, (long long)trainer.step,
              duration_text(elapsed(&trainer), duration), (double)memory_peak_bytes() / 1e6);
    run_close(&trainer.run);
    backend->free(trainer.model);
    parallel_end();
    return signal ? 128 + signal : 0;
}
