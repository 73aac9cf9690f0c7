// GGUF files: a small model with weights and a vocabulary from the input is written by export_gguf's own functions, and
// read back here by the format's description: counts, named values, shapes, offsets, and every number within what its
// type can hold. The input: type, layers, width, context, then the vocabulary's merges and, after "\n%%\n", weights.
#define _GNU_SOURCE
#define main export_gguf_main
#include "core/model/export_gguf.c"
#undef main
#include "fuzz.h"
#include "memory_files.h"

#include <stdbool.h>

typedef struct {
    const unsigned char *data;
    size_t size, at;
} Gguf;

static uint64_t get(Gguf *file, size_t bytes) {
    uint64_t value = 0;
    EXPECT(bytes <= file->size - file->at);
    memcpy(&value, file->data + file->at, bytes);
    file->at += bytes;
    return value;
}

static Input get_string(Gguf *file) {
    size_t length = get(file, 8);
    EXPECT(length <= file->size - file->at);
    Input text = {file->data + file->at, length};
    file->at += length;
    return text;
}

static bool is_text(Input text, const char *expected) {
    return text.size == strlen(expected) && !memcmp(text.data, expected, text.size);
}

// Passes over a value; of an array gives the length.
static uint64_t pass_value(Gguf *file, uint32_t type) {
    static const size_t sizes[] = {[GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_FLOAT] = 4, [GGUF_BOOL] = 1};
    if (type == GGUF_STRING) return get_string(file).size;
    if (type != GGUF_ARRAY) return get(file, sizes[type]);
    uint32_t inner = (uint32_t)get(file, 4);
    uint64_t count = get(file, 8);
    EXPECT(inner != GGUF_ARRAY);
    for (uint64_t i = 0; i < count; i++) pass_value(file, inner);
    return count;
}

static void check_values(Gguf *file, uint64_t count, const GPT2Config *config) {
    const struct {
        const char *key;
        uint64_t expected;
    } known[] = {{"gpt2.context_length", (uint64_t)config->max_T},
                 {"gpt2.embedding_length", (uint64_t)config->C},
                 {"gpt2.feed_forward_length", 4 * (uint64_t)config->C},
                 {"gpt2.block_count", (uint64_t)config->L},
                 {"gpt2.attention.head_count", (uint64_t)config->NH},
                 {"tokenizer.ggml.tokens", (uint64_t)config->V},
                 {"tokenizer.ggml.token_type", (uint64_t)config->V},
                 {"tokenizer.ggml.bos_token_id", (uint64_t)config->V - 1},
                 {"tokenizer.ggml.eos_token_id", (uint64_t)config->V - 1},
                 {"tokenizer.ggml.add_bos_token", 1}};
    size_t met = 0;
    for (uint64_t i = 0; i < count; i++) {
        Input key = get_string(file);
        uint64_t value = pass_value(file, (uint32_t)get(file, 4));
        for (size_t j = 0; j < sizeof known / sizeof *known; j++)
            if (is_text(key, known[j].key)) {
                EXPECT(value == known[j].expected);
                met++;
            }
    }
    EXPECT(met == sizeof known / sizeof *known);
}

static float half_to_float(uint16_t half) {
    static float numbers[1 << 16]; // by the definition, once
    static bool is_filled;
    for (int i = 0; !is_filled && i < 1 << 16; i++) {
        int exponent = i >> 10 & 31, fraction = i & 1023;
        numbers[i] = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
        if (i & 0x8000) numbers[i] = -numbers[i];
    }
    is_filled = true;
    return numbers[half];
}

// Number `i` of a tensor, and how far it may be from the weight that was written.
static float number_at(const unsigned char *data, uint32_t type, size_t i, float weight, float *bound) {
    float value;
    uint16_t half;
    switch (type) {
    case 0:
        memcpy(&value, data + 4 * i, 4), *bound = 0;
        return value;
    case 1:
        memcpy(&half, data + 2 * i, 2), *bound = fmaxf(fabsf(weight) * 0x1p-11f, 0x1p-25f);
        return half_to_float(half);
    case 30:
        memcpy(&half, data + 2 * i, 2), *bound = fabsf(weight) * 0x1p-8f + 1e-38f;
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    default:
        EXPECT(type == 8);
        const unsigned char *block = data + i / Q8_0_NUMBERS * Q8_0_BYTES;
        memcpy(&half, block, 2);
        float scale = half_to_float(half);
        *bound = scale * 0.5f * 1.01f + 127 * fmaxf(scale * 0x1p-11f, 0x1p-25f);
        return scale * (float)(int8_t)block[2 + i % Q8_0_NUMBERS];
    }
}

static void check_tensor(const unsigned char *data, uint32_t type, const Parameter *p, bool is_turned) {
    size_t rows = is_turned ? p->shape[0] : p->count, columns = p->count / rows, i = 0; // i: the place in the file
    for (size_t column = 0; column < columns; column++) // a matrix stands there column by column
        for (size_t row = 0; row < rows; row++, i++) {
            float weight = p->value[row * columns + column], bound, found;
            found = number_at(data, type, i, weight, &bound);
            EXPECT(fabsf(found - weight) <= bound);
        }
}

static void check_tensors(Gguf *file, const ModelTensors *model) {
    typedef struct {
        uint32_t type;
        uint64_t offset;
    } Place;
    Place *places = calloc((size_t)model->count, sizeof *places);
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        EXPECT(get_string(file).size > 0);
        uint32_t rank = (uint32_t)get(file, 4);
        uint64_t inner = get(file, 8), outer = rank == 2 ? get(file, 8) : 1;
        EXPECT(rank == (uint32_t)p->rank && inner * outer == p->count);
        EXPECT(inner == (i >= 2 && rank == 2 ? p->shape[0] : p->shape[rank - 1]));
        places[i].type = (uint32_t)get(file, 4), places[i].offset = get(file, 8);
        EXPECT(places[i].offset % GGUF_ALIGNMENT == 0);
    }
    size_t data = (file->at + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        const size_t sizes[] = {[0] = 4 * p->count, [1] = 2 * p->count, [8] = p->count / 32 * 34, [30] = 2 * p->count};
        EXPECT(data + places[i].offset + sizes[places[i].type] <= file->size);
        check_tensor(file->data + data + places[i].offset, places[i].type, p, i >= 2 && p->rank == 2);
    }
    free(places);
}

static void read_back(const char *path, const ModelTensors *model) {
    Gguf file = {0};
    file.data = memory_file_get(path, &file.size);
    EXPECT(file.data && get(&file, 4) == 0x46554747 && get(&file, 4) == 3); // "GGUF", version 3
    EXPECT(get(&file, 8) == (uint64_t)model->count);
    check_values(&file, get(&file, 8), &model->config);
    check_tensors(&file, model);
}

enum { PAIRS_MAX = 20 };

// The single bytes' lines, with which every vocabulary begins; returns their size.
static size_t single_bytes(char *lines) {
    static char single[256 * 16];
    static size_t size;
    for (int byte = 0, is_made = size > 0; byte < 256 && !is_made; byte++)
        size += tokenizer_write_line(single + size, &(char){(char)byte}, 1, byte);
    memcpy(lines, single, size);
    return size;
}

typedef struct {
    uint8_t bytes[PAIRS_MAX][2];
    int count;
} Pairs;

// The input's pairs of bytes, each once.
static Pairs take_pairs(Input *input) {
    Pairs pairs = {.count = 0};
    for (int i = 0; i < PAIRS_MAX && input->size >= 2; i++) {
        uint8_t *pair = pairs.bytes[pairs.count];
        int known = 0;
        pair[0] = (uint8_t)take_byte(input), pair[1] = (uint8_t)take_byte(input);
        while (memcmp(pairs.bytes[known], pair, 2)) known++; // it meets at least itself
        pairs.count += known == pairs.count;
    }
    return pairs;
}

static Tokenizer *load_vocabulary(const Pairs *pairs) {
    char lines[(256 + PAIRS_MAX) * 16];
    size_t size = single_bytes(lines);
    Tokenizer *tokenizer;
    Error error;
    for (int i = 0; i < pairs->count; i++)
        size += tokenizer_write_line(lines + size, (const char *)pairs->bytes[i], 2, 256 + i);
    memory_file_put("vocabulary", lines, size);
    EXPECT(tokenizer_load(&tokenizer, "vocabulary", 0, &error) == 0);
    return tokenizer;
}

// The 256 single bytes, then the input's pairs of them. Inputs that differ in their weights alone often come one after
// the other, and have the same vocabulary.
static const Tokenizer *make_vocabulary(Input *input) {
    static Tokenizer *tokenizer;
    static Pairs loaded;
    Pairs pairs = take_pairs(input);
    if (tokenizer && pairs.count == loaded.count && !memcmp(pairs.bytes, loaded.bytes, 2 * (size_t)pairs.count))
        return tokenizer;
    tokenizer_free(tokenizer);
    loaded = pairs;
    return tokenizer = load_vocabulary(&pairs);
}

// Weights are the input's floats, over and over; those that are not finite are 0, as no model has them.
static void fill(ModelTensors *model, Input weights) {
    size_t at = 0, places = weights.size < 4 ? 1 : weights.size - 3;
    for (int i = 0; i < model->count; i++)
        for (size_t j = 0; j < model->parameters[i].count; j++) {
            float value = 0;
            if (weights.size >= 4) memcpy(&value, weights.data + at, 4);
            model->parameters[i].value[j] = isfinite(value) ? value : 0;
            for (at += 4; at >= places;) at -= places;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int widths[] = {2, 6, 32, 34};
    Input input = {data, size};
    Type type = take_byte(&input) % TYPE_COUNT;
    GPT2Config config = {.L = 1 + (int)take_byte(&input) % 2, .NH = 2};
    unsigned width = take_byte(&input),
             is_wide = size % 16 == 0; // for few inputs, for these take a hundred times as long
    config.C = widths[width < 16 ? width % (is_wide ? 4 : 2) : 0];
    config.max_T = 1 + (int)take_byte(&input) % 8;
    Input merges = take_part(&input);
    const Tokenizer *tokenizer = make_vocabulary(&merges);
    Error error;
    Model model = {.adds_bos = 1};
    config.V = tokenizer_vocab_size(tokenizer);
    allocate(&model, &config);
    fill(&model.tensors, input);
    if (write_gguf("model.gguf", &model, tokenizer, type, &error) == 0)
        read_back("model.gguf", &model.tensors);
    else
        EXPECT(strstr(error.text, "use --type "));
    release(&model);
    memory_files_clear();
    return 0;
}
