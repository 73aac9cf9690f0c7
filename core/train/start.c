// How a run starts: its options, the data, where the weights come from, what all ranks must agree on.
#include "training.h"
#include "llmc_command.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/ranks/parallel.h"
#include "core/base/progress.h"
#include "core/base/threads.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- ending before the first step

void training_stop_if(int status, const Training *training, const Error *error) {
    if (status == 0) return;
    if (training->failed_together) error_set_rank(-1);
    if (!training->failed_together || parallel_rank() == 0) error_print(error);
    if (training->failed_together) parallel_end();
    exit(1);
}

void training_stop_together_if(int status, Training *training, Error *error) {
    training->failed_together = 1;
    training_stop_if(parallel_agree(status, error), training, error);
    training->failed_together = parallel_ranks() == 1;
}

// ---- data and vocabulary

// The vocabulary's size, how many bytes each token stands for, and the files to save. Nothing is read from the user's
// disk again, where the vocabulary may change or go away while the run lasts.
static int use_vocabulary(Training *training, const Tokenizer *tokenizer, const char *path, Error *error) {
    Settings *settings = &training->settings;
    int V = tokenizer_vocab_size(tokenizer);
    if (settings->model.V && settings->model.V != V)
        return error_set(error,
                         "%.700s: expected a vocabulary of %d tokens for this model, found %d; give its --tokenizer",
                         path, settings->model.V, V);
    settings->model.V = V;
    training->end_of_text = (int)tokenizer_end_of_text(tokenizer);
    training->token_bytes = memory_allocate((size_t)V, sizeof(int), "the tokens' lengths");
    for (int id = 0; id < V; id++) {
        size_t bytes;
        tokenizer_token(tokenizer, (uint32_t)id, &bytes);
        training->token_bytes[id] = (int)bytes;
    }
    if (parallel_rank() != 0) return 0;
    training->vocabulary_files = TOKENIZER_FILES;
    return tokenizer_make_files(training->vocabulary, tokenizer, error);
}

// Reads the vocabulary. Unless --tokenizer names one, it is that of the checkpoint to start from (`start`, or NULL),
// which its model was trained with.
static int load_vocabulary(Training *training, const Checkpoint *start, Error *error) {
    const char *path = training->settings.tokenizer;
    int is_chosen = options_find(&training->options, "tokenizer")->given;
    char *own = start && !is_chosen ? checkpoint_tokenizer(start) : NULL;
    if (own) path = own;
    Tokenizer *tokenizer = NULL;
    int failed = path && (tokenizer_load(&tokenizer, path, training->settings.model.V, error) ||
                          use_vocabulary(training, tokenizer, path, error));
    training->evaluation.begins = 1; // as every document did
    if (!failed && training->settings.eval)
        failed = evaluation_add(&training->evaluation, training->settings.eval, tokenizer, error);
    free(own);
    if (!failed && training->settings.sample_every > 0)
        training->tokenizer = tokenizer;
    else
        tokenizer_free(tokenizer);
    if (!failed && !tokenizer && training->settings.sample_prompt)
        return error_set(error, "option --sample-prompt: a text needs a vocabulary; give --tokenizer FILE");
    return failed ? -1 : 0;
}

static int open_training_data(Training *training, Error *error) {
    const Settings *settings = &training->settings;
    DataLoaderConfig config = {.pattern = settings->train,
                               .T = settings->T,
                               .vocab = settings->model.V,
                               .shuffle = settings->shuffle,
                               .documents = settings->documents,
                               .seed = random_key((uint64_t)settings->seed, "data order", 0),
                               .least_rows = 1};
    return dataloader_open(&training->train, &config, error);
}

static int open_validation_data(Training *training, Error *error) {
    const Settings *settings = &training->settings;
    DataLoaderConfig config = {.pattern = settings->val,
                               .T = settings->T,
                               .vocab = settings->model.V,
                               .whole = 1,
                               .documents = settings->documents,
                               .limit = settings->val_tokens};
    return dataloader_open(&training->val, &config, error);
}

// What a run needs of data depends on whether it trains at all.
static int check_data_options(const Settings *settings, Error *error) {
    if (settings->steps == 0 && settings->seconds == 0 && !settings->val && !settings->train && !settings->eval)
        return error_set(error, "option --steps: 0 steps only validate, but there is no validation data: give --val "
                                "SHARDS");
    if ((settings->steps > 0 || settings->seconds > 0) && !settings->train)
        return error_set(error, "no training data: give --train SHARDS (make quickstart makes some; --help lists all "
                                "options)");
    return 0;
}

static int open_data(Training *training, Error *error) {
    const Settings *settings = &training->settings;
    if (check_data_options(settings, error)) return -1;
    if (settings->train && open_training_data(training, error)) return -1;
    if (settings->val && open_validation_data(training, error)) return -1;
    int shared = training->train && training->val ? dataloader_shared_shards(training->train, training->val) : 0;
    if (shared) warn("%d of the validation shards are training shards too; the validation loss will flatter", shared);
    return 0;
}

// ---- where the weights come from: opened here, read by training_load when the model is there

static int open_fresh(Training *training, Error *error) {
    training->start = START_FRESH;
    return load_vocabulary(training, NULL, error) ||
           settings_finish(&training->settings, &training->options, NULL, error);
}

// What the options say of the model's sizes must agree with the file that is started from.
static int take_sizes(Training *training, const GPT2Config *config, Error *error) {
    Settings *settings = &training->settings;
    settings_apply_given_preset(settings, &training->options);
    if (gpt2_config_agrees(&settings->model, config, settings->init, error)) return -1;
    if (options_find(&training->options, "positions")->given && settings->model.positions != config->positions)
        return error_set(error, "%.700s: expected other positions as asked for, found %s; leave --positions out",
                         settings->init, config->positions ? "none" : "learned ones");
    settings->model = *config;
    return 0;
}

// Whether the file has what the model wants, before anything large is allocated for it.
static int check_checkpoint(const Training *training, int which, Error *error) {
    const Settings *settings = &training->settings;
    return model_check_checkpoint(&settings->model, &settings->stack, &training->checkpoint, which, error);
}

// An attention that is taken over from a checkpoint is what it is there.
static int refuse_attention_options(const Options *options, const char *path, Error *error) {
    for (int i = 0; i < options->count; i++) {
        const Option *option = &options->items[i];
        if (option->given && attention_is_option(option))
            return error_set(error, "option --%s: the attention is that of %.700s; leave it out, or give --attention",
                             option->name, path);
    }
    return 0;
}

// Weights of a Hugging Face directory or of one of our checkpoints; its attention is taken over unless another is asked
// for.
static int open_checkpoint(Training *training, Error *error) {
    Settings *settings = &training->settings;
    GPT2Config config;
    training->start = START_CHECKPOINT;
    if (checkpoint_open_newest(&training->checkpoint, settings->init, CHECKPOINT_WEIGHTS, error)) return -1;
    const json_t *saved = gpt2_config_attention(training->checkpoint.config);
    if (options_find(&training->options, "attention")->given) saved = NULL;
    if (saved && refuse_attention_options(&training->options, settings->init, error)) return -1;
    training->parts = MODEL_WEIGHTS | (saved ? MODEL_ATTENTION : 0);
    if (gpt2_config_from_json(&config, training->checkpoint.config, settings->init, error) ||
        take_sizes(training, &config, error) || load_vocabulary(training, &training->checkpoint, error) ||
        settings_finish(settings, &training->options, saved, error))
        return -1;
    char name[512]; // what --attention would have said, but for options
    if (saved) settings->attention = memory_copy_string(attention_stack_name(&settings->stack, name, sizeof name));
    return check_checkpoint(training, training->parts, error);
}

static int open_llmc(Training *training, Error *error) {
    Settings *settings = &training->settings;
    training->start = START_LLMC;
    if (llmc_model_open(&training->llmc, settings->init, error)) return -1;
    return take_sizes(training, &training->llmc.config, error) || load_vocabulary(training, NULL, error) ||
           settings_finish(settings, &training->options, NULL, error);
}

// As many threads as before, for the same bits; but another number of ranks has other cores for each.
static void use_threads(Training *training, const json_t *state) {
    const json_t *saved = json_object_get(state, "ranks");
    int ranks = saved ? (int)json_integer_value(saved) : 1;
    if (ranks != parallel_ranks() && !options_find(&training->options, "threads")->given)
        training->settings.threads = parallel_threads();
    threads_use(training->settings.threads);
}

static int open_run(Training *training, Error *error) {
    Settings *settings = &training->settings;
    Checkpoint *checkpoint = &training->checkpoint;
    training->start = START_RUN;
    if (checkpoint_open_newest(checkpoint, settings->resume, CHECKPOINT_RUN, error)) return -1;
    if (!checkpoint->state || !checkpoint->has_optimizer)
        return error_set(error,
                         "%.700s: expected a checkpoint with optimizer and state, found weights alone; use --init",
                         checkpoint->path);
    const json_t *attention = gpt2_config_attention(checkpoint->config);
    json_t *softmax = json_made(json_pack("{s:s}", "name", "softmax"), "an attention");
    int is_timed = options_find(&training->options, "seconds")->given;
    const char *optimizer =
        json_string_value(json_object_get(json_object_get(checkpoint->state, "options"), "optimizer"));
    int moments = MODEL_MOMENTS | (optimizer && !strcmp(optimizer, "muon") ? MODEL_BY_MUON : 0);
    int failed = settings_resume(&training->options, json_object_get(checkpoint->state, "options"),
                                 attention ? attention : softmax, settings->force, error) ||
                 load_vocabulary(training, checkpoint, error) ||
                 settings_finish(settings, &training->options, attention ? attention : softmax, error) ||
                 check_checkpoint(training, MODEL_WEIGHTS | MODEL_ATTENTION | moments, error);
    if (!is_timed) settings->seconds = 0; // the number of steps was settled when the run began
    use_threads(training, checkpoint->state);
    json_decref(softmax);
    return failed ? -1 : 0;
}

// ---- the run directory

// --resume: the run goes on in its own directory, or in a new one.
static int choose_resumed_directory(Training *training, Error *error) {
    Settings *settings = &training->settings;
    if (!file_is_directory(settings->resume))
        return error_set(error, "%.700s: expected a run to resume, found no such directory", settings->resume);
    char *own = run_of_checkpoint(settings->resume);
    int elsewhere = options_find(&training->options, "out")->given && !run_is_same(own, settings->out);
    if (!elsewhere)
        settings->out = own;
    else
        free(own);
    if (elsewhere && !run_is_empty(settings->out))
        return error_set(error,
                         "%.400s: expected an empty directory, or none, to continue %.400s in; found files of another "
                         "run: leave --out away or choose another",
                         settings->out, settings->resume);
    return 0;
}

static int refuse_existing_run(const char *directory, Error *error) {
    int64_t *steps;
    int existing = checkpoint_list(&steps, directory);
    free(steps);
    if (!existing) return 0;
    return error_set(error, "%.700s: a run is there already; --resume it, choose another --out, or remove it",
                     directory);
}

static int open_directory(Training *training, Error *error) {
    const Settings *settings = &training->settings;
    training->run = (Run){.lock = -1, .metrics = -1};
    if (parallel_rank() == 0 && run_open(&training->run, settings->out, error)) return -1;
    training->run.quiet = settings->quiet;
    training->run.terminal &= parallel_ranks() == 1; // launchers pretend one
    return parallel_rank() == 0 && !settings->resume ? refuse_existing_run(settings->out, error) : 0;
}

// The end-of-text must be known for certain: rows that are cut elsewhere would train another model in silence.
static int check_document_mask(const Training *training, Error *error) {
    int V = training->settings.model.V, is_known = training->token_bytes || V == GPT2_VOCABULARY;
    if (!training->settings.document_mask || is_known) return 0;
    return error_set(error,
                     "option --document-mask: which of the %d tokens is end-of-text is not known without a vocabulary; "
                     "give --tokenizer FILE",
                     V);
}

static int open_start(Training *training, Error *error) {
    const Settings *settings = &training->settings;
    if (settings->resume && settings->init) return error_set(error, "options --resume and --init exclude each other");
    if (settings->resume && choose_resumed_directory(training, error)) return -1;
    if (!settings->resume && check_data_options(settings, error)) return -1;
    if (open_directory(training, error)) return -1;
    int failed = settings->resume                ? open_run(training, error)
                 : !settings->init               ? open_fresh(training, error)
                 : llmc_model_is(settings->init) ? open_llmc(training, error)
                                                 : open_checkpoint(training, error);
    return failed || check_document_mask(training, error) || open_data(training, error) ? -1 : 0;
}

// ---- what all ranks must agree on

static int compare_options(const Training *training, Error *error) {
    json_t *options = options_to_json(&training->options);
    json_object_del(options, "threads");
    json_object_del(options, "rank");
    int status = parallel_compare(options, "option --", error);
    json_decref(options);
    return status;
}

static uint64_t hash_tensors(const ModelTensors *model) {
    uint64_t hash = 0;
    for (int i = 0; i < model->count; i++)
        hash = XXH3_64bits_withSeed(model->parameters[i].value, model->parameters[i].count * sizeof(real), hash);
    for (int l = 0; l < model->config.L; l++) {
        const StackEntry *entry = attention_stack_layer(&model->stack, l);
        size_t count = attention_constant_count(entry->attention, &entry->config);
        if (count) hash = XXH3_64bits_withSeed(model->constants[l], count * sizeof(real), hash);
    }
    return hash;
}

static json_int_t fingerprint(const DataLoader *loader) {
    return (json_int_t)(loader ? dataloader_fingerprint(loader) : 0);
}

// All ranks must begin with the same weights and constants, at the same place in the same data.
static int compare_starts(const Training *training, const ModelTensors *model, Error *error) {
    if (parallel_ranks() == 1) return 0;
    json_t *start =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "step", (json_int_t)training->step, "position in the data",
                  (json_int_t)(training->train ? dataloader_position(training->train) : 0),
                  "training data's fingerprint", fingerprint(training->train), "validation data's fingerprint",
                  fingerprint(training->val), "weights' hash", (json_int_t)hash_tensors(model));
    int status = parallel_compare(json_made(start, "the start"), "the ", error);
    json_decref(start);
    return status;
}

// ---- options

static void list_attentions(void) {
    for (int i = 0; attention_registry[i]; i++)
        printf("%-14s %s\n", attention_registry[i]->name, attention_registry[i]->summary);
}

// --help and --attention list end the program on all ranks, or on none.
static void answer_questions(Training *training, int argc, char **argv) {
    Error error;
    HelpFormat format = options_ask_for_help(argc, argv);
    double asking = format != HELP_NONE;
    parallel_sum(&asking, 1);
    if (asking > 0 && asking < parallel_ranks()) {
        error_set(&error, "option --help: given to %.0f of %d ranks; ask without the others", asking, parallel_ranks());
        training_stop_together_if(-1, training, &error);
    }
    if (asking == 0) return;
    options_help(&training->options, format, stdout);
    parallel_end();
    exit(0);
}

static void parse_options(Training *training, int argc, char **argv) {
    Error error;
    training_stop_together_if(llmc_command_refuse(argc, argv, &error), training, &error);
    answer_questions(training, argc, argv);
    training_stop_together_if(options_parse(&training->options, argc, argv, NULL, 0, NULL, &error), training, &error);
    training_stop_together_if(compare_options(training, &error), training, &error);
    if (strcmp(training->settings.attention, "list")) return;
    list_attentions();
    parallel_end();
    exit(0);
}

static void warn_of_warmup(const Settings *settings) {
    if (settings->seconds == 0 && settings->steps > 0 && settings->schedule.warmup > settings->steps)
        warn("the warm-up of %lld steps is longer than the run of %lld: the learning rate never reaches --lr; lower "
             "--warmup or raise --steps",
             (long long)settings->schedule.warmup, (long long)settings->steps);
}

// The rows that a rank has in a step at most.
static int largest_share(const Settings *settings) {
    return (settings->batch + parallel_ranks() - 1) / parallel_ranks();
}

static void set_rows_at_once(Training *training, int rows) {
    int share = largest_share(&training->settings);
    training->rows_at_once = rows < share ? rows : share;
    attention_stack_set_batch(&training->settings.stack, training->rows_at_once, training->settings.T);
}

void training_open(Training *training, int argc, char **argv) {
    Error error;
    *training = (Training){.begun = clock_seconds(),
                           .settings = settings_default(),
                           .rate_factor = 1,
                           .saved = -1,
                           .validated = -1,
                           .evaluated = -1,
                           .sampled = -1};
    error_set_program(argv[0]);
    parallel_start(argc, argv);
    Settings *settings = &training->settings;
    settings_options(&training->options, settings);
    parse_options(training, argc, argv);
    parallel_set_timeout(settings->rank_timeout);
    if (!settings->threads && parallel_ranks() > 1) settings->threads = parallel_threads();
    settings->threads = threads_use(settings->threads);
    run_catch_signals();
    training_stop_together_if(open_start(training, &error), training, &error);
    if (!training->token_bytes) training->end_of_text = settings->model.V - 1;
    set_rows_at_once(training, settings->micro_batch);
    spikes_create(&training->spikes, settings->spike, settings->spike_window);
    warn_of_warmup(settings);
}

// ---- memory

int training_memory(const Settings *settings) {
    int trains = parallel_ranks() > 1 && settings->zero ? TRAINS_SHARING_MOMENTS : TRAINS;
    return trains | (settings->optimizer == OPTIMIZER_MUON ? BY_MUON : 0);
}

typedef uint64_t MemoryPlan(const Settings *settings, char *text, size_t size);

// More rows at once would make a step hardly faster.
enum { TOKENS_AT_ONCE_MAX = 1 << 16 };

void training_choose_micro_batch(Training *training, uint64_t available, MemoryPlan *plan) {
    Settings *settings = &training->settings;
    int share = largest_share(settings), most = TOKENS_AT_ONCE_MAX / settings->T;
    int parts = most > 1 ? (share + most - 1) / most : share;
    double too_large = 1; // ranks that it is too large for
    if (!settings->chooses_micro_batch) return;
    for (; too_large > 0; parts *= 2) {
        settings->micro_batch = (share + parts - 1) / parts;
        set_rows_at_once(training, settings->micro_batch);
        too_large = settings->micro_batch > 1 && plan(settings, NULL, 0) > available;
        parallel_sum(&too_large, 1);
    }
}

// Leaves the model as it is: other levels of --recompute, then fewer rows at once.
static int find_smaller_batch(Settings *settings, uint64_t available, MemoryPlan *plan) {
    for (int rows = attention_stack_sizes(&settings->stack)->B; rows > 0; rows /= 2) {
        attention_stack_set_batch(&settings->stack, rows, settings->T);
        for (settings->recompute = 0; settings->recompute < RECOMPUTE_LEVELS; settings->recompute++)
            if (plan(settings, NULL, 0) <= available) return 1;
    }
    return 0;
}

// The largest smaller model that fits, with one row at once and everything computed again.
static const char *find_smaller_model(Settings settings, uint64_t available, MemoryPlan *plan) {
    settings.recompute = RECOMPUTE_BLOCKS;
    attention_stack_set_batch(&settings.stack, 1, settings.T);
    for (int preset = settings.preset - 1; preset >= 0; preset--) {
        settings_use_preset(&settings, preset);
        if (plan(&settings, NULL, 0) <= available) return settings_preset_name(preset);
    }
    return NULL;
}

void training_check_memory(const Training *training, uint64_t available, MemoryPlan *plan) {
    char text[400], fits[200];
    Settings settings = training->settings;
    uint64_t bytes = plan(&settings, text, sizeof text);
    if (bytes <= available) return;
    if (find_smaller_batch(&settings, available, plan)) {
        static const char *const levels[] = {"none", "cheap", "blocks"};
        snprintf(fits, sizeof fits, "--micro-batch %d --recompute %s would fit",
                 attention_stack_sizes(&settings.stack)->B, levels[settings.recompute]);
    } else {
        const char *model =
            training->start == START_FRESH ? find_smaller_model(training->settings, available, plan) : NULL;
        snprintf(fits, sizeof fits, "%s%s%s", model ? "--model " : "no setting of --micro-batch and --recompute fits",
                 model ? model : "", model ? " --micro-batch 1 --recompute blocks would fit" : "");
    }
    die("this run needs %.1f GB of memory (%s), and there are %.1f GB; %s", (double)bytes / 1e9, text,
        (double)available / 1e9, fits);
}

// ---- the weights

int training_read_state(Training *training, const json_t *state, const char *path, Error *error) {
    RunState before;
    if (run_state_from_json(&before, state, path, error)) return -1;
    training->step = before.step, training->tokens = before.tokens, training->elapsed_before = before.seconds;
    training->rate_factor = before.rate_factor, training->rollbacks = before.rollbacks;
    if (spikes_from_json(&training->spikes, json_object_get(state, "spikes"), error)) return error_prefix(error, path);
    if (!training->train) return 0; // only to validate
    return dataloader_from_json(training->train, json_object_get(state, "loader"), training->settings.force, error);
}

static int read_weights(Training *training, const ModelTensors *model, Error *error) {
    const Checkpoint *checkpoint = &training->checkpoint;
    switch (training->start) {
    case START_FRESH:
        return 0;
    case START_CHECKPOINT:
        return model_read_checkpoint(model, checkpoint, training->parts, error);
    case START_LLMC:
        return model_read_llmc(model, &training->llmc, error);
    case START_RUN:
        return model_read_checkpoint(model, checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION, error) ||
               model_read_optimizer(model, checkpoint, error) ||
               training_read_state(training, checkpoint->state, checkpoint->path, error);
    }
    return -1;
}

void training_load(Training *training, const ModelTensors *model) {
    Error error;
    const Settings *settings = &training->settings;
    size_t N = (size_t)training->rows_at_once * (size_t)settings->T;
    training->inputs = memory_allocate(N, sizeof(int), "the inputs");
    training->targets = memory_allocate(N, sizeof(int), "the targets");
    if (settings->document_mask) training->positions = memory_allocate(N, sizeof(int), "the positions");
    if (training->evaluation.count)
        training_stop_together_if(evaluation_prepare(&training->evaluation, settings->model.V, training->rows_at_once,
                                                     settings->T, &error),
                                  training, &error);
    if (training->start != START_RUN) // also the constants that a file may lack
        model_initialize(model, (uint64_t)settings->seed, settings->init_std);
    training_stop_together_if(read_weights(training, model, &error), training, &error);
    if (training->start == START_CHECKPOINT || training->start == START_RUN) checkpoint_close(&training->checkpoint);
    if (training->start == START_LLMC) llmc_model_close(&training->llmc);
    training_stop_together_if(compare_starts(training, model, &error), training, &error);
    training->first_step = training->step;
    if (training->start == START_RUN) training->saved = training->step;
}

// ---- what the user sees first

static void print_start(const Training *training, const json_t *described, const Machine *machine) {
    const Settings *settings = &training->settings;
    char name[256];
    json_t *attention = attention_stack_to_json(&settings->stack);
    settings_print(settings, &training->options, attention, stdout);
    json_decref(attention);
    printf("%-14s%llu, %.1f MFLOP per token and step\n", "parameters",
           (unsigned long long)gpt2_count_parameters(&settings->model, &settings->stack),
           training->flops_per_token / 1e6);
    printf("%-14s%s, in all %.1f MB\n", machine->device ? "GPU memory" : "memory", machine->memory,
           (double)machine->memory_bytes / 1e6);
    if (machine->notes) printf("%-14s%s\n", attention_stack_name(&settings->stack, name, sizeof name), machine->notes);
    if (machine->gelu) printf("%-14s%s\n", "GELU", machine->gelu);
    if (training->train)
        printf("%-14s%lld tokens in %d shards, %lld rows of %d\n", "training data",
               (long long)dataloader_tokens(training->train), dataloader_shards(training->train),
               (long long)dataloader_rows(training->train), settings->T);
    if (training->val)
        printf("%-14s%lld tokens, the same every time\n", "validation", (long long)dataloader_targets(training->val));
    printf("%-14s%s, %d threads, %s", "machine", json_string_value(json_object_get(described, "processor")),
           omp_get_max_threads(), json_string_value(json_object_get(described, "blas")));
    if (parallel_ranks() > 1) printf(", %d ranks", parallel_ranks());
    if (machine->device) printf(", %s", machine->device);
    printf(", %.0f GFLOP/s\n", training->machine_gflops);
    if (training->step) printf("%-14sat step %lld\n", "continues", (long long)training->step);
    printf("\n");
    fflush(stdout);
}

static json_t *describe_machine(const Training *training, const char *device) {
    json_t *machine = run_machine();
    json_put(machine, "ranks", json_integer(parallel_ranks()));
    json_put(machine, "gflops", json_number(training->machine_gflops));
    json_put(machine, "startup_seconds", json_number(clock_seconds() - training->begun));
    if (device) json_put(machine, "device", json_readable(device));
    return machine;
}

static int open_metrics(Training *training, json_t *machine, Error *error) {
    const Settings *settings = &training->settings;
    json_t *attention = attention_stack_to_json(&settings->stack);
    json_t *line = json_pack("{s:s, s:o, s:o, s:o, s:I, s:O}", "type", "configuration", "options",
                             settings_to_json(&training->options), "attention", attention, "model",
                             gpt2_config_to_json(&settings->model, attention), "parameters",
                             (json_int_t)gpt2_count_parameters(&settings->model, &settings->stack), "machine", machine);
    json_made(line, "the configuration");
    int result = run_open_metrics(&training->run, line, training->step, error) ||
                 (settings->llmc_log && run_open_llmc_log(&training->run, training->step, error)) ||
                 (settings->tensorboard && run_open_events(&training->run, line, training->step, error));
    json_decref(line);
    return result;
}

// A run that goes on from an older checkpoint leaves what was saved after it: that is another branch now.
static int leave_branch(Training *training, Error *error) {
    char where[800];
    if (training->start != START_RUN) return 0;
    if (run_set_aside(training->run.directory, training->step, where, sizeof where, error)) return -1;
    if (where[0])
        warn("the run goes on from step %lld; what it had saved after that is now in %s", (long long)training->step,
             where);
    return 0;
}

static int begin_run(Training *training, const Machine *machine, Error *error) {
    if (parallel_rank() > 0) return 0;
    json_t *described = describe_machine(training, machine->device);
    int failed = run_create(&training->run, error) ||
                 (training->start != START_RUN && refuse_existing_run(training->run.directory, error)) ||
                 leave_branch(training, error);
    if (!failed && !training->settings.quiet) print_start(training, described, machine);
    failed = failed || open_metrics(training, described, error);
    json_decref(described);
    return failed ? -1 : 0;
}

void training_begin(Training *training, double flops_per_token, const Machine *machine) {
    Error error;
    training->flops_per_token = flops_per_token;
    training->machine_gflops = machine->gflops;
    parallel_sum(&training->machine_gflops, 1);
    training_stop_together_if(begin_run(training, machine, &error), training, &error);
    training->start_time = clock_seconds();
}
