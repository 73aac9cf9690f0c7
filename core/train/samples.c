// Samples while a run trains (--sample-every): the first rank's model goes on with a prompt, a whole forward pass for
// each token. Their random numbers are a function of seed and step, so that no number of the training depends on them.
#include "training.h"
#include "core/base/memory.h"
#include "core/ranks/parallel.h"
#include "core/sample/drawing.h"

#include <stdlib.h>
#include <string.h>

// Rows are padded to a multiple of it: fewer sizes for libraries that prepare themselves for each.
enum { LENGTH_STEP = 32 };
static const DrawSettings DRAWING = {.temperature = 0.8f, .top_p = 1}; // as sample_gpt2 draws by default

// The prompt's tokens after an end-of-text, as every document has it; what would fill the row is left out.
static void begin_sample(Training *training) {
    const Settings *settings = &training->settings;
    uint32_t *tokens = NULL;
    size_t capacity = 0, count = 0;
    if (settings->sample_prompt && training->tokenizer)
        count = tokenizer_encode(training->tokenizer, settings->sample_prompt, strlen(settings->sample_prompt), &tokens,
                                 &capacity);
    training->sample[0] = training->end_of_text;
    training->sample_count = 1;
    for (size_t i = 0; i < count && training->sample_count < settings->T; i++)
        training->sample[training->sample_count++] = (int)tokens[i];
    training->sample_end = settings->T - training->sample_count > settings->sample_tokens
                               ? training->sample_count + settings->sample_tokens
                               : settings->T;
    free(tokens);
}

int training_samples(Training *training) {
    const Settings *settings = &training->settings;
    int is_due = settings->sample_every > 0 &&
                 (training->step % settings->sample_every == 0 || training->step == settings->steps);
    if (!is_due || training->step == training->first_step || training->sampled == training->step) return 0;
    if (training->failed || training->must_roll_back || parallel_rank() > 0) return 0;
    training->sampled = training->step;
    if (!training->sample) {
        training->sample = memory_allocate((size_t)settings->T, sizeof(int), "the sample");
        training->logits = memory_allocate((size_t)settings->model.V, sizeof(real), "the logits");
    }
    begin_sample(training);
    return 1;
}

// ---- the text

// Bytes that are no UTF-8, as where the last character is cut, become question marks in a diamond (U+FFFD).
static char *make_utf8(const char *bytes, size_t count) {
    char *text = memory_resize(NULL, 3 * count + 1, 1, "the sample"), *end = text;
    for (size_t i = 0, length; i < count; i += length) {
        for (length = 4; length > 0; length--) {
            json_t *character = i + length <= count && bytes[i] ? json_stringn(bytes + i, length) : NULL;
            int is_one = character && (length == 1 || ((unsigned char)bytes[i] >= 0xC2));
            json_decref(character);
            if (is_one) break;
        }
        memcpy(end, length ? bytes + i : "\xEF\xBF\xBD", length ? length : 3);
        end += length ? length : 3;
        length += !length;
    }
    *end = 0;
    return text;
}

// The tokens' text, or without a vocabulary their numbers; free() it.
static char *text_of(const Training *training) {
    size_t size = 0, room = 16 * (size_t)training->sample_count + 1;
    char *bytes = memory_resize(NULL, room, 1, "the sample");
    for (int i = 1; i < training->sample_count; i++) {
        char number[16];
        size_t length = (size_t)snprintf(number, sizeof number, "%s%d", i > 1 ? " " : "", training->sample[i]);
        const char *text = number;
        if (training->tokenizer) text = tokenizer_token(training->tokenizer, (uint32_t)training->sample[i], &length);
        if (size + length >= room) bytes = memory_resize(bytes, room = 2 * (size + length), 1, "the sample");
        memcpy(bytes + size, text, length);
        size += length;
    }
    char *text = make_utf8(bytes, size);
    free(bytes);
    return text;
}

static void end_sample(Training *training) {
    char *text = text_of(training);
    run_report_sample(&training->run, training->step, text);
    free(text);
    training->floored_before = attention_stack_floored_rows(&training->settings.stack); // not the next step's
}

// ---- the loop

int training_next_sample(Training *training, MicroBatch *batch) {
    int count = training->sample_count, most = training->settings.T;
    if (count == training->sample_end) {
        end_sample(training);
        return 0;
    }
    int T = (count + LENGTH_STEP - 1) / LENGTH_STEP * LENGTH_STEP;
    *batch = (MicroBatch){.inputs = training->inputs,
                          .targets = training->targets,
                          .B = 1,
                          .T = T < most ? T : most,
                          .step = training->step};
    for (int t = 0; t < batch->T; t++) {
        training->inputs[t] = t < count ? training->sample[t] : training->end_of_text;
        training->targets[t] = -1;
    }
    return 1;
}

void training_put_sample(Training *training) {
    uint64_t key = random_key((uint64_t)training->settings.seed, "sample", (uint64_t)training->step);
    int V = training->settings.model.V;
    Candidate *candidates = memory_allocate((size_t)V, sizeof *candidates, "the candidates");
    double uniform = random_uniform(key, (uint64_t)training->sample_count);
    int token = draw_token(training->logits, V, &DRAWING, uniform, candidates);
    free(candidates);
    if (token < 0 || token == training->end_of_text) // the document ends, or a logit is not finite
        training->sample_end = training->sample_count;
    else
        training->sample[training->sample_count++] = token;
}
