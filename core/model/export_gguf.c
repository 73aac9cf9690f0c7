// export_gguf: a softmax GPT-2 with its vocabulary as one GGUF file, which llama.cpp opens.
//
// GGUF: a header of counts, a list of named values, a list of tensors, then the tensors' numbers. Matrices are (out,in)
// there; shapes are written innermost first. With fewer bits (--type) only matrices have them: norms, biases and
// positions stay F32, as in llama.cpp's own files.
#include "attention/attention.h"
#include "dataloader/tokenizer.h"
#include "checkpoint.h"
#include "core/base/file.h"
#include "gpt2_config.h"
#include "gpt2_parameters.h"
#include "llmc_model.h"
#include "strict.h"
#include "core/base/memory.h"
#include "core/base/options.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GGUF_VERSION = 3, GGUF_ALIGNMENT = 32, GGUF_NORMAL_TOKEN = 1, GGUF_CONTROL_TOKEN = 3 };
typedef enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_FLOAT = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 } GgufType;

typedef struct {
    ModelTensors tensors;
    char *tokenizer_path; // NULL: none beside the model
    int adds_bos;         // it expects end-of-text before a text
} Model;

// ---- numbers in the file

typedef enum { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_COUNT } Type;
#define TYPE_CHOICES "f32|f16|bf16|q8_0"
enum { Q8_0_NUMBERS = 32, Q8_0_BYTES = 34 }; // a block: its scale in half precision, then int8

// Rounded to nearest even; beyond the range it is infinity, which write_tensors refuses.
static uint16_t half_of(float value) {
    uint32_t bits, sign;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000, bits &= 0x7fffffff;
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // 65520 and above
    if (bits < 0x38800000) {                                  // below 2^-14: a multiple of 2^-24
        float magnitude;
        memcpy(&magnitude, &bits, sizeof bits);
        return (uint16_t)(sign | (uint32_t)lrintf(magnitude * 0x1p24f));
    }
    return (uint16_t)(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

static void encode_f32(unsigned char *out, const float *in, size_t count) {
    memcpy(out, in, count * sizeof *in);
}

static void encode_f16(unsigned char *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) memcpy(out + 2 * i, &(uint16_t){half_of(in[i])}, 2);
}

static void encode_bf16(unsigned char *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        memcpy(out + 2 * i, &(uint16_t){(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)}, 2);
    }
}

// In each block the largest magnitude is 127 scales. The scale is rounded after the numbers were divided by it, as
// llama.cpp does; a block whose scale rounds to 0 is all zeros.
static void encode_q8_0(unsigned char *out, const float *in, size_t count) {
    for (size_t block = 0; block < count / Q8_0_NUMBERS; block++, in += Q8_0_NUMBERS, out += Q8_0_BYTES) {
        float largest = 0;
        for (int i = 0; i < Q8_0_NUMBERS; i++) largest = fmaxf(largest, fabsf(in[i]));
        float scale = largest / 127;
        uint16_t rounded = half_of(scale);
        float inverse = rounded ? 1 / scale : 0;
        memcpy(out, &rounded, 2);
        for (int i = 0; i < Q8_0_NUMBERS; i++) out[2 + i] = (unsigned char)(int8_t)roundf(in[i] * inverse);
    }
}

static const struct {
    uint32_t tensor_type, file_type; // llama.cpp's numbers
    size_t block, block_bytes;
    void (*encode)(unsigned char *out, const float *in, size_t count);
} types[TYPE_COUNT] = {
    [TYPE_F32] = {0, 0, 1, 4, encode_f32},
    [TYPE_F16] = {1, 1, 1, 2, encode_f16},
    [TYPE_BF16] = {30, 32, 1, 2, encode_bf16},
    [TYPE_Q8_0] = {8, 7, Q8_0_NUMBERS, Q8_0_BYTES, encode_q8_0},
};

// ---- what stands before the tensors' numbers, in memory

typedef struct {
    char *bytes;
    size_t size, capacity;
    uint64_t values; // named values so far
} Header;

static void put(Header *header, const void *data, size_t bytes) {
    if (header->size + bytes > header->capacity) {
        header->capacity = 2 * (header->size + bytes);
        header->bytes = memory_resize(header->bytes, header->capacity, 1, "the GGUF header");
    }
    memcpy(header->bytes + header->size, data, bytes);
    header->size += bytes;
}

static void put_u32(Header *header, uint32_t value) {
    put(header, &value, sizeof value);
}

static void put_u64(Header *header, uint64_t value) {
    put(header, &value, sizeof value);
}

static void put_string(Header *header, const char *text) {
    put_u64(header, strlen(text));
    put(header, text, strlen(text));
}

static void begin_value(Header *header, const char *key, GgufType type) {
    put_string(header, key);
    put_u32(header, type);
    header->values++;
}

static void value_u32(Header *header, const char *key, uint32_t value) {
    begin_value(header, key, GGUF_U32);
    put_u32(header, value);
}

static void value_string(Header *header, const char *key, const char *text) {
    begin_value(header, key, GGUF_STRING);
    put_string(header, text);
}

// Begins an array; returns where its length stands.
static size_t begin_array(Header *header, const char *key, GgufType type) {
    begin_value(header, key, GGUF_ARRAY);
    put_u32(header, type);
    put_u64(header, 0);
    return header->size - sizeof(uint64_t);
}

typedef struct {
    Header *header;
    uint64_t count;
} StringArray;

static int add_string(void *context, uint32_t id, const char *text) {
    StringArray *array = context;
    (void)id;
    put_string(array->header, text);
    array->count++;
    return 0;
}

static void put_vocabulary(Header *header, const Tokenizer *tokenizer, int adds_bos) {
    uint32_t end = tokenizer_end_of_text(tokenizer);
    uint64_t count = (uint64_t)end + 1;
    StringArray names = {.header = header}, merges = {.header = header};
    value_string(header, "tokenizer.ggml.model", "gpt2");
    value_string(header, "tokenizer.ggml.pre", "gpt-2");
    size_t length = begin_array(header, "tokenizer.ggml.tokens", GGUF_STRING);
    tokenizer_visit_names(tokenizer, add_string, &names);
    memcpy(header->bytes + length, &names.count, sizeof names.count);
    length = begin_array(header, "tokenizer.ggml.token_type", GGUF_I32);
    for (uint32_t id = 0; id <= end; id++) put_u32(header, id == end ? GGUF_CONTROL_TOKEN : GGUF_NORMAL_TOKEN);
    memcpy(header->bytes + length, &count, sizeof count);
    length = begin_array(header, "tokenizer.ggml.merges", GGUF_STRING);
    tokenizer_visit_merges(tokenizer, add_string, &merges);
    memcpy(header->bytes + length, &merges.count, sizeof merges.count);
    value_u32(header, "tokenizer.ggml.bos_token_id", end);
    value_u32(header, "tokenizer.ggml.eos_token_id", end);
    begin_value(header, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
    put(header, &(uint8_t){adds_bos != 0}, 1);
}

static void put_sizes(Header *header, const GPT2Config *config, Type type) {
    const float epsilon = 1e-5f;
    value_string(header, "general.architecture", "gpt2");
    value_string(header, "general.name", "gpt2");
    value_u32(header, "general.file_type", types[type].file_type);
    if (type == TYPE_Q8_0) value_u32(header, "general.quantization_version", 2);
    value_u32(header, "gpt2.context_length", (uint32_t)config->max_T);
    value_u32(header, "gpt2.embedding_length", (uint32_t)config->C);
    value_u32(header, "gpt2.feed_forward_length", 4 * (uint32_t)config->C);
    value_u32(header, "gpt2.block_count", (uint32_t)config->L);
    value_u32(header, "gpt2.attention.head_count", (uint32_t)config->NH);
    begin_value(header, "gpt2.attention.layer_norm_epsilon", GGUF_FLOAT);
    put(header, &epsilon, sizeof epsilon);
}

// ---- tensors

static const char *const layer_names[LAYER_TENSORS] = {
    [LN1_WEIGHT] = "attn_norm.weight", [LN1_BIAS] = "attn_norm.bias",        [QKV_WEIGHT] = "attn_qkv.weight",
    [QKV_BIAS] = "attn_qkv.bias",      [PROJ_WEIGHT] = "attn_output.weight", [PROJ_BIAS] = "attn_output.bias",
    [LN2_WEIGHT] = "ffn_norm.weight",  [LN2_BIAS] = "ffn_norm.bias",         [FC_WEIGHT] = "ffn_up.weight",
    [FC_BIAS] = "ffn_up.bias",         [FCPROJ_WEIGHT] = "ffn_down.weight",  [FCPROJ_BIAS] = "ffn_down.bias",
};

// The name of parameter number i of the list.
static void tensor_name(char *name, size_t size, const ModelTensors *model, int i) {
    static const char *const first[] = {"token_embd.weight", "position_embd.weight"};
    static const char *const last[] = {"output_norm.weight", "output_norm.bias"};
    if (i < 2)
        snprintf(name, size, "%s", first[i]);
    else if (i >= model->count - 2)
        snprintf(name, size, "%s", last[i - (model->count - 2)]);
    else
        snprintf(name, size, "blk.%d.%s", (i - 2) / LAYER_TENSORS, layer_names[(i - 2) % LAYER_TENSORS]);
}

// The embeddings are laid out as they should be; the matrices of the layers are transposed.
static int is_transposed(int i, const Parameter *parameter) {
    return i >= 2 && parameter->rank == 2;
}

// The length of a row in the file.
static size_t inner_size(int i, const Parameter *p) {
    return p->shape[p->rank == 2 && !is_transposed(i, p)];
}

// How parameter number i is written: only matrices have fewer bits, and of them only those whose rows are whole blocks
// have Q8_0; the others of such a file are F16, as in llama.cpp's.
static Type type_of(int i, const Parameter *p, Type wanted) {
    int is_position = i == 1;
    if (p->rank < 2 || is_position) return TYPE_F32;
    return inner_size(i, p) % types[wanted].block ? TYPE_F16 : wanted;
}

static size_t bytes_of(int i, const Parameter *p, Type wanted) {
    Type type = type_of(i, p, wanted);
    return p->count / types[type].block * types[type].block_bytes;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

// Returns the bytes of all tensors.
static uint64_t put_tensors(Header *header, const ModelTensors *model, Type type) {
    uint64_t offset = 0;
    for (int i = 0; i < model->count; i++) {
        const Parameter *p = &model->parameters[i];
        char name[80];
        tensor_name(name, sizeof name, model, i);
        put_string(header, name);
        put_u32(header, (uint32_t)p->rank);
        put_u64(header, inner_size(i, p));
        if (p->rank == 2) put_u64(header, p->count / inner_size(i, p));
        put_u32(header, types[type_of(i, p, type)].tensor_type);
        put_u64(header, offset);
        offset += aligned(bytes_of(i, p, type));
    }
    return offset;
}

static void transpose(float *out, const float *in, size_t rows, size_t columns) {
    enum { TILE = 32 };
#pragma omp parallel for schedule(static)
    for (size_t c0 = 0; c0 < columns; c0 += TILE)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = c0; c < c0 + TILE && c < columns; c++) out[c * rows + r] = in[r * columns + c];
}

static int write_padding(FileWriter *writer, Error *error) {
    static const char zeros[GGUF_ALIGNMENT];
    return file_write(writer, zeros, (size_t)(aligned(writer->written) - writer->written), error);
}

// Half precision ends at 65504, and a bfloat16 rounds up to infinity from half a step above its largest number on:
// larger weights, and blocks of them, would become infinity.
static int check_range(const FileWriter *writer, const Parameter *p, Type type, Error *error) {
    static const float limits[] = {FLT_MAX, 65504, 0x1.fep127f, 65504 * 127.0f}; // by Type
    float largest = 0, most = limits[type];
    for (size_t j = 0; j < p->count; j++) largest = fmaxf(largest, fabsf((float)p->value[j]));
    if (largest <= most) return 0;
    return error_set(error, "%.600s: tensor %s: expected weights of at most %g, found %g; use --type %sf32",
                     writer->path, p->name, (double)most, (double)largest, type == TYPE_BF16 ? "" : "bf16 or ");
}

static int write_tensors(FileWriter *writer, const ModelTensors *model, Type wanted, Error *error) {
    size_t most = 4 * (size_t)model->config.C * (size_t)model->config.C, most_bytes = 0;
    for (int i = 0; i < model->count; i++) {
        size_t bytes = bytes_of(i, &model->parameters[i], wanted);
        if (bytes > most_bytes) most_bytes = bytes;
    }
    float *transposed = memory_allocate(most, sizeof *transposed, "a matrix to transpose");
    unsigned char *encoded = memory_allocate(most_bytes, 1, "a matrix to write");
    int failed = 0;
    for (int i = 0; i < model->count && !failed; i++) {
        const Parameter *p = &model->parameters[i];
        const float *numbers = (const float *)p->value;
        Type type = type_of(i, p, wanted);
        if (is_transposed(i, p)) transpose(transposed, numbers, p->shape[0], p->shape[1]), numbers = transposed;
        types[type].encode(encoded, numbers, p->count);
        failed = check_range(writer, p, type, error) || file_write(writer, encoded, bytes_of(i, p, wanted), error) ||
                 write_padding(writer, error);
    }
    free(transposed), free(encoded);
    return failed ? -1 : 0;
}

static int write_gguf(const char *path, const Model *source, const Tokenizer *tokenizer, Type type, Error *error) {
    const ModelTensors *model = &source->tensors;
    Header header = {0};
    FileWriter writer;
    put(&header, "GGUF", 4);
    put_u32(&header, GGUF_VERSION);
    put_u64(&header, (uint64_t)model->count);
    size_t value_count = header.size;
    put_u64(&header, 0);
    put_sizes(&header, &model->config, type);
    put_vocabulary(&header, tokenizer, source->adds_bos);
    memcpy(header.bytes + value_count, &header.values, sizeof header.values);
    uint64_t bytes = put_tensors(&header, model, type);
    int failed = file_writer_open(&writer, path, aligned(header.size) + bytes, error);
    if (!failed) {
        failed = file_write(&writer, header.bytes, header.size, error) || write_padding(&writer, error) ||
                 write_tensors(&writer, model, type, error) || file_writer_commit(&writer, error);
        if (failed) file_writer_abort(&writer);
    }
    free(header.bytes);
    return failed ? -1 : 0;
}

// ---- reading

static AttentionStack softmax(void) {
    return attention_stack_of(attention_find("softmax"), &(AttentionConfig){0});
}

static void allocate(Model *model, const GPT2Config *config) {
    ModelTensors *tensors = &model->tensors;
    *tensors = (ModelTensors){.config = *config, .stack = softmax()};
    tensors->parameters = gpt2_list_parameters(config, &tensors->stack, &tensors->count);
    for (int i = 0; i < tensors->count; i++)
        tensors->parameters[i].value = memory_allocate(tensors->parameters[i].count, sizeof(real), "the weights");
}

static void release(Model *model) {
    for (int i = 0; i < model->tensors.count; i++) free(model->tensors.parameters[i].value);
    free(model->tensors.parameters);
    free(model->tokenizer_path);
}

static int read_llmc(Model *model, const char *path, Error *error) {
    LlmcModel file;
    if (llmc_model_open(&file, path, error)) return -1;
    allocate(model, &file.config);
    int result = model_read_llmc(&model->tensors, &file, error);
    llmc_model_close(&file);
    return result;
}

static int refuse_other_models(const Checkpoint *checkpoint, const GPT2Config *config, Error *error) {
    const json_t *attention = gpt2_config_attention(checkpoint->config);
    const char *name = json_string_value(json_object_get(attention, "name"));
    if (!attention && config->positions == POSITIONS_LEARNED) return 0;
    if (!attention)
        return error_set(error, "%.700s: expected learned positions, found none; other programs need them",
                         checkpoint->path);
    return error_set(
        error, "%.700s: expected softmax attention, found %.40s%s; no other program knows how to compute it",
        checkpoint->path, name ? name : "several", name && !strcmp(name, "softmax") ? " with options" : "");
}

static int read_checkpoint(Model *model, const char *path, Error *error) {
    Checkpoint checkpoint;
    GPT2Config config;
    if (checkpoint_open_newest(&checkpoint, path, CHECKPOINT_WEIGHTS, error)) return -1;
    AttentionStack stack = softmax();
    int failed = gpt2_config_from_json(&config, checkpoint.config, checkpoint.path, error) ||
                 refuse_other_models(&checkpoint, &config, error) ||
                 model_check_checkpoint(&config, &stack, &checkpoint, MODEL_WEIGHTS, error) ||
                 checkpoint_adds_bos(&checkpoint, &model->adds_bos, error);
    if (!failed) {
        allocate(model, &config);
        failed = model_read_checkpoint(&model->tensors, &checkpoint, MODEL_WEIGHTS, error);
        model->tokenizer_path = checkpoint_tokenizer(&checkpoint);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int load_tokenizer(Tokenizer **tokenizer, const Model *model, const char *path, Error *error) {
    int V = model->tensors.config.V;
    if (!path) path = model->tokenizer_path;
    if (!path) path = "data/gpt2.tiktoken";
    if (tokenizer_load(tokenizer, path, V, error)) return -1;
    if (tokenizer_vocab_size(*tokenizer) == V) return 0;
    error_set(error, "%.700s: expected a vocabulary of %d tokens for this model, found %d; give --tokenizer", path, V,
              tokenizer_vocab_size(*tokenizer));
    tokenizer_free(*tokenizer);
    return -1;
}

int main(int argc, char **argv) {
    Options options = {
        .usage = "usage: export_gguf MODEL OUT.gguf [options]\n"
                 "A softmax model with its vocabulary as a GGUF file for llama.cpp. MODEL is a run, a checkpoint,\n"
                 "a Hugging Face GPT-2 directory or an llm.c model file.",
    };
    const char *paths[2], *tokenizer_path = NULL;
    int type = TYPE_F32;
    // clang-format off
    const Option items[] = {
        {"files", "tokenizer", 0, OPTION_STRING, &tokenizer_path, 0, 0, "FILE",
         "vocabulary; default: the checkpoint's, or data/gpt2.tiktoken", 0, ""},
        {"files", "type", 0, OPTION_CHOICE, &type, 0, 0, TYPE_CHOICES, "of the numbers in the matrices", 0, ""},
    };
    // clang-format on
    Model model = {0};
    Tokenizer *tokenizer;
    Error error;
    int given = 0;
    error_set_program(argv[0]);
    options_add(&options, items, sizeof items / sizeof *items);
    strict_add_option(&options, "files");
    die_if(options_parse(&options, argc, argv, paths, 2, &given, &error), &error);
    if (given < 2) die("expected a model and the file to write, found %d of them; see --help", given);
    die_if(llmc_model_is(paths[0]) ? read_llmc(&model, paths[0], &error) : read_checkpoint(&model, paths[0], &error),
           &error);
    die_if(load_tokenizer(&tokenizer, &model, tokenizer_path, &error), &error);
    die_if(write_gguf(paths[1], &model, tokenizer, (Type)type, &error), &error);
    printf("%s: %llu weights, %d tokens\n", paths[1], (unsigned long long)gpt2_config_parameters(&model.tensors.config),
           model.tensors.config.V);
    tokenizer_free(tokenizer);
    release(&model);
    return 0;
}
