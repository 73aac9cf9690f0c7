// How fast GPT-2 124M reads and writes text with elu's and slay's attention, beside softmax's:
//
//   build/dev/bench/bench_decode_attentions [decode] [prefill]     (both when none is named)
//
//   decode   tokens after 5 and after 131072 others, with int8 and with fp32 weights; softmax's cache of 131072 rows
//            would take 9.7 GB, so there the two are compared with themselves after 5
//   prefill  a prompt of 16384 tokens
//
// Weights are random. The models take turns; a turn of decoding is 20 tokens.
#define GPT2_MODEL_ONLY
#include "sample_gpt2.c"

#include "attention/registry.h"
#include "core/base/progress.h"
#include "core/base/threads.h"
#include "dev/bench/turns.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 5, FAR = 131072, TOKENS = 20, DECODE_TURNS = 25, PROMPT = 16384, PREFILL_TURNS = 3 };
enum { SOFTMAX, ELU, SLAY, MODELS };
static const char *const names[MODELS] = {"softmax", "elu", "slay"};

typedef struct {
    GPT2 model;
    Decoder decoder;
} Contender;

// GPT-2 124M with room for `max_T` rows in a cache, and without a table of positions.
static void contender_open(Contender *contender, const char *name, int max_T, WeightKind kind) {
    GPT2Config config = {.L = 12, .NH = 12, .C = 768, .V = 50257, .max_T = max_T, .positions = POSITIONS_NONE};
    AttentionConfig sizes = {.B = 1, .T = PREFILL_ROWS, .C = 768, .NH = 12, .HS = 64, .max_T = max_T, .seed = 1};
    const Attention *attention = attention_find(name);
    if (attention->defaults) attention->defaults(&sizes);
    AttentionStack stack = attention_stack_of(attention, &sizes);
    gpt2_create(&contender->model, &config, &stack, 0, 1, TRAINS_NOT, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_to_host(&contender->model, HOST_TO_FILL);
    model_initialize(&tensors, 1, 0.02);
    gpt2_from_host(&contender->model, HOST_TO_FILL);
    decoder_create(&contender->decoder, &contender->model, kind, 0);
}

static void contender_close(Contender *contender) {
    decoder_free(&contender->decoder);
    gpt2_free(&contender->model);
}

// Seconds for `n` tokens of a prompt.
static double read_prompt(Contender *contender, int n) {
    int *tokens = memory_allocate((size_t)n, sizeof *tokens, "a prompt");
    for (int i = 0; i < n; i++) tokens[i] = (int)(random_word(7, (uint64_t)i) % 50257);
    double start = clock_seconds();
    decoder_step(&contender->decoder, tokens, n, 0, NULL);
    double seconds = clock_seconds() - start;
    free(tokens);
    return seconds;
}

// Tokens per second from `position` on: by the median of single tokens.
static double write_tokens(Contender *contender, int position) {
    double seconds[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        int token = i + 1;
        double start = clock_seconds();
        decoder_step(&contender->decoder, &token, 1, position + i, NULL);
        seconds[i] = clock_seconds() - start;
    }
    return 1 / median(seconds, TOKENS);
}

static void compare(const char *format, const char *name, const char *kind, const char *peer, const double *ours,
                    const double *theirs, int turns, double wanted) {
    char work[100];
    snprintf(work, sizeof work, format, kind, name);
    report_turns((Comparison){work, "tokens/s", peer, wanted}, ours, theirs, turns, 1);
}

static void bench_decode(WeightKind kind, const char *kind_name) {
    static Contender contenders[MODELS];
    double near[MODELS][DECODE_TURNS], far[MODELS][DECODE_TURNS];
    const double wanted[MODELS] = {0, 0.95, 0.9};
    int is_int8 = kind == WEIGHTS_INT8;
    for (int m = 0; m < MODELS; m++) contender_open(&contenders[m], names[m], 1024, kind);
    for (int turn = -2; turn < DECODE_TURNS; turn++) // the first ones warm up
        for (int m = 0; m < MODELS; m++) {
            int at = turn < 0 ? 0 : turn;
            read_prompt(&contenders[m], SHORT);
            near[m][at] = write_tokens(&contenders[m], SHORT);
            if (m != SOFTMAX) far[m][at] = write_tokens(&contenders[m], FAR);
        }
    for (int m = ELU; m < MODELS; m++) {
        compare("decode at 5, %s, %s", names[m], kind_name, "slay.c softmax", near[m], near[SOFTMAX], DECODE_TURNS,
                is_int8 ? wanted[m] : 0);
        compare("decode at 131072, %s, %s", names[m], kind_name, "itself at 5", far[m], near[m], DECODE_TURNS, 0);
    }
    for (int m = 0; m < MODELS; m++) contender_close(&contenders[m]);
}

static void bench_prefill(void) {
    static Contender contenders[MODELS];
    double rates[MODELS][PREFILL_TURNS];
    for (int m = 0; m < MODELS; m++) contender_open(&contenders[m], names[m], PROMPT, WEIGHTS_FP32);
    for (int turn = 0; turn < PREFILL_TURNS; turn++)
        for (int m = 0; m < MODELS; m++) rates[m][turn] = PROMPT / read_prompt(&contenders[m], PROMPT);
    for (int m = ELU; m < MODELS; m++)
        compare("prefill 16384, %s, %s", names[m], "fp32", "slay.c softmax", rates[m], rates[SOFTMAX], PREFILL_TURNS,
                m == SLAY ? 2 : 0);
    for (int m = 0; m < MODELS; m++) contender_close(&contenders[m]);
}

int main(int argc, char **argv) {
    threads_restart_with_wait_policy(argv);
    error_set_program(argv[0]);
    threads_use(0);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "decode") != 0 && strcmp(argv[i], "prefill") != 0)
            die("%s: expected decode or prefill", argv[i]);
    int all = argc == 1;
    for (int i = all ? 0 : 1; i < argc; i++) {
        if (all || strcmp(argv[i], "decode") == 0) {
            bench_decode(WEIGHTS_INT8, "int8");
            bench_decode(WEIGHTS_FP32, "fp32");
        }
        if (all || strcmp(argv[i], "prefill") == 0) bench_prefill();
    }
    return 0;
}
