#define _GNU_SOURCE
#include "sampling.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"
#include "core/base/random.h"
#include "core/base/threads.h"
#include "core/math/matvec.h"
#include "core/model/safetensors.h"
#include "core/model/strict.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- options

static void sample_options(Options *options, SampleSettings *s, int has_weight_kinds) {
    // clang-format off
    const Option items[] = {
        {"text", "prompt", 'p', OPTION_STRING, &s->prompt, 0, 0, "TEXT", "what the text starts with", 0, ""},
        {"text", "prompt-file", 'f', OPTION_STRING, &s->prompt_file, 0, 0, "FILE", "the same from a file; - is standard input", 0, ""},
        {"text", "prompt-ids", 0, OPTION_STRING, &s->prompt_ids, 0, 0, "IDS", "the same as token numbers: 15496,11,995", 0, ""},
        {"text", "tokens", 'n', OPTION_INT, &s->tokens, 0, 1 << 24, NULL, "most tokens per sample", 0, ""},
        {"text", "length", 0, OPTION_INT, &s->length, 0, 1 << 24, NULL, "positions before the text's last half is read anew, and tokens of a row of --loss; 0: the context, or without end where the model can", 0, ""},
        {"text", "samples", 's', OPTION_INT, &s->samples, 1, 1 << 20, NULL, "texts from the same prompt", 0, ""},
        {"text", "begin", 0, OPTION_FLAG, &s->begin, 0, 1, NULL, "the prompt begins a document; --no-begin: in the middle of one", 0, ""},
        {"text", "stop", 0, OPTION_FLAG, &s->stop, 0, 1, NULL, "stop at end-of-text; --no-stop: go on after it", 0, ""},
        {"text", "interactive", 'i', OPTION_FLAG, &s->interactive, 0, 1, NULL, "ask for prompts (as without a prompt at a terminal)", 0, ""},
        {"choice", "temperature", 't', OPTION_FLOAT, &s->draw.temperature, 0, 100, NULL, "0: the likeliest token always", 0, ""},
        {"choice", "top-k", 'k', OPTION_INT, &s->draw.top_k, 0, 1 << 24, NULL, "among the k likeliest; 0: all", 0, ""},
        {"choice", "top-p", 0, OPTION_FLOAT, &s->draw.top_p, 1e-6, 1, NULL, "among the likeliest with this probability together", 0, ""},
        {"choice", "seed", 0, OPTION_LONG, &s->seed, 0, 9e15, NULL, "the same seed gives the same text", 0, ""},
        {"program", "tokenizer", 0, OPTION_STRING, &s->tokenizer_path, 0, 0, "FILE", "vocabulary; default: the checkpoint's, or data/gpt2.tiktoken", 0, ""},
        {"program", "threads", 0, OPTION_INT, &s->threads, 0, 4096, NULL, "CPU threads; 0: all cores", 0, ""},
        {"program", "stats", 0, OPTION_FLAG, &s->stats, 0, 1, NULL, "speed, on standard error", 0, ""},
        {"program", "logits", 0, OPTION_STRING, &s->logits_path, 0, 0, "FILE", "write the prompt's logits as safetensors and stop", 0, ""},
        {"program", "loss", 0, OPTION_STRING, &s->loss_shards, 0, 0, "SHARDS", "print the mean loss over token shards (--no-begin: rows begin at any token) and stop", 0, ""},
        {"program", "loss-tokens", 0, OPTION_LONG, &s->loss_tokens, 0, 1e15, NULL, "tokens of them, from their start; 0: all", 0, ""},
        {"program", "losses", 0, OPTION_STRING, &s->losses_path, 0, 0, "FILE", "with --loss: also write every token's loss as safetensors", 0, ""},
    };
    const Option weights = {"program", "weights", 0, OPTION_CHOICE, &s->weights, 0, 0, WEIGHT_KIND_CHOICES, "fewer bits per weight: faster, a little less exact", 0, ""};
    // clang-format on
    options->usage = "usage: sample_gpt2 MODEL [options]\n"
                     "Text from a model: a run, a checkpoint, a Hugging Face GPT-2 directory or an llm.c model file.";
    options->closing = "examples\n"
                       "  ./sample_gpt2 runs/quickstart --prompt 'Once upon a time' --samples 3\n"
                       "  echo 'The lantern' | ./sample_gpt2 runs/quickstart --temperature 0 > story.txt\n"
                       "  ./sample_gpt2 runs/endless --tokens 100000 --no-stop      (trained with --positions none)\n"
                       "  ./sample_gpt2 runs/quickstart            (asks for prompts)";
    options_add(options, items, sizeof items / sizeof *items);
    strict_add_option(options, "program");
    if (has_weight_kinds) options_add(options, &weights, 1);
}

static void read_options(SampleSettings *settings, int has_weight_kinds, int argc, char **argv) {
    Options options = {0};
    Error error;
    int positionals = 0;
    *settings = (SampleSettings){.tokens = 256,
                                 .samples = 1,
                                 .begin = 1,
                                 .stop = 1,
                                 .stats = 1,
                                 .draw = {.temperature = 0.8f, .top_p = 1},
                                 .seed = 1};
    sample_options(&options, settings, has_weight_kinds);
    die_if(options_parse(&options, argc, argv, &settings->model, 1, &positionals, &error), &error);
    if (settings->losses_path && !settings->loss_shards) die("option --losses: give --loss SHARDS too");
    if (positionals == 0) die("no model: give a run, a checkpoint or a model file (--help tells more)");
    if (settings->prompt || settings->prompt_file || settings->prompt_ids || settings->loss_shards) return;
    if (!isatty(STDIN_FILENO))
        settings->prompt_file = "-";
    else
        settings->interactive = !settings->logits_path;
}

// ---- the model and its vocabulary

static int open_llmc(Sampling *sampling, int prefill_rows, Error *error) {
    if (llmc_model_open(&sampling->llmc, sampling->settings.model, error)) return -1;
    const GPT2Config *config = &sampling->config;
    sampling->config = sampling->llmc.config;
    int rows = prefill_rows < config->max_T ? prefill_rows : config->max_T;
    AttentionConfig sizes = {.B = 1, .T = rows, .C = config->C, .NH = config->NH, .max_T = config->max_T};
    return attention_stack_configure(&sampling->stack, "softmax", &sizes, NULL, error);
}

static int open_checkpoint(Sampling *sampling, int prefill_rows, Error *error) {
    Checkpoint *checkpoint = &sampling->checkpoint;
    SampleSettings *settings = &sampling->settings;
    if (model_open_checkpoint(checkpoint, &sampling->config, &sampling->stack, 1, prefill_rows, settings->model, error))
        return -1;
    if (!settings->tokenizer_path) settings->tokenizer_path = checkpoint_tokenizer(checkpoint);
    return model_check_checkpoint(&sampling->config, &sampling->stack, checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION,
                                  error);
}

enum { ENDLESS = 1 << 30 };

// How far the decoder can go. Learned positions end with the context; without them only the memory of attentions that
// keep every key sets an end.
static int choose_context(Sampling *sampling, Error *error) {
    const GPT2Config *config = &sampling->config;
    int length = sampling->settings.length, max_T = config->max_T;
    if (length > max_T && (config->positions == POSITIONS_LEARNED || attention_stack_has_horizon(&sampling->stack)))
        return error_set(error, "option --length: expected at most the context of %d tokens, found %d: %s", max_T,
                         length,
                         config->positions == POSITIONS_LEARNED ? "the model has learned positions"
                                                                : "the attention knows no later positions");
    if (length > max_T) attention_stack_set_model(&sampling->stack, config->C, config->NH, length);
    int is_endless = config->positions == POSITIONS_NONE && attention_stack_is_endless(&sampling->stack);
    sampling->context = length ? length : is_endless ? ENDLESS : max_T;
    sampling->row_tokens = length ? length : max_T;
    return 0;
}

static int load_tokenizer(Sampling *sampling, int is_needed, Error *error) {
    const SampleSettings *settings = &sampling->settings;
    const char *path = settings->tokenizer_path;
    int V = sampling->config.V;
    sampling->end_of_text = V - 1;
    if (!path && V == GPT2_VOCABULARY && file_exists("data/gpt2.tiktoken")) path = "data/gpt2.tiktoken";
    if (!path && !is_needed) return 0;
    if (!path)
        return error_set(error,
                         "%.700s: no vocabulary beside the model; give --tokenizer FILE (scripts/get_gpt2_vocab.sh "
                         "fetches GPT-2's)",
                         settings->model);
    if (tokenizer_load(&sampling->tokenizer, path, 0, error)) return -1;
    sampling->end_of_text = (int)tokenizer_end_of_text(sampling->tokenizer);
    if (tokenizer_vocab_size(sampling->tokenizer) > V)
        return error_set(error, "%.700s: expected a vocabulary of at most %d tokens for this model, found %d", path, V,
                         tokenizer_vocab_size(sampling->tokenizer));
    return 0;
}

void sampling_open_model(Sampling *sampling, int prefill_rows, int needs_vocabulary) {
    Error error;
    threads_use(sampling->settings.threads);
    sampling->is_llmc = llmc_model_is(sampling->settings.model);
    die_if((sampling->is_llmc ? open_llmc : open_checkpoint)(sampling, prefill_rows, &error), &error);
    die_if(choose_context(sampling, &error) || load_tokenizer(sampling, needs_vocabulary, &error), &error);
}

void sampling_open(Sampling *sampling, int prefill_rows, int has_weight_kinds, int argc, char **argv) {
    const SampleSettings *settings = &sampling->settings;
    error_set_program(argv[0]);
    read_options(&sampling->settings, has_weight_kinds, argc, argv);
    sampling_open_model(sampling, prefill_rows, !settings->prompt_ids && !settings->loss_shards);
}

void sampling_load(Sampling *sampling, const ModelTensors *model) {
    Error error;
    int parts = MODEL_WEIGHTS | MODEL_ATTENTION;
    die_if(sampling->is_llmc ? model_read_llmc(model, &sampling->llmc, &error)
                             : model_read_checkpoint(model, &sampling->checkpoint, parts, &error),
           &error);
    llmc_model_close(&sampling->llmc), checkpoint_close(&sampling->checkpoint);
}

// ---- prompts

// The prompt's tokens, with room for the sample after them. `begins` puts an end-of-text before them, as every document
// had it in training; without any token there is always one.
static void set_history(Sampling *sampling, const uint32_t *tokens, size_t count, int begins) {
    size_t room = count + 2 + (sampling->context == ENDLESS ? 0 : (size_t)sampling->settings.tokens);
    sampling->history = memory_resize(sampling->history, room, sizeof(int), "the text");
    sampling->history_count = 0;
    if (begins || count == 0) sampling->history[sampling->history_count++] = sampling->end_of_text;
    for (size_t i = 0; i < count; i++) sampling->history[sampling->history_count++] = (int)tokens[i];
}

static void encode_prompt(Sampling *sampling, const char *text, size_t bytes) {
    uint32_t *tokens = NULL;
    size_t capacity = 0, count = tokenizer_encode(sampling->tokenizer, text, bytes, &tokens, &capacity);
    set_history(sampling, tokens, count, sampling->settings.begin);
    free(tokens);
}

// "15496,11,995": every number below the vocabulary's size.
static int read_prompt_ids(Sampling *sampling, const char *text, Error *error) {
    uint32_t *tokens = memory_allocate(strlen(text) + 1, sizeof *tokens, "the prompt");
    size_t count = 0;
    for (const char *at = text; *at; at += *at == ',' || *at == ' ') {
        char *end;
        unsigned long id = strtoul(at, &end, 10);
        if (end == at || id >= (unsigned long)sampling->config.V) {
            free(tokens);
            return error_set(error, "option --prompt-ids: expected numbers below %d with commas, found \"%.40s\"",
                             sampling->config.V, at);
        }
        tokens[count++] = (uint32_t)id, at = end;
    }
    set_history(sampling, tokens, count, 0);
    free(tokens);
    return 0;
}

enum { PROMPT_LIMIT = 64 << 20 };

static int read_prompt(Sampling *sampling, Error *error) {
    const SampleSettings *settings = &sampling->settings;
    char *text;
    size_t bytes;
    if (settings->prompt_ids) return read_prompt_ids(sampling, settings->prompt_ids, error);
    if (settings->prompt || !settings->prompt_file) {
        const char *prompt = settings->prompt ? settings->prompt : "";
        encode_prompt(sampling, prompt, strlen(prompt));
        return 0;
    }
    if (!strcmp(settings->prompt_file, "-")) {
        if (file_read_stream(&text, &bytes, stdin, "standard input", PROMPT_LIMIT, error)) return -1;
    } else if (file_read(&text, &bytes, settings->prompt_file, PROMPT_LIMIT, error)) {
        return -1;
    }
    while (bytes > 0 && text[bytes - 1] == '\n') bytes--; // an editor's last line break is not part of the prompt
    encode_prompt(sampling, text, bytes);
    free(text);
    return 0;
}

// ---- generation

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

// A text that is being written goes on after a signal (SA_RESTART): a call cut short would look like a full disk.
static void catch_interrupts(int flags) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = flags};
    sigaction(SIGINT, &action, NULL);
}

// Whether to go on: nobody has stopped it, and what is written arrives.
static int is_wanted(void) {
    return !interrupted && !ferror(stdout);
}

static int open_shards(Sampling *sampling, Error *error) {
    LossRows *rows = &sampling->rows;
    size_t count = (size_t)sampling->row_tokens;
    DataLoaderConfig config = {.pattern = sampling->settings.loss_shards,
                               .T = sampling->row_tokens,
                               .vocab = sampling->config.V,
                               .whole = 1,
                               .documents = sampling->settings.begin,
                               .limit = sampling->settings.loss_tokens};
    if (dataloader_open(&sampling->loader, &config, error)) return -1;
    if (sampling->settings.losses_path) {
        count *= (size_t)dataloader_rows(sampling->loader);
        rows->losses = memory_allocate(count, sizeof *rows->losses, "the losses");
        rows->likeliest = memory_allocate(count, 1, "the losses");
    }
    rows->inputs = memory_allocate(count, sizeof(int), "rows of tokens");
    rows->targets = memory_allocate(count, sizeof(int), "rows of tokens");
    return 0;
}

static int open_logits(Sampling *sampling, Error *error) {
    int n = sampling->history_count;
    if (n > sampling->context)
        return error_set(error, "option --logits: expected a prompt of at most %d tokens, found %d", sampling->context,
                         n);
    sampling->logits = memory_allocate((size_t)n * (size_t)sampling->config.V, sizeof(real), "the logits");
    return 0;
}

void sampling_begin(Sampling *sampling) {
    const SampleSettings *settings = &sampling->settings;
    Error error;
    if (settings->loss_shards) {
        die_if(open_shards(sampling, &error), &error);
        catch_interrupts(SA_RESETHAND | SA_RESTART);
        return;
    }
    sampling->candidates = memory_allocate((size_t)sampling->config.V, sizeof(Candidate), "the candidates");
    sampling->stream.out = stdout;
    if (settings->interactive) {
        sampling->editor = line_editor_open("> ");
        fprintf(stderr, "Type the beginning of a text; Ctrl-C stops a sample, an empty line or Ctrl-D ends.\n");
        return;
    }
    die_if(read_prompt(sampling, &error), &error);
    if (settings->logits_path) die_if(open_logits(sampling, &error), &error);
    catch_interrupts(SA_RESETHAND | SA_RESTART);
}

// What the last texts took; the count starts anew.
static void print_stats(Sampling *sampling) {
    if (sampling->prefill_tokens)
        fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s\n", (long long)sampling->prefill_tokens,
                (double)sampling->prefill_tokens / sampling->prefill_seconds);
    if (sampling->decode_tokens)
        fprintf(stderr, "text:   %lld tokens, %.0f tokens/s, %.2f ms each\n", (long long)sampling->decode_tokens,
                (double)sampling->decode_tokens / sampling->decode_seconds,
                1e3 * sampling->decode_seconds / (double)sampling->decode_tokens);
    sampling->prefill_tokens = sampling->decode_tokens = 0;
    sampling->prefill_seconds = sampling->decode_seconds = 0;
}

// The next line that somebody types; 0 when there is none.
static int ask_for_prompt(Sampling *sampling) {
    size_t length = 0;
    if (sampling->failed || ferror(stdout)) return 0;
    if (sampling->prompts > 0) {
        if (sampling->settings.stats) print_stats(sampling);
        sampling->settings.seed++; // the same line again gives another text
    }
    interrupted = 0;
    catch_interrupts(0); // Ctrl-C ends the waiting for a line
    const char *line = line_editor_read(sampling->editor, &length);
    catch_interrupts(SA_RESTART);
    if (!line || length == 0) return 0;
    encode_prompt(sampling, line, length);
    return 1;
}

int sampling_next_prompt(Sampling *sampling) {
    if (sampling->editor ? !ask_for_prompt(sampling) : sampling->prompts > 0) return 0;
    int count = sampling->history_count, is_shared = sampling->settings.samples > 1 && count <= sampling->context;
    sampling->prompts++;
    sampling->prompt_count = count;
    sampling->past = is_shared ? count - 1 : 0; // all but the last token, which every sample reads itself
    sampling->sample = 0;
    sampling->begun = clock_seconds();
    return 1;
}

static void print_prompt(const Sampling *sampling) {
    for (int i = 0; sampling->tokenizer && i < sampling->history_count; i++) {
        size_t bytes;
        const char *text = tokenizer_token(sampling->tokenizer, (uint32_t)sampling->history[i], &bytes);
        fwrite(text, 1, bytes, stdout);
    }
    fflush(stdout);
}

int sampling_next_sample(Sampling *sampling) {
    if (sampling->sample == 0 && sampling->past > 0) {
        sampling->prefill_seconds += clock_seconds() - sampling->begun;
        sampling->prefill_tokens += sampling->past;
    }
    if (sampling->sample == sampling->settings.samples || sampling->failed || !is_wanted()) return 0;
    if (sampling->sample > 0) printf("---\n");
    sampling->key = random_key((uint64_t)sampling->settings.seed, "sample", (uint64_t)sampling->sample++);
    sampling->history_count = sampling->prompt_count;
    sampling->position = sampling->past;
    sampling->drawn = sampling->ended = 0;
    print_prompt(sampling);
    return 1;
}

static void end_sample(Sampling *sampling) {
    stream_flush(&sampling->stream);
    printf("\n");
    fflush(stdout);
}

// When the context is full, the text's last half is read anew, so that generation can go on for ever.
int sampling_next_feed(Sampling *sampling, Feed *feed) {
    int context = sampling->context, count = sampling->history_count, start = count - 1;
    if (sampling->drawn == sampling->settings.tokens || sampling->ended || !is_wanted()) {
        end_sample(sampling);
        return 0;
    }
    if (sampling->position == 0 || sampling->position == context) {
        int keep = sampling->position == context ? (context + 1) / 2 : context;
        start = count > keep ? count - keep : 0;
        sampling->position = 0;
    }
    *feed = (Feed){sampling->history + start, count - start, sampling->position};
    sampling->position += feed->n;
    *(feed->n > 1 ? &sampling->prefill_tokens : &sampling->decode_tokens) += feed->n;
    sampling->reads_prompt = feed->n > 1;
    sampling->begun = clock_seconds();
    return 1;
}

int sampling_draw(Sampling *sampling, const real *logits) {
    double now = clock_seconds();
    *(sampling->reads_prompt ? &sampling->prefill_seconds : &sampling->decode_seconds) += now - sampling->begun;
    double uniform = random_uniform(sampling->key, (uint64_t)sampling->drawn);
    int token = draw_token(logits, sampling->config.V, &sampling->settings.draw, uniform, sampling->candidates);
    sampling->decode_seconds += clock_seconds() - now;
    return token;
}

static void refuse_model(Sampling *sampling, const char *what) {
    sampling->failed = 1;
    error_set(&sampling->error,
              "%.700s: expected finite %s, found inf or nan: training has diverged or the weights are damaged; "
              "take an earlier checkpoint",
              sampling->settings.model, what);
}

void sampling_put(Sampling *sampling, int token) {
    int is_end = token == sampling->end_of_text;
    size_t bytes = 0;
    if (token < 0) refuse_model(sampling, "logits");
    sampling->ended = token < 0 || (is_end && sampling->settings.stop);
    if (sampling->ended) return;
    if (sampling->context == ENDLESS && sampling->drawn > 0) sampling->history_count--; // nothing is read anew
    sampling->history[sampling->history_count++] = token;
    const char *text = sampling->tokenizer ? tokenizer_token(sampling->tokenizer, (uint32_t)token, &bytes) : NULL;
    if (!text)
        printf("%s%d", sampling->drawn ? "," : "", token);
    else if (is_end)
        stream_put(&sampling->stream, "<|endoftext|>\n", 14); // as ./tokenize reads it back
    else
        stream_put(&sampling->stream, text, bytes);
    sampling->drawn++;
}

// ---- without generation

void sampling_write_logits(Sampling *sampling) {
    size_t n = (size_t)sampling->history_count, V = (size_t)sampling->config.V;
    Tensor tensor = {"logits", DTYPE_F32, 2, {n, V}, sampling->logits};
    if (!logits_are_finite(sampling->logits, n * V))
        refuse_model(sampling, "logits");
    else
        sampling->failed = safetensors_write(sampling->settings.logits_path, &tensor, 1, NULL, &sampling->error);
}

int sampling_next_row(Sampling *sampling) {
    if (interrupted || sampling->failed || sampling->row == dataloader_rows(sampling->loader)) return 0;
    const LossRows *rows = &sampling->rows;
    size_t first = rows->losses ? (size_t)sampling->row * (size_t)sampling->row_tokens : 0;
    sampling->at = (LossRows){.inputs = rows->inputs + first, .targets = rows->targets + first};
    if (rows->losses) sampling->at.losses = rows->losses + first, sampling->at.likeliest = rows->likeliest + first;
    sampling->failed = dataloader_rows_at(sampling->loader, sampling->row++, 1, sampling->at.inputs,
                                          sampling->at.targets, &sampling->error);
    return !sampling->failed;
}

static void write_losses(Sampling *sampling) {
    const LossRows *rows = &sampling->rows;
    size_t n = (size_t)dataloader_rows(sampling->loader), T = (size_t)sampling->row_tokens;
    Tensor tensors[] = {{"inputs", DTYPE_I32, 2, {n, T}, rows->inputs},
                        {"targets", DTYPE_I32, 2, {n, T}, rows->targets},
                        {"losses", DTYPE_F32, 2, {n, T}, rows->losses},
                        {"likeliest", DTYPE_U8, 2, {n, T}, rows->likeliest}};
    sampling->failed = safetensors_write(sampling->settings.losses_path, tensors, 4, NULL, &sampling->error);
}

// The mean over the targets of all shards, as the trainer's validation has it for rows of that length.
void sampling_end_loss(Sampling *sampling, double sum) {
    int64_t targets = dataloader_targets(sampling->loader);
    double mean = sum / (double)targets;
    if (sampling->failed) return;
    if (!isfinite(mean))
        refuse_model(sampling, "losses");
    else if (!interrupted)
        printf("loss %.6f  perplexity %.3f  (%lld tokens)\n", mean, exp(mean), (long long)targets);
    if (sampling->rows.losses && isfinite(mean) && !interrupted) write_losses(sampling);
}

int sampling_end(Sampling *sampling) {
    if (sampling->editor) line_editor_close(sampling->editor);
    die_if(sampling->failed, &sampling->error);
    if (sampling->settings.stats) print_stats(sampling);
    dataloader_close(sampling->loader);
    tokenizer_free(sampling->tokenizer);
    free(sampling->candidates), free(sampling->history), free(sampling->logits);
    free(sampling->rows.inputs), free(sampling->rows.targets), free(sampling->rows.losses);
    free(sampling->rows.likeliest);
    return interrupted ? 130 : 0;
}
