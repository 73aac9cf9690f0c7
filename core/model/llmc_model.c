#include "llmc_model.h"
#include "strict.h"
#include "core/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The kinds of weights in the file's order; sizes in units of C. `in` is 0 for vectors, `out` for the two embeddings.
typedef struct {
    const char *name; // after "h.LAYER." for those that every layer has
    int per_layer;
    int out, in;
} Kind;

static const Kind kinds[] = {
    {"wte.weight", 0, 0, 1},         {"wpe.weight", 0, 0, 1},         {"ln_1.weight", 1, 1, 0},
    {"ln_1.bias", 1, 1, 0},          {"attn.c_attn.weight", 1, 3, 1}, {"attn.c_attn.bias", 1, 3, 0},
    {"attn.c_proj.weight", 1, 1, 1}, {"attn.c_proj.bias", 1, 1, 0},   {"ln_2.weight", 1, 1, 0},
    {"ln_2.bias", 1, 1, 0},          {"mlp.c_fc.weight", 1, 4, 1},    {"mlp.c_fc.bias", 1, 4, 0},
    {"mlp.c_proj.weight", 1, 1, 4},  {"mlp.c_proj.bias", 1, 1, 0},    {"ln_f.weight", 0, 1, 0},
    {"ln_f.bias", 0, 1, 0},
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds, PADDED_V_MAX = 1 << 21 };

// ---- sizes; the limits of gpt2_config_check keep all of this within 64 bits

// One layer's tensor of a kind, in the shape it has in the file.
static Tensor file_shape(const LlmcModel *model, const Kind *kind) {
    uint64_t C = (uint64_t)model->config.C, rows = (uint64_t)kind->out * C;
    if (kind == &kinds[0]) rows = (uint64_t)model->padded_V;
    if (kind == &kinds[1]) rows = (uint64_t)model->config.max_T;
    return (Tensor){kind->name, model->dtype, kind->in ? 2 : 1, {rows, (uint64_t)kind->in * C}, NULL};
}

static uint64_t kind_bytes(const LlmcModel *model, const Kind *kind) {
    Tensor tensor = file_shape(model, kind);
    return tensor_bytes(&tensor) * (kind->per_layer ? (uint64_t)model->config.L : 1);
}

static uint64_t file_bytes(const LlmcModel *model) {
    uint64_t total = LLMC_HEADER_BYTES;
    for (int i = 0; i < KIND_COUNT; i++) total += kind_bytes(model, &kinds[i]);
    return total;
}

// ---- opening

int llmc_model_is(const char *path) {
    return file_magic(path) == LLMC_MAGIC;
}

static int parse_header(LlmcModel *model, Error *error) {
    int32_t header[8] = {0};
    if (model->file.size < LLMC_HEADER_BYTES)
        return error_set(error, "%.700s: expected an llm.c model of at least %d bytes, found %zu; copy it again",
                         model->path, LLMC_HEADER_BYTES, model->file.size);
    memcpy(header, model->file.data, sizeof header);
    if (header[0] != LLMC_MAGIC)
        return error_set(error,
                         "%.700s: expected the magic number %d of an llm.c model, found %" PRId32
                         "; is it a file of another kind?",
                         model->path, LLMC_MAGIC, header[0]);
    if (header[1] != LLMC_VERSION_F32 && header[1] != LLMC_VERSION_BF16)
        return error_set(error,
                         "%.700s: expected version %d (float) or %d (bfloat16), found %" PRId32
                         "; write the model again with llm.c's train_gpt2.py",
                         model->path, LLMC_VERSION_F32, LLMC_VERSION_BF16, header[1]);
    model->dtype = header[1] == LLMC_VERSION_F32 ? DTYPE_F32 : DTYPE_BF16;
    model->config = (GPT2Config){.max_T = header[2], .V = header[3], .L = header[4], .NH = header[5], .C = header[6]};
    model->padded_V = header[7];
    if (gpt2_config_check(&model->config, model->path, error)) return -1;
    if (model->padded_V >= model->config.V && model->padded_V <= PADDED_V_MAX) return 0;
    return error_set(error, "%.700s: padded vocabulary: expected at least %d, found %d; the header is damaged",
                     model->path, model->config.V, model->padded_V);
}

static int check_size(const LlmcModel *model, Error *error) {
    uint64_t expected = file_bytes(model);
    if (model->file.size == expected) return 0;
    return error_set(error,
                     "%.700s: expected %" PRIu64 " bytes by its header, found %zu; the file is cut short or "
                     "damaged: copy it again",
                     model->path, expected, model->file.size);
}

int llmc_model_open(LlmcModel *model, const char *path, Error *error) {
    *model = (LlmcModel){0};
    if (file_map(&model->file, path, error)) return -1;
    model->path = memory_copy_string(path);
    if (parse_header(model, error) == 0 && check_size(model, error) == 0 &&
        strict_check(0, path, "a file of llm.c's, which has none", error) == 0)
        return 0;
    llmc_model_close(model);
    return -1;
}

void llmc_model_close(LlmcModel *model) {
    free(model->path);
    file_unmap(&model->file);
    *model = (LlmcModel){0};
}

// ---- reading

// Splits "transformer.h.3.ln_1.bias" into layer 3 and the kind ln_1.bias; NULL when there is no such tensor.
static const Kind *find_kind(const LlmcModel *model, const char *name, int *layer) {
    int used = 0, per_layer = 0;
    *layer = 0;
    if (strncmp(name, "transformer.", 12) == 0) name += 12;
    if (sscanf(name, "h.%9d.%n", layer, &used) == 1 && used > 0) {
        per_layer = 1;
        name += used;
    }
    if (*layer < 0 || (per_layer && *layer >= model->config.L)) return NULL;
    for (int i = 0; i < KIND_COUNT; i++)
        if (kinds[i].per_layer == per_layer && strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

// The tensor as it stands in the file.
static Tensor locate(const LlmcModel *model, const Kind *kind, int layer) {
    const unsigned char *data = model->file.data + LLMC_HEADER_BYTES;
    for (const Kind *before = kinds; before < kind; before++) data += kind_bytes(model, before);
    Tensor tensor = file_shape(model, kind);
    tensor.data = data + (uint64_t)layer * tensor_bytes(&tensor);
    return tensor;
}

// out (columns,rows) = in (rows,columns) transposed, in square tiles that stay in the cache.
static void transpose(float *out, const float *in, uint64_t rows, uint64_t columns) {
    enum { TILE = 32 };
#pragma omp parallel for schedule(static)
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE)
        for (uint64_t c0 = 0; c0 < columns; c0 += TILE)
            for (uint64_t c = c0; c < c0 + TILE && c < columns; c++)
                for (uint64_t r = r0; r < r0 + TILE && r < rows; r++) out[c * rows + r] = in[r * columns + c];
}

static int read_tensor(const LlmcModel *model, const Tensor *wanted, Error *error) {
    int layer = 0;
    const Kind *kind = find_kind(model, wanted->name, &layer);
    if (!kind)
        return error_set(error, "%.500s: expected a tensor %.255s; llm.c's files hold plain softmax GPT-2 only",
                         model->path, wanted->name);
    Tensor found = locate(model, kind, layer), expected = found;
    int matrix = kind->per_layer && kind->in;
    if (kind == &kinds[0]) expected.shape[0] = (uint64_t)model->config.V;
    if (matrix) expected.shape[0] = found.shape[1], expected.shape[1] = found.shape[0];
    if (wanted->rank != expected.rank ||
        memcmp(wanted->shape, expected.shape, (size_t)expected.rank * sizeof *expected.shape) != 0) {
        char ours[192], theirs[192];
        return error_set(error, "%.300s: tensor %.255s: expected shape %s, found %s; the sizes are of another model",
                         model->path, wanted->name, tensor_shape_text(wanted, ours, sizeof ours),
                         tensor_shape_text(&expected, theirs, sizeof theirs));
    }
    float *out = (float *)wanted->data, *scratch = NULL;
    if (matrix) scratch = memory_allocate(tensor_elements(&found), sizeof *scratch, "a matrix to transpose");
    if (!matrix) found.shape[0] = expected.shape[0]; // without the padding of the vocabulary
    tensor_to_floats(matrix ? scratch : out, &found);
    if (matrix) transpose(out, scratch, found.shape[0], found.shape[1]);
    free(scratch);
    return floats_check_finite(out, tensor_elements(wanted), model->path, wanted->name, error);
}

int llmc_model_read(const LlmcModel *model, const Tensor *wanted, int count, Error *error) {
    for (int i = 0; i < count; i++)
        if (read_tensor(model, &wanted[i], error)) return -1;
    return 0;
}

// ---- writing

int llmc_padded_vocabulary(int V) {
    return (V + 127) / 128 * 128;
}

static const Tensor *find_tensor(const Tensor *tensors, int count, const Kind *kind, int layer) {
    char name[64];
    if (kind->per_layer)
        snprintf(name, sizeof name, "transformer.h.%d.%s", layer, kind->name);
    else
        snprintf(name, sizeof name, "transformer.%s", kind->name);
    for (int i = 0; i < count; i++)
        if (!strcmp(tensors[i].name, name)) return &tensors[i];
    return NULL;
}

// The upper half of the float, rounded to the nearest, of two equally near to the even one. Weights are finite.
static uint16_t to_bfloat16(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A tensor in the file's order, shape and dtype: transposed, padded, rounded.
static int write_tensor(FileWriter *writer, const LlmcModel *model, const Kind *kind, const Tensor *tensor,
                        Error *error) {
    Tensor in_file = file_shape(model, kind);
    uint64_t elements = tensor_elements(&in_file), given = tensor_elements(tensor);
    float *numbers = memory_allocate_zeroed(elements, sizeof *numbers, "a tensor to write");
    if (kind->per_layer && kind->in)
        transpose(numbers, tensor->data, tensor->shape[0], tensor->shape[1]);
    else
        memcpy(numbers, tensor->data, (given < elements ? given : elements) * sizeof *numbers);
    if (model->dtype == DTYPE_BF16) // in place: the narrow ones never overtake the wide ones
        for (uint64_t i = 0; i < elements; i++) {
            uint16_t narrow = to_bfloat16(numbers[i]);
            memcpy((char *)numbers + 2 * i, &narrow, 2);
        }
    int result = file_write(writer, numbers, (size_t)tensor_bytes(&in_file), error);
    free(numbers);
    return result;
}

static int write_all(FileWriter *writer, const LlmcModel *model, const Tensor *tensors, int count, Error *error) {
    const GPT2Config *config = &model->config;
    int32_t version = model->dtype == DTYPE_F32 ? LLMC_VERSION_F32 : LLMC_VERSION_BF16;
    int32_t header[LLMC_HEADER_BYTES / 4] = {LLMC_MAGIC, version,    config->max_T, config->V,
                                             config->L,  config->NH, config->C,     model->padded_V};
    if (file_write(writer, header, sizeof header, error)) return -1;
    for (const Kind *kind = kinds; kind < kinds + KIND_COUNT; kind++)
        for (int layer = 0; layer < (kind->per_layer ? config->L : 1); layer++) {
            const Tensor *tensor = find_tensor(tensors, count, kind, layer);
            if (!tensor) return error_set(error, "%.700s: the model has no %s", writer->path, kind->name);
            if (write_tensor(writer, model, kind, tensor, error)) return -1;
        }
    return 0;
}

int llmc_model_write(const char *path, const LlmcModel *model, const Tensor *tensors, int count, Error *error) {
    FileWriter writer;
    if (file_writer_open(&writer, path, file_bytes(model), error)) return -1;
    if (write_all(&writer, model, tensors, count, error) == 0 && file_writer_commit(&writer, error) == 0) return 0;
    file_writer_abort(&writer);
    return -1;
}
