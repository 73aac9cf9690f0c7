#include "settings.h"
#include "core/model/strict.h"
#include "core/ranks/rendezvous.h"
#include "spikes.h"

#include <limits.h>
#include <string.h>

// ---- presets

static const struct {
    const char *name;
    int L, NH, C, context;
} presets[] = {
    {"tiny", 4, 4, 128, 256},           {"small", 6, 8, 256, 256},
    {"gpt2", 12, 12, 768, 1024},        {"gpt2-medium", 24, 16, 1024, 1024},
    {"gpt2-large", 36, 20, 1280, 1024}, {"gpt2-xl", 48, 25, 1600, 1024},
};
#define PRESET_CHOICES "tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl"
enum { PRESET_GPT2 = 2, TOKENS_AT_ONCE = 4096 };

Settings settings_default(void) {
    return (Settings){
        .out = "runs/latest",
        .shuffle = 1,
        .preset = PRESET_GPT2,
        .attention = "softmax",
        .init_std = 0.02f,
        .batch = 8,
        .steps = 1000,
        .schedule = {.kind = SCHEDULE_COSINE, .peak = 6e-4f, .final_share = 0.1f, .warmup = 100, .decay_share = 0.2f},
        .muon_lr = 0.02f,
        .muon_momentum = 0.95f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip = 1.0f,
        .seed = 1337,
        .nan_limit = 10,
        .spike_window = 128,
        .val_every = 100,
        .val_tokens = 32768,
        .sample_tokens = 64,
        .save_every = 500,
        .save_wait = 300,
        .rank_timeout = RANK_TIMEOUT,
        .keep_last = 2,
    };
}

// ---- the table

#define SETTING(group, name, alias, type, field, least, most, choices, help)                                           \
    { group, name, alias, type, &settings->field, least, most, choices, help, 0, "" }

// clang-format off
// One option per line.
static void add_data_options(Options *options, Settings *settings) {
    const Option items[] = {
        SETTING("data", "train", 'i', OPTION_STRING, train, 0, 0, "SHARDS", "training shards: a file, a directory or a 'glob'"),
        SETTING("data", "val", 'j', OPTION_STRING, val, 0, 0, "SHARDS", "validation shards"),
        SETTING("data", "eval", 0, OPTION_STRING, eval, 0, 0, "SETS", "multiple-choice sets such as HellaSwag (docs/evaluation.md), separated by commas"),
        SETTING("data", "tokenizer", 0, OPTION_STRING, tokenizer, 0, 0, "FILE", "vocabulary, for bits per byte; saved with checkpoints; default: that of --init"),
        SETTING("data", "shuffle", 0, OPTION_FLAG, shuffle, 0, 1, NULL, "rows in random order; --no-shuffle: in file order"),
        SETTING("data", "documents", 0, OPTION_FLAG, documents, 0, 1, NULL, "rows begin at documents (end-of-text is the last token)"),
        SETTING("data", "document-mask", 0, OPTION_FLAG, document_mask, 0, 1, NULL, "attention and positions begin anew at every end-of-text within a row"),
        SETTING("run", "out", 'o', OPTION_STRING, out, 0, 0, "RUN", "run directory: metrics and checkpoints"),
        SETTING("run", "resume", 0, OPTION_STRING, resume, 0, 0, "RUN", "continue a run, or a checkpoint of it, exactly"),
        SETTING("run", "init", 0, OPTION_STRING, init, 0, 0, "MODEL", "start from weights: checkpoint, Hugging Face directory, llm.c file"),
        SETTING("run", "force", 0, OPTION_FLAG, force, 0, 1, NULL, "resume although batch, data, attention or seed changed"),
        SETTING("run", "seed", 0, OPTION_LONG, seed, 0, 9e15, NULL, "of everything random: weights, data order, dropout, features"),
        SETTING("run", "threads", 0, OPTION_INT, threads, 0, 4096, NULL, "CPU threads; 0: all cores"),
        SETTING("run", "zero", 0, OPTION_INT, zero, 0, 1, NULL, "many processes: 1 spreads AdamW's moments over them, on GPUs the master weights too (ZeRO stage 1)"),
        SETTING("run", "ranks", 0, OPTION_INT, ranks, 0, RANKS_MAX, NULL, "many processes without MPI: how many; needs --rank and --rendezvous"),
        SETTING("run", "rank", 0, OPTION_INT, rank, 0, RANKS_MAX - 1, NULL, "which of them this is, from 0"),
        SETTING("run", "rendezvous", 0, OPTION_STRING, rendezvous, 0, 0, "PLACE", "where they meet: tcp:HOST:PORT of rank 0, or file:PATH that all see"),
        SETTING("run", "rank-timeout", 0, OPTION_FLOAT, rank_timeout, 0, RANK_TIMEOUT_MAX, NULL, "seconds that a rank waits for the others before all end; 0: for ever; a save takes part of them"),
        SETTING("run", "on-nan", 0, OPTION_CHOICE, on_nan, 0, 0, "stop|skip|rollback", "when loss or gradient is not finite: save and stop; go on without the step; back to the last checkpoint, at half the rate"),
        SETTING("run", "nan-limit", 0, OPTION_INT, nan_limit, 1, 1e6, NULL, "skipped steps in a row, or rollbacks in all, before the run gives up"),
        SETTING("run", "spike", 0, OPTION_FLOAT, spike, 0, 1e6, NULL, "a loss or norm so many standard deviations above the last ones' mean counts as not finite; 0: none does"),
        SETTING("run", "spike-window", 0, OPTION_INT, spike_window, SPIKE_LEAST, SPIKE_WINDOW_MAX, NULL, "steps that these are taken over"),
    };
    options_add(options, items, sizeof items / sizeof *items);
    strict_add_option(options, "run");
}

static void add_model_options(Options *options, Settings *settings) {
    const Option items[] = {
        SETTING("model", "model", 'm', OPTION_CHOICE, preset, 0, 0, PRESET_CHOICES, "sizes to start from"),
        SETTING("model", "layers", 'L', OPTION_INT, model.L, 1, GPT2_LAYERS_MAX, NULL, "transformer blocks; default: the preset's"),
        SETTING("model", "heads", 0, OPTION_INT, model.NH, 1, GPT2_HEADS_MAX, NULL, "attention heads"),
        SETTING("model", "width", 0, OPTION_INT, model.C, 1, GPT2_WIDTH_MAX, NULL, "channels"),
        SETTING("model", "context", 0, OPTION_INT, model.max_T, 1, GPT2_CONTEXT_MAX, NULL, "longest sequence (position embeddings)"),
        SETTING("model", "vocab", 0, OPTION_INT, model.V, 2, GPT2_VOCABULARY_MAX, NULL, "vocabulary size; default: the tokenizer's, or 50257"),
        SETTING("model", "dropout", 0, OPTION_FLOAT, dropout, 0, 0.95, NULL, "on the embeddings and each attention output"),
        SETTING("model", "init-std", 0, OPTION_FLOAT, init_std, 1e-6, 10, NULL, "standard deviation of the initial weights; small models like more"),
        SETTING("model", "positions", 0, OPTION_CHOICE, model.positions, 0, 0, POSITIONS_CHOICES, "a learned vector for each position, or none: then text may be longer than the context"),
        SETTING("model", "attention", 'a', OPTION_STRING, attention, 0, 0, "NAME", "the attention, or a list over the layers: slay*3,softmax:window=64; ./train_gpt2 --attention list"),
    };
    options_add(options, items, sizeof items / sizeof *items);
    attention_add_options(options, &settings->attention_config);
}

static void add_optimisation_options(Options *options, Settings *settings) {
    const Option items[] = {
        SETTING("batch", "batch", 'b', OPTION_INT, batch, 1, 1 << 20, NULL, "rows (sequences) per step"),
        SETTING("batch", "sequence", 't', OPTION_INT, T, 1, GPT2_CONTEXT_MAX, NULL, "tokens per row; default: the context"),
        SETTING("batch", "micro-batch", 0, OPTION_INT, micro_batch, 1, 1 << 20, NULL, "rows at once; default: as many as make 4096 tokens, on a GPU as many as fit"),
        SETTING("batch", "recompute", 0, OPTION_CHOICE, recompute, 0, 0, "none|cheap|blocks", "activations made again in backward: LayerNorm and GELU, or all; saves memory"),
        SETTING("batch", "graphs", 0, OPTION_FLAG, graphs, 0, 1, NULL, "on a GPU: launch a micro-batch as one CUDA graph"),
        SETTING("batch", "fuse-gelu", 0, OPTION_CHOICE, fuse_gelu, 0, 0, "auto|yes|no", "on a GPU: GELU within the matrix products; auto: from sm_90 on, except in fp32"),
        SETTING("batch", "batch-start", 0, OPTION_INT, batch_start, 0, 1 << 20, NULL, "rows per step at the start of a ramp; 0: no ramp"),
        SETTING("batch", "batch-ramp", 0, OPTION_LONG, batch_ramp, 0, 1e9, NULL, "steps of the ramp"),
        SETTING("optimisation", "steps", 'x', OPTION_LONG, steps, 0, 1e12, NULL, "steps in all; 0: only validate"),
        SETTING("optimisation", "seconds", 0, OPTION_FLOAT, seconds, 0, 1e9, NULL, "as many steps as fit, measured at the start; 0: --steps"),
        SETTING("optimisation", "optimizer", 0, OPTION_CHOICE, optimizer, 0, 0, "adamw|muon", "muon: the blocks' matrices by Muon, the rest by AdamW"),
        SETTING("optimisation", "muon-lr", 0, OPTION_FLOAT, muon_lr, 0, 100, NULL, "muon: peak learning rate of its matrices"),
        SETTING("optimisation", "muon-momentum", 0, OPTION_FLOAT, muon_momentum, 0, 0.999999, NULL, "muon: share of the momentum that is kept"),
        SETTING("optimisation", "lr", 'l', OPTION_FLOAT, schedule.peak, 0, 100, NULL, "peak learning rate"),
        SETTING("optimisation", "schedule", 0, OPTION_CHOICE, schedule.kind, 0, 0, SCHEDULE_CHOICES, "of the learning rate"),
        SETTING("optimisation", "warmup", 'u', OPTION_LONG, schedule.warmup, 0, 1e12, NULL, "steps of linear warm-up"),
        SETTING("optimisation", "final-lr", 0, OPTION_FLOAT, schedule.final_share, 0, 1, NULL, "share of the peak left at the end"),
        SETTING("optimisation", "wsd-decay", 0, OPTION_FLOAT, schedule.decay_share, 0, 1, NULL, "wsd: share of the steps spent in the decay"),
        SETTING("optimisation", "weight-decay", 'c', OPTION_FLOAT, weight_decay, 0, 100, NULL, "of matrices only"),
        SETTING("optimisation", "clip", 0, OPTION_FLOAT, clip, 0, 1e9, NULL, "largest global gradient norm; 0: no clipping"),
        SETTING("optimisation", "beta1", 0, OPTION_FLOAT, beta1, 0, 0.999999, NULL, "AdamW's first moment"),
        SETTING("optimisation", "beta2", 0, OPTION_FLOAT, beta2, 0, 0.999999, NULL, "AdamW's second moment"),
        SETTING("optimisation", "adam-eps", 0, OPTION_FLOAT, adam_eps, 0, 1, NULL, "AdamW's epsilon"),
        SETTING("reporting", "val-every", 'v', OPTION_LONG, val_every, 0, 1e12, NULL, "steps between validations; 0: only at the end"),
        SETTING("reporting", "val-tokens", 0, OPTION_LONG, val_tokens, 1, 1e15, NULL, "tokens of the fixed validation set, from its start"),
        SETTING("reporting", "eval-every", 0, OPTION_LONG, eval_every, 0, 1e12, NULL, "steps between evaluations of --eval; 0: only at the end"),
        SETTING("reporting", "sample-every", 0, OPTION_LONG, sample_every, 0, 1e12, NULL, "steps between samples of the model's text; 0: none"),
        SETTING("reporting", "sample-tokens", 0, OPTION_INT, sample_tokens, 1, GPT2_CONTEXT_MAX, NULL, "tokens of a sample, as far as --sequence goes"),
        SETTING("reporting", "sample-prompt", 0, OPTION_STRING, sample_prompt, 0, 0, "TEXT", "what samples begin with; default: nothing, a new document"),
        SETTING("reporting", "tensorboard", 0, OPTION_FLAG, tensorboard, 0, 1, NULL, "also write event files for TensorBoard into the run's directory"),
        SETTING("reporting", "llmc-log", 0, OPTION_FLAG, llmc_log, 0, 1, NULL, "also write main.log as llm.c does, for its notebooks"),
        SETTING("reporting", "save-every", 's', OPTION_LONG, save_every, 0, 1e12, NULL, "steps between checkpoints; 0: only at the end"),
        SETTING("reporting", "save-wait", 0, OPTION_INT, save_wait, 0, 1e6, NULL, "seconds that the last save waits for space before the run fails"),
        SETTING("reporting", "keep", 0, OPTION_INT, keep_last, 1, 1 << 20, NULL, "newest checkpoints to keep"),
        SETTING("reporting", "keep-every", 0, OPTION_LONG, keep_every, 0, 1e12, NULL, "keep those of every N-th step too; 0: none"),
        SETTING("reporting", "profile", 0, OPTION_FLAG, profile, 0, 1, NULL, "at the end, a table of where the time went"),
        SETTING("reporting", "quiet", 'q', OPTION_FLAG, quiet, 0, 1, NULL, "no start-up table, no step lines"),
    };
    options_add(options, items, sizeof items / sizeof *items);
}
// clang-format on

void settings_options(Options *options, Settings *settings) {
    options->usage = "usage: train_gpt2 --train SHARDS [options]\n"
                     "Trains a GPT-2 with a choice of attentions on token shards (see ./tokenize).";
    options->closing =
        "examples\n"
        "  ./train_gpt2 --train 'data/stories/*_train_*.bin' --val 'data/stories/*_val_*.bin' \\\n"
        "      --tokenizer data/stories/vocab.tiktoken --model tiny --out runs/tiny\n"
        "  ./train_gpt2 --resume runs/tiny --steps 2000\n"
        "  ./train_gpt2 --train 'data/fineweb/*_train_*.bin' --attention slay --batch 32 --micro-batch 4\n"
        "  ./train_gpt2 ... --attention 'slay*3,softmax:window=64' --decay learned --positions none\n"
        "Interrupted by SIGINT or SIGTERM a run finishes its step, saves and exits with 130 or 143.";
    add_data_options(options, settings);
    add_model_options(options, settings);
    add_optimisation_options(options, settings);
}

// ---- what follows from other settings

static void apply_preset(Settings *settings) {
    GPT2Config *model = &settings->model;
    if (!model->L) model->L = presets[settings->preset].L;
    if (!model->NH) model->NH = presets[settings->preset].NH;
    if (!model->C) model->C = presets[settings->preset].C;
    if (!model->max_T) model->max_T = presets[settings->preset].context;
}

void settings_apply_given_preset(Settings *settings, Options *options) {
    if (options_find(options, "model")->given) apply_preset(settings);
}

const char *settings_preset_name(int preset) {
    return presets[preset].name;
}

void settings_use_preset(Settings *settings, int preset) {
    settings->model = (GPT2Config){.V = settings->model.V, .positions = settings->model.positions};
    settings->preset = preset;
    apply_preset(settings);
    if (settings->T > settings->model.max_T) settings->T = settings->model.max_T;
    attention_stack_set_batch(&settings->stack, attention_stack_sizes(&settings->stack)->B, settings->T);
    attention_stack_set_model(&settings->stack, settings->model.C, settings->model.NH, settings->model.max_T);
}

// Whether the model has the sizes that its name stands for.
static int is_preset(const Settings *settings) {
    const GPT2Config *model = &settings->model;
    return model->L == presets[settings->preset].L && model->NH == presets[settings->preset].NH &&
           model->C == presets[settings->preset].C && model->max_T == presets[settings->preset].context;
}

static int finish_batch(Settings *settings, Error *error) {
    if (!settings->T) settings->T = settings->model.max_T;
    if (settings->T > settings->model.max_T)
        return error_set(error, "option --sequence: expected at most the context of %d, found %d; raise --context",
                         settings->model.max_T, settings->T);
    settings->chooses_micro_batch = !settings->micro_batch;
    if (settings->chooses_micro_batch) {
        settings->micro_batch = TOKENS_AT_ONCE / settings->T > 1 ? TOKENS_AT_ONCE / settings->T : 1;
        if (settings->micro_batch > settings->batch) settings->micro_batch = settings->batch;
    }
    if (settings->micro_batch > settings->batch)
        return error_set(error, "option --micro-batch: expected at most the batch of %d rows, found %d",
                         settings->batch, settings->micro_batch);
    if (settings->batch_start > settings->batch)
        return error_set(error, "option --batch-start: expected at most the batch of %d rows, found %d",
                         settings->batch, settings->batch_start);
    if ((int64_t)settings->micro_batch * settings->T > INT_MAX / 64)
        return error_set(error, "options --micro-batch and --sequence: %d x %d tokens at once are too many",
                         settings->micro_batch, settings->T);
    return 0;
}

// The stack as a checkpoint has it, or as the options say.
static int finish_attention(Settings *settings, Options *options, const json_t *saved, Error *error) {
    AttentionStack *stack = &settings->stack;
    AttentionConfig *config = &settings->attention_config;
    if (saved ? attention_stack_from_json(stack, config, saved, error)
              : attention_stack_configure(stack, settings->attention, config, options, error))
        return -1;
    if (stack->count == 1) *config = stack->entries[0].config;
    return attention_stack_check_layers(stack, settings->model.L, error);
}

int settings_finish(Settings *settings, Options *options, const json_t *saved_attention, Error *error) {
    apply_preset(settings);
    if (!settings->model.V) settings->model.V = GPT2_VOCABULARY;
    if (finish_batch(settings, error)) return -1;
    AttentionConfig *config = &settings->attention_config;
    config->B = settings->micro_batch;
    config->T = settings->T;
    config->C = settings->model.C;
    config->NH = settings->model.NH;
    config->max_T = settings->model.max_T;
    config->packed = settings->document_mask;
    config->seed = (uint64_t)settings->seed;
    settings->schedule.total = settings->steps;
    if (finish_attention(settings, options, saved_attention, error)) return -1;
    if (saved_attention && settings->stack.count == 1) settings->attention = settings->stack.entries[0].attention->name;
    return gpt2_config_check(&settings->model, "the model", error);
}

// ---- saved settings

json_t *settings_to_json(const Options *options) {
    static const char *const of_this_call[] = {"out",    "resume", "init", "force",      "quiet", "profile",
                                               "graphs", "ranks",  "rank", "rendezvous", "strict"};
    json_t *json = options_to_json(options);
    for (size_t i = 0; i < sizeof of_this_call / sizeof *of_this_call; i++) json_object_del(json, of_this_call[i]);
    for (int i = 0; i < options->count; i++)
        if (attention_is_option(&options->items[i])) json_object_del(json, options->items[i].name);
    return json;
}

// Options that would make it a different run. The attention's own are checked separately.
static const char *const fixed_options[] = {"batch", "sequence",  "micro-batch", "batch-start", "batch-ramp",
                                            "seed",  "layers",    "heads",       "width",       "context",
                                            "vocab", "attention", "positions",   "optimizer",   "document-mask"};

static int is_fixed(const Option *option) {
    for (size_t i = 0; i < sizeof fixed_options / sizeof *fixed_options; i++)
        if (!strcmp(option->name, fixed_options[i])) return 1;
    return 0;
}

// A JSON value as option_print_value would print it.
static void json_text(const json_t *value, char *text, size_t size) {
    if (json_is_string(value))
        snprintf(text, size, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, size, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%.9g", (double)(float)json_real_value(value));
    else
        snprintf(text, size, "%s", json_is_true(value) ? "yes" : "no");
}

static const json_t *saved_value(const Option *option, const json_t *saved, const json_t *saved_attention) {
    if (!attention_is_option(option)) return json_object_get(saved, option->name);
    char key[64]; // "scale-features" stands there as "scale_features"
    snprintf(key, sizeof key, "%s", option->name);
    for (char *c = key; *c; c++) *c = *c == '-' ? '_' : *c;
    return json_object_get(saved_attention, key);
}

static int same_value(const Option *option, const json_t *saved) {
    char here[1024], there[1024];
    option_print_value(option, here, sizeof here);
    json_text(saved, there, sizeof there);
    if (option->type == OPTION_FLOAT) return *(float *)option->value == (float)json_number_value(saved);
    return !strcmp(here, there);
}

int settings_resume(Options *options, const json_t *saved, const json_t *saved_attention, int force, Error *error) {
    for (int i = 0; i < options->count; i++) {
        Option *option = &options->items[i];
        const json_t *value = saved_value(option, saved, saved_attention);
        int is_optimizer = !strcmp(option->name, "optimizer");
        int is_newer = is_optimizer || !strcmp(option->name, "document-mask");
        if (is_newer && !value && *(int *)option->value == 0) continue; // saved before there was another choice
        if (!option->given || (!is_fixed(option) && !attention_is_option(option))) continue;
        if (value && same_value(option, value)) continue;
        char there[256] = "nothing of that name", here[256];
        if (value) json_text(value, there, sizeof there);
        option_print_value(option, here, sizeof here);
        // Another attention is another model, another optimiser has other moments: no force can load them.
        int is_final = attention_is_option(option) || is_optimizer;
        if (!force || is_final)
            return error_set(error, "option --%s: the run to resume has %s, found %s; leave the option out%s",
                             option->name, there, here, is_final ? "" : ", or add --force");
    }
    return options_from_json(options, saved, error);
}

void settings_print(const Settings *settings, const Options *options, const json_t *attention, FILE *out) {
    const char *group = "";
    int column = 0;
    for (int i = 0; i < options->count; i++) {
        const Option *option = &options->items[i];
        char value[1024], item[1200];
        if (attention_is_option(option) && !saved_value(option, NULL, attention)) continue;
        if (option->value == &settings->preset && !option->given && !is_preset(settings)) continue;
        if ((option->value == &settings->ranks || option->value == &settings->rank) && !settings->rendezvous) continue;
        option_print_value(option, value, sizeof value);
        if (!value[0]) continue;
        int width = snprintf(item, sizeof item, "%s %s", option->name, value);
        if (strcmp(group, option->group)) column = 0;
        if (column + width > 100) column = 0;
        if (column == 0) fprintf(out, "%s%-14s", i ? "\n" : "", strcmp(group, option->group) ? option->group : "");
        fprintf(out, "%s%s", column ? "  " : "", item);
        column += width + 2;
        group = option->group;
    }
    fprintf(out, "\n");
}
