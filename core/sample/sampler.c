#define _GNU_SOURCE
#include "sampler.h"
#include "core/base/file.h"
#include "line_editor.h"
#include "core/model/llmc_model.h"
#include "core/math/matvec.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"
#include "core/base/random.h"
#include "core/model/safetensors.h"
#include "core/base/threads.h"
#include "dataloader/dataloader.h"
#include "dataloader/tokenizer.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- drawing a token

static int heavier_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token - y->token; // ties by number, so that a seed gives the same text everywhere
}

// The k heaviest candidates to the front, in no order (Hoare's selection).
static void select_heaviest(Candidate *candidates, int count, int k) {
    int low = 0, high = count - 1;
    while (low < high) {
        Candidate pivot = candidates[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (heavier_first(&candidates[i], &pivot) < 0) i++;
            while (heavier_first(&candidates[j], &pivot) > 0) j--;
            if (i > j) break;
            Candidate swapped = candidates[i];
            candidates[i++] = candidates[j], candidates[j--] = swapped;
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
}

// Whether all are finite: x - x is 0, or NaN for what is not.
static int are_finite(const real *numbers, size_t count) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += numbers[i] - numbers[i];
    return sum == 0;
}

static int likeliest(const real *logits, int V) {
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

// A candidate's weight relative to the likeliest's; 0 where no number comes out, so that weights can always be ordered.
static float weight_of(real logit, real largest, float temperature) {
    float weight = (float)real_exp((logit - largest) / temperature);
    return weight > 0 ? weight : 0;
}

// The fewest heaviest candidates whose weights reach the share p of their sum; they come first, in order. A candidate
// lighter than (1 - p) / count of the sum can never be needed, so that only the few others have to be sorted.
static int keep_nucleus(Candidate *candidates, int count, float p) {
    double sum = 0, kept_sum = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    int heavy = 0, kept = 0;
    for (int i = 0; i < count; i++)
        if (candidates[i].weight >= (1 - p) / count * sum) candidates[heavy++] = candidates[i];
    qsort(candidates, (size_t)heavy, sizeof *candidates, heavier_first);
    while (kept < heavy && kept_sum < p * sum) kept_sum += candidates[kept++].weight;
    return kept > 0 ? kept : 1;
}

int sample_token(const real *logits, int V, const SamplerSettings *settings, double uniform, Candidate *candidates) {
    int best = likeliest(logits, V), count = V;
    if (!are_finite(logits, (size_t)V)) return -1;
    if (settings->temperature == 0) return best;
    for (int v = 0; v < V; v++)
        candidates[v] = (Candidate){weight_of(logits[v], logits[best], settings->temperature), v};
    if (settings->top_k > 0 && settings->top_k < V) select_heaviest(candidates, V, count = settings->top_k);
    if (settings->top_p < 1) count = keep_nucleus(candidates, count, settings->top_p);
    double sum = 0, threshold, running = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    threshold = uniform * sum;
    for (int i = 0; i < count; i++)
        if ((running += candidates[i].weight) > threshold) return candidates[i].token;
    return best;
}

// ---- text on the screen

// The bytes of the character that starts with `byte`; 1 for a byte that starts none.
static int character_bytes(unsigned char byte) {
    return byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
}

void stream_flush(TextStream *stream) {
    fwrite(stream->pending, 1, (size_t)stream->count, stream->out);
    stream->count = 0;
}

void stream_put(TextStream *stream, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int continues = ((unsigned char)bytes[i] & 0xC0) == 0x80;
        if (!continues) stream_flush(stream); // what is pending was not valid: as it is
        stream->pending[stream->count++] = bytes[i];
        if (stream->count >= character_bytes((unsigned char)stream->pending[0])) stream_flush(stream);
    }
    fflush(stream->out);
}

// ---- the program

typedef struct {
    SampleSettings settings;
    const SamplerBackend *backend;
    GPT2Config config;
    void *model;
    Tokenizer *tokenizer; // NULL when none is known: prompts and output are numbers
    int position;         // tokens that the model has seen so far
    Candidate *candidates;
    int *history, history_count; // the whole text so far as tokens; room for a prompt and the longest sample
    double prefill_seconds, decode_seconds;
    int64_t prefill_tokens, decode_tokens;
} Sampler;

static void sample_options(Options *options, Sampler *sampler) {
    SampleSettings *s = &sampler->settings;
    // clang-format off
    const Option items[] = {
        {"text", "prompt", 'p', OPTION_STRING, &s->prompt, 0, 0, "TEXT", "what the text starts with", 0, ""},
        {"text", "prompt-file", 'f', OPTION_STRING, &s->prompt_file, 0, 0, "FILE", "the same from a file; - is standard input", 0, ""},
        {"text", "prompt-ids", 0, OPTION_STRING, &s->prompt_ids, 0, 0, "IDS", "the same as token numbers: 15496,11,995", 0, ""},
        {"text", "tokens", 'n', OPTION_INT, &s->tokens, 0, 1 << 24, NULL, "most tokens per sample", 0, ""},
        {"text", "samples", 's', OPTION_INT, &s->samples, 1, 1 << 20, NULL, "texts from the same prompt", 0, ""},
        {"text", "begin", 0, OPTION_FLAG, &s->begin, 0, 1, NULL, "the prompt begins a document; --no-begin: in the middle of one", 0, ""},
        {"text", "stop", 0, OPTION_FLAG, &s->stop, 0, 1, NULL, "stop at end-of-text; --no-stop: go on behind it", 0, ""},
        {"text", "interactive", 'i', OPTION_FLAG, &s->interactive, 0, 1, NULL, "ask for prompts (as without a prompt at a terminal)", 0, ""},
        {"choice", "temperature", 't', OPTION_FLOAT, &s->sampler.temperature, 0, 100, NULL, "0: the likeliest token always", 0, ""},
        {"choice", "top-k", 'k', OPTION_INT, &s->sampler.top_k, 0, 1 << 24, NULL, "among the k likeliest; 0: all", 0, ""},
        {"choice", "top-p", 0, OPTION_FLOAT, &s->sampler.top_p, 1e-6, 1, NULL, "among the likeliest with this probability together", 0, ""},
        {"choice", "seed", 0, OPTION_LONG, &s->seed, 0, 9e15, NULL, "the same seed gives the same text", 0, ""},
        {"program", "tokenizer", 0, OPTION_STRING, &s->tokenizer_path, 0, 0, "FILE", "vocabulary; default: the checkpoint's, or data/gpt2.tiktoken", 0, ""},
        {"program", "threads", 0, OPTION_INT, &s->threads, 0, 4096, NULL, "CPU threads; 0: all cores", 0, ""},
        {"program", "stats", 0, OPTION_FLAG, &s->stats, 0, 1, NULL, "speed, on standard error", 0, ""},
        {"program", "logits", 0, OPTION_STRING, &s->logits_path, 0, 0, "FILE", "write the prompt's logits as safetensors and stop", 0, ""},
        {"program", "loss", 0, OPTION_STRING, &s->loss_shards, 0, 0, "SHARDS", "print the mean loss over token shards (--no-begin: rows begin at any token) and stop", 0, ""},
        {"program", "loss-tokens", 0, OPTION_LONG, &s->loss_tokens, 0, 1e15, NULL, "tokens of them, from their start; 0: all", 0, ""},
    };
    const Option weights = {"program", "weights", 0, OPTION_CHOICE, &s->weights, 0, 0, WEIGHT_KIND_CHOICES, "fewer bits per weight: faster, a little less exact", 0, ""};
    // clang-format on
    options->usage = "usage: sample_gpt2 MODEL [options]\n"
                     "Text from a model: a run, a checkpoint, a Hugging Face GPT-2 directory or an llm.c model file.";
    options->closing = "examples\n"
                       "  ./sample_gpt2 runs/quickstart --prompt 'Once upon a time' --samples 3\n"
                       "  echo 'The lantern' | ./sample_gpt2 runs/quickstart --temperature 0 > story.txt\n"
                       "  ./sample_gpt2 runs/quickstart            (asks for prompts)";
    options_add(options, items, sizeof items / sizeof *items);
    if (sampler->backend->has_weight_kinds) options_add(options, &weights, 1);
}

// ---- the model and its vocabulary

static AttentionConfig decoding_config(const Sampler *sampler) {
    const GPT2Config *config = &sampler->config;
    int most = sampler->backend->prefill_rows, rows = most < config->max_T ? most : config->max_T;
    return (AttentionConfig){
        .B = 1, .T = rows, .C = config->C, .NH = config->NH, .HS = config->C / config->NH, .max_T = config->max_T};
}

static int load_llmc(Sampler *sampler, Error *error) {
    LlmcModel file;
    if (llmc_model_open(&file, sampler->settings.model, error)) return -1;
    sampler->config = file.config;
    AttentionConfig attention_config = decoding_config(sampler);
    sampler->model = sampler->backend->create(&sampler->config, attention_find("softmax"), &attention_config);
    ModelTensors tensors = sampler->backend->tensors(sampler->model);
    int result = model_read_llmc(&tensors, &file, error);
    llmc_model_close(&file);
    return result;
}

static int load_checkpoint(Sampler *sampler, Error *error) {
    Checkpoint checkpoint;
    const Attention *attention = attention_find("softmax");
    if (checkpoint_open_newest(&checkpoint, sampler->settings.model, CHECKPOINT_WEIGHTS, error)) return -1;
    int failed = gpt2_config_from_json(&sampler->config, checkpoint.config, checkpoint.path, error);
    const json_t *saved = failed ? NULL : gpt2_config_attention(checkpoint.config);
    AttentionConfig attention_config = {0};
    if (!failed) attention_config = decoding_config(sampler);
    failed = failed || (saved && attention_from_json(&attention, &attention_config, saved, error)) ||
             model_check_checkpoint(&sampler->config, attention, &attention_config, &checkpoint,
                                    MODEL_WEIGHTS | MODEL_CONSTANTS, error);
    if (!failed) {
        sampler->model = sampler->backend->create(&sampler->config, attention, &attention_config);
        ModelTensors tensors = sampler->backend->tensors(sampler->model);
        failed = model_read_checkpoint(&tensors, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS, error);
        if (!sampler->settings.tokenizer_path) sampler->settings.tokenizer_path = checkpoint_tokenizer(&checkpoint);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int load_tokenizer(Sampler *sampler, Error *error) {
    const char *path = sampler->settings.tokenizer_path;
    int V = sampler->config.V;
    if (!path && V == 50257 && file_exists("data/gpt2.tiktoken")) path = "data/gpt2.tiktoken";
    int needs_none = sampler->settings.prompt_ids || sampler->settings.logits_path || sampler->settings.loss_shards;
    if (!path && needs_none) return 0;
    if (!path)
        return error_set(error,
                         "%.700s: no vocabulary beside the model; give --tokenizer FILE (scripts/get_gpt2_vocab.sh "
                         "fetches GPT-2's)",
                         sampler->settings.model);
    if (tokenizer_load(&sampler->tokenizer, path, 0, error)) return -1;
    if (tokenizer_vocab_size(sampler->tokenizer) > V)
        return error_set(error, "%.700s: expected a vocabulary of at most %d tokens for this model, found %d", path, V,
                         tokenizer_vocab_size(sampler->tokenizer));
    return 0;
}

// ---- prompts

// The prompt's tokens, with room for the sample behind them. `begins` puts an end-of-text before them, as every document
// had it in training; without any token there is always one.
static void set_history(Sampler *sampler, const uint32_t *tokens, size_t count, int begins) {
    size_t room = count + 1 + (size_t)sampler->settings.tokens;
    int end = sampler->tokenizer ? (int)tokenizer_end_of_text(sampler->tokenizer) : sampler->config.V - 1;
    sampler->history = memory_resize(sampler->history, room, sizeof(int), "the text");
    sampler->history_count = 0;
    if (begins || count == 0) sampler->history[sampler->history_count++] = end;
    for (size_t i = 0; i < count; i++) sampler->history[sampler->history_count++] = (int)tokens[i];
}

static int encode_prompt(Sampler *sampler, const char *text, size_t bytes) {
    uint32_t *tokens = NULL;
    size_t capacity = 0, count = tokenizer_encode(sampler->tokenizer, text, bytes, &tokens, &capacity);
    set_history(sampler, tokens, count, sampler->settings.begin);
    free(tokens);
    return 0;
}

// "15496,11,995": every number below the vocabulary's size.
static int read_prompt_ids(Sampler *sampler, const char *text, Error *error) {
    uint32_t *tokens = memory_allocate(strlen(text) + 1, sizeof *tokens, "the prompt");
    size_t count = 0;
    for (const char *at = text; *at; at += *at == ',' || *at == ' ') {
        char *end;
        unsigned long id = strtoul(at, &end, 10);
        if (end == at || id >= (unsigned long)sampler->config.V) {
            free(tokens);
            return error_set(error, "option --prompt-ids: expected numbers below %d with commas, found \"%.40s\"",
                             sampler->config.V, at);
        }
        tokens[count++] = (uint32_t)id, at = end;
    }
    set_history(sampler, tokens, count, 0);
    free(tokens);
    return 0;
}

enum { PROMPT_LIMIT = 64 << 20 };

static int read_prompt(Sampler *sampler, Error *error) {
    const SampleSettings *settings = &sampler->settings;
    char *text;
    size_t bytes;
    if (settings->prompt_ids) return read_prompt_ids(sampler, settings->prompt_ids, error);
    if (settings->prompt) return encode_prompt(sampler, settings->prompt, strlen(settings->prompt));
    if (!settings->prompt_file) return encode_prompt(sampler, "", 0);
    if (!strcmp(settings->prompt_file, "-")) {
        if (file_read_stream(&text, &bytes, stdin, "standard input", PROMPT_LIMIT, error)) return -1;
    } else if (file_read(&text, &bytes, settings->prompt_file, PROMPT_LIMIT, error)) {
        return -1;
    }
    while (bytes > 0 && text[bytes - 1] == '\n') bytes--; // an editor's last line break is not part of the prompt
    encode_prompt(sampler, text, bytes);
    free(text);
    return 0;
}

// ---- generation

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static const real *feed(Sampler *sampler, const int *tokens, int n, real *all_logits) {
    const real *logits = sampler->backend->step(sampler->model, sampler->position, tokens, n, all_logits);
    sampler->position += n;
    return logits;
}

// Logits behind the last token of the history. When the context is full, the text's last half is read anew, so that
// generation can go on for ever.
static const real *next_logits(Sampler *sampler) {
    int max_T = sampler->config.max_T, start = sampler->history_count - 1;
    if (sampler->position == 0 || sampler->position == max_T) {
        int keep = sampler->position == max_T ? (max_T + 1) / 2 : max_T;
        start = sampler->history_count > keep ? sampler->history_count - keep : 0;
        sampler->position = 0;
    }
    double begin = clock_seconds();
    int count = sampler->history_count - start, is_prefill = count > 1;
    const real *logits = feed(sampler, sampler->history + start, count, NULL);
    *(is_prefill ? &sampler->prefill_seconds : &sampler->decode_seconds) += clock_seconds() - begin;
    *(is_prefill ? &sampler->prefill_tokens : &sampler->decode_tokens) += count;
    return logits;
}

static int refuse_model(const Sampler *sampler, const char *what, Error *error) {
    return error_set(error,
                     "%.700s: expected finite %s, found inf or nan: training has diverged or the weights are damaged; "
                     "take an earlier checkpoint",
                     sampler->settings.model, what);
}

// Whether to go on: nobody has stopped it, and what is written arrives.
static int is_wanted(void) {
    return !interrupted && !ferror(stdout);
}

// One sample behind the prompt in the history, onto standard output.
static int generate(Sampler *sampler, int sample, Error *error) {
    const SampleSettings *settings = &sampler->settings;
    uint64_t key = random_key((uint64_t)settings->seed, "sample", (uint64_t)sample);
    TextStream stream = {.out = stdout};
    int end = sampler->tokenizer ? (int)tokenizer_end_of_text(sampler->tokenizer) : sampler->config.V - 1, token = 0;
    for (int i = 0; i < settings->tokens && is_wanted(); i++) {
        const real *logits = next_logits(sampler);
        double begin = clock_seconds();
        token = sample_token(logits, sampler->config.V, &settings->sampler, random_uniform(key, (uint64_t)i),
                             sampler->candidates);
        sampler->decode_seconds += clock_seconds() - begin;
        if (token < 0 || (token == end && settings->stop)) break;
        sampler->history[sampler->history_count++] = token;
        size_t bytes = 0;
        const char *text = sampler->tokenizer ? tokenizer_token(sampler->tokenizer, (uint32_t)token, &bytes) : NULL;
        if (!sampler->tokenizer)
            printf("%s%d", i ? "," : "", token);
        else if (token == end)
            stream_put(&stream, "<|endoftext|>\n", 14); // as ./tokenize reads it back
        else
            stream_put(&stream, text, bytes);
    }
    stream_flush(&stream);
    printf("\n");
    fflush(stdout);
    return token < 0 ? refuse_model(sampler, "logits", error) : 0;
}

static void print_prompt(const Sampler *sampler) {
    for (int i = 0; sampler->tokenizer && i < sampler->history_count; i++) {
        size_t bytes;
        const char *text = tokenizer_token(sampler->tokenizer, (uint32_t)sampler->history[i], &bytes);
        fwrite(text, 1, bytes, stdout);
    }
    fflush(stdout);
}

// All samples of one prompt. The prompt is read once; further samples start from a copy of the caches behind it.
static int generate_samples(Sampler *sampler, Error *error) {
    int prompt_count = sampler->history_count, samples = sampler->settings.samples, failed = 0;
    int is_shared = samples > 1 && prompt_count > 1 && prompt_count <= sampler->config.max_T;
    sampler->position = 0;
    if (is_shared) { // all but the last token, which every sample feeds itself
        double begin = clock_seconds();
        feed(sampler, sampler->history, prompt_count - 1, NULL);
        sampler->backend->keep_past(sampler->model);
        sampler->prefill_seconds += clock_seconds() - begin, sampler->prefill_tokens += prompt_count - 1;
    }
    for (int sample = 0; sample < samples && !failed && is_wanted(); sample++) {
        if (sample > 0) printf("---\n");
        sampler->history_count = prompt_count;
        if (is_shared) sampler->backend->restore_past(sampler->model);
        sampler->position = is_shared ? prompt_count - 1 : 0;
        print_prompt(sampler);
        failed = generate(sampler, sample, error);
    }
    return failed;
}

// What the last texts took; the count starts anew.
static void print_stats(Sampler *sampler) {
    if (sampler->prefill_tokens)
        fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s\n", (long long)sampler->prefill_tokens,
                (double)sampler->prefill_tokens / sampler->prefill_seconds);
    if (sampler->decode_tokens)
        fprintf(stderr, "text:   %lld tokens, %.0f tokens/s, %.2f ms each\n", (long long)sampler->decode_tokens,
                (double)sampler->decode_tokens / sampler->decode_seconds,
                1e3 * sampler->decode_seconds / (double)sampler->decode_tokens);
    sampler->prefill_tokens = sampler->decode_tokens = 0;
    sampler->prefill_seconds = sampler->decode_seconds = 0;
}

static int interact(Sampler *sampler, Error *error) {
    LineEditor *editor = line_editor_open("> ");
    int failed = 0;
    fprintf(stderr, "Type the beginning of a text; Ctrl-C stops a sample, an empty line or Ctrl-D ends.\n");
    while (!failed && !ferror(stdout)) {
        size_t length = 0;
        interrupted = 0;
        const char *line = line_editor_read(editor, &length);
        if (!line || length == 0) break;
        encode_prompt(sampler, line, length);
        failed = generate_samples(sampler, error);
        if (sampler->settings.stats && !failed) print_stats(sampler);
        sampler->settings.seed++; // the same line again gives another text
    }
    line_editor_close(editor);
    return failed;
}

static int write_logits(Sampler *sampler, Error *error) {
    int n = sampler->history_count, V = sampler->config.V;
    if (n > sampler->config.max_T)
        return error_set(error, "option --logits: expected a prompt of at most %d tokens, found %d",
                         sampler->config.max_T, n);
    real *logits = memory_allocate((size_t)n * (size_t)V, sizeof(real), "the logits");
    feed(sampler, sampler->history, n, logits);
    Tensor tensor = {"logits", DTYPE_F32, 2, {(uint64_t)n, (uint64_t)V}, logits};
    int result = are_finite(logits, (size_t)n * (size_t)V)
                     ? safetensors_write(sampler->settings.logits_path, &tensor, 1, NULL, error)
                     : refuse_model(sampler, "logits", error);
    free(logits);
    return result;
}

// The mean loss over the targets of all shards, as the trainer's validation has it for rows as long as the context.
static int print_loss(Sampler *sampler, Error *error) {
    int T = sampler->config.max_T, V = sampler->config.V;
    DataLoader *loader;
    DataLoaderConfig config = {.pattern = sampler->settings.loss_shards,
                               .T = T,
                               .vocab = V,
                               .whole = 1,
                               .documents = sampler->settings.begin,
                               .limit = sampler->settings.loss_tokens};
    if (dataloader_open(&loader, &config, error)) return -1;
    int *inputs = memory_allocate(2 * (size_t)T, sizeof(int), "a row of tokens"), *targets = inputs + T, failed = 0;
    double *losses = memory_allocate((size_t)T, sizeof(double), "the losses"), sum = 0;
    for (int64_t row = 0; row < dataloader_rows(loader) && !failed && !interrupted; row++) {
        failed = dataloader_rows_at(loader, row, 1, inputs, targets, error);
        if (!failed) sampler->backend->row_losses(sampler->model, losses, inputs, targets, T);
        for (int t = 0; t < T && !failed; t++) sum += losses[t];
        if (!isfinite(sum)) break;
    }
    double mean = sum / (double)dataloader_targets(loader);
    if (!failed && !isfinite(mean)) failed = refuse_model(sampler, "losses", error);
    if (!failed && !interrupted)
        printf("loss %.6f  perplexity %.3f  (%lld tokens)\n", mean, exp(mean), (long long)dataloader_targets(loader));
    dataloader_close(loader);
    free(inputs), free(losses);
    return failed;
}

static int run_sampler(Sampler *sampler, Error *error) {
    SampleSettings *settings = &sampler->settings;
    int has_prompt = settings->prompt || settings->prompt_file || settings->prompt_ids;
    if (settings->loss_shards) has_prompt = 1; // none is wanted
    if (!has_prompt && !isatty(STDIN_FILENO)) settings->prompt_file = "-";
    if (!has_prompt && isatty(STDIN_FILENO)) settings->interactive = !settings->logits_path;
    if (llmc_model_is(settings->model) ? load_llmc(sampler, error) : load_checkpoint(sampler, error)) return -1;
    if (load_tokenizer(sampler, error)) return -1;
    sampler->backend->begin(sampler->model, settings);
    sampler->candidates = memory_allocate((size_t)sampler->config.V, sizeof(Candidate), "the candidates");
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};
    if (settings->interactive) action.sa_flags = 0;
    sigaction(SIGINT, &action, NULL);
    if (settings->loss_shards) return print_loss(sampler, error);
    if (settings->interactive) return interact(sampler, error);
    if (read_prompt(sampler, error)) return -1;
    if (settings->logits_path) return write_logits(sampler, error);
    return generate_samples(sampler, error);
}

int sampler_main(const SamplerBackend *backend, int argc, char **argv) {
    static Sampler sampler;
    Options options = {0};
    Error error;
    int positionals = 0;
    threads_restart_with_wait_policy(argv);
    error_set_program(argv[0]);
    sampler.backend = backend;
    sampler.settings = (SampleSettings){.tokens = 256,
                                        .samples = 1,
                                        .begin = 1,
                                        .stop = 1,
                                        .stats = 1,
                                        .sampler = {.temperature = 0.8f, .top_p = 1},
                                        .seed = 1};
    sample_options(&options, &sampler);
    die_if(options_parse(&options, argc, argv, &sampler.settings.model, 1, &positionals, &error), &error);
    if (positionals == 0) die("no model: give a run, a checkpoint or a model file (--help tells more)");
    threads_use(sampler.settings.threads);
    die_if(run_sampler(&sampler, &error), &error);
    if (sampler.settings.stats) print_stats(&sampler);
    backend->free(sampler.model);
    tokenizer_free(sampler.tokenizer);
    free(sampler.candidates), free(sampler.history);
    return interrupted ? 130 : 0;
}
