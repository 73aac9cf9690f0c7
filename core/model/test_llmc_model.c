// llm.c's model files: written here from known numbers, read back under Hugging Face's names, refused when damaged.
#define _GNU_SOURCE
#include "gpt2_parameters.h"
#include "core/base/memory.h"
#include "core/base/test.h"
#include "core/base/test_files.h"

// Sizes that are all different, so that a wrong stride shows. 33 is more than one tile of the transposition.
enum { MAX_T = 5, V = 7, L = 3, NH = 3, C = 33, PADDED_V = 9 };

// Number i of the file. bfloat16 keeps 8 bits: these are exact in it.
static float number(uint64_t i) {
    return (float)(int)(i % 251 - 125);
}

static uint64_t total_numbers(void) {
    return (PADDED_V + MAX_T) * C + L * (12 * C * C + 13 * C) + 2 * C;
}

static const char *write_model(int version, size_t bytes_per_number) {
    const char *path = test_path("model.bin");
    uint64_t count = total_numbers();
    size_t size = LLMC_HEADER_BYTES + count * bytes_per_number;
    unsigned char *file = memory_allocate_zeroed(size, 1, "a model file");
    int32_t header[8] = {LLMC_MAGIC, version, MAX_T, V, L, NH, C, PADDED_V};
    memcpy(file, header, sizeof header);
    for (uint64_t i = 0; i < count; i++) {
        float value = number(i);
        memcpy(file + LLMC_HEADER_BYTES + i * bytes_per_number, (char *)&value + 4 - bytes_per_number,
               bytes_per_number);
    }
    test_write(path, file, size);
    free(file);
    return path;
}

// Reads one tensor and compares it with the numbers from `offset` on; matrices come out transposed.
static void check_tensor(const LlmcModel *model, const char *name, int rank, uint64_t rows, uint64_t columns,
                         uint64_t offset, int transposed) {
    Tensor wanted = {name, DTYPE_F32, rank, {rows, columns}, NULL};
    uint64_t elements = tensor_elements(&wanted);
    float *out = memory_allocate_zeroed(elements, sizeof *out, name);
    Error error = {""};
    wanted.data = out;
    CHECK(llmc_model_read(model, &wanted, 1, &error) == 0);
    for (uint64_t i = 0; i < elements; i++) {
        uint64_t r = rank == 2 ? i / columns : 0, c = rank == 2 ? i % columns : i;
        uint64_t in_file = transposed ? c * rows + r : i;
        CHECK(out[i] == number(offset + in_file));
    }
    free(out);
}

static void check_all(int version, size_t bytes_per_number) {
    static const struct {
        const char *name;
        int rank;
        uint64_t rows, columns; // as wanted
    } kinds[] = {
        {"ln_1.weight", 1, C, 0},
        {"ln_1.bias", 1, C, 0},
        {"attn.c_attn.weight", 2, C, 3 * C},
        {"attn.c_attn.bias", 1, 3 * C, 0},
        {"attn.c_proj.weight", 2, C, C},
        {"attn.c_proj.bias", 1, C, 0},
        {"ln_2.weight", 1, C, 0},
        {"ln_2.bias", 1, C, 0},
        {"mlp.c_fc.weight", 2, C, 4 * C},
        {"mlp.c_fc.bias", 1, 4 * C, 0},
        {"mlp.c_proj.weight", 2, 4 * C, C},
        {"mlp.c_proj.bias", 1, C, 0},
    };
    LlmcModel model;
    Error error = {""};
    const char *path = write_model(version, bytes_per_number);
    CHECK(llmc_model_is(path));
    CHECK(llmc_model_open(&model, path, &error) == 0);
    CHECK(model.config.max_T == MAX_T && model.config.V == V && model.config.L == L);
    CHECK(model.config.NH == NH && model.config.C == C && model.padded_V == PADDED_V);
    uint64_t offset = 0;
    check_tensor(&model, "transformer.wte.weight", 2, V, C, offset, 0);
    offset += PADDED_V * C;
    check_tensor(&model, "wpe.weight", 2, MAX_T, C, offset, 0); // the prefix may be missing
    offset += MAX_T * C;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int layer = 0; layer < L; layer++) {
            char name[64];
            snprintf(name, sizeof name, "transformer.h.%d.%s", layer, kinds[k].name);
            check_tensor(&model, name, kinds[k].rank, kinds[k].rows, kinds[k].columns, offset, kinds[k].rank == 2);
            offset += kinds[k].rows * (kinds[k].rank == 2 ? kinds[k].columns : 1);
        }
    check_tensor(&model, "transformer.ln_f.weight", 1, C, 0, offset, 0);
    check_tensor(&model, "transformer.ln_f.bias", 1, C, 0, offset + C, 0);
    CHECK(offset + 2 * C == total_numbers());
    llmc_model_close(&model);
    llmc_model_close(&model);
}

static void test_float(void) {
    check_all(LLMC_VERSION_F32, 4);
}
static void test_bfloat16(void) {
    check_all(LLMC_VERSION_BF16, 2);
}

// ---- writing

// A file that was read and written again is the same, but for the rows that pad the vocabulary: they are zeros.
static void check_written(int version, size_t bytes_per_number) {
    LlmcModel model;
    Error error = {""};
    const char *path = write_model(version, bytes_per_number), *copy = test_path("copy.bin");
    CHECK(llmc_model_open(&model, path, &error) == 0);
    AttentionStack stack = attention_stack_of(attention_find("softmax"), &(AttentionConfig){0});
    int count;
    Parameter *list = gpt2_list_parameters(&model.config, &stack, &count);
    Tensor tensors[4 + L * LAYER_TENSORS];
    for (int i = 0; i < count; i++) {
        float *data = memory_allocate(list[i].count, sizeof *data, "a tensor");
        tensors[i] = (Tensor){list[i].name, DTYPE_F32, list[i].rank, {list[i].shape[0], list[i].shape[1]}, data};
    }
    CHECK(llmc_model_read(&model, tensors, count, &error) == 0);
    CHECK(llmc_model_write(copy, &model, tensors, count, &error) == 0);
    char *before, *after;
    size_t size, written;
    CHECK(file_read(&before, &size, path, 1 << 24, &error) == 0);
    CHECK(file_read(&after, &written, copy, 1 << 24, &error) == 0);
    memset(before + LLMC_HEADER_BYTES + V * C * bytes_per_number, 0, (PADDED_V - V) * C * bytes_per_number);
    CHECK(size == written && memcmp(before, after, size) == 0);
    CHECK(llmc_model_write(copy, &model, tensors, count - 1, &error) == -1); // without ln_f.bias
    CHECK_CONTAINS(error.text, "the model has no ln_f.bias");
    for (int i = 0; i < count; i++) free((void *)tensors[i].data);
    free(before), free(after), free(list);
    llmc_model_close(&model);
}

static void test_written_float(void) {
    check_written(LLMC_VERSION_F32, 4);
}
static void test_written_bfloat16(void) {
    check_written(LLMC_VERSION_BF16, 2);
}

// ---- refusals

static void check_refused(const char *path, const char *part) {
    LlmcModel model;
    Error error = {""};
    CHECK(llmc_model_open(&model, path, &error) == -1);
    CHECK_CONTAINS(error.text, path);
    CHECK_CONTAINS(error.text, part);
    CHECK(model.path == NULL && model.file.data == NULL);
}

static void test_bad_header(void) {
    static const struct {
        int word;
        int32_t value;
        const char *message;
    } bad[] = {
        {0, 20240520, "expected the magic number 20240326"},
        {1, 1, "found 1"},
        {1, 4, "expected version 3 (float) or 5 (bfloat16)"},
        {1, LLMC_VERSION_BF16, "bytes by its header"}, // the size of a float file
        {2, 0, "n_positions"},
        {2, INT32_MAX, "n_positions"},
        {3, -1, "vocab_size"},
        {3, INT32_MAX, "vocab_size"},
        {4, 0, "n_layer"},
        {4, INT32_MAX, "n_layer"},
        {5, 4, "multiple of n_head = 4"},
        {5, 0, "n_head"},
        {5, INT32_MIN, "n_head"},
        {6, INT32_MAX, "n_embd"},
        {6, 65535, "bytes by its header"},
        {7, V - 1, "padded vocabulary"},
        {7, INT32_MAX, "padded vocabulary"},
        {7, PADDED_V + 1, "bytes by its header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = write_model(LLMC_VERSION_F32, 4);
        FILE *file = fopen(path, "r+b");
        fseek(file, 4 * bad[i].word, SEEK_SET);
        fwrite(&bad[i].value, 4, 1, file);
        fclose(file);
        check_refused(path, bad[i].message);
    }
}

static void test_bad_size(void) {
    const char *path = write_model(LLMC_VERSION_F32, 4), *empty = test_path("empty.bin");
    off_t size = (off_t)(LLMC_HEADER_BYTES + 4 * total_numbers());
    CHECK(truncate(path, size - 1) == 0);
    check_refused(path, "cut short");
    CHECK(truncate(path, size + 1) == 0);
    check_refused(path, "bytes by its header");
    CHECK(truncate(path, LLMC_HEADER_BYTES - 1) == 0);
    check_refused(path, "at least 1024 bytes");
    test_write(empty, "", 0);
    check_refused(empty, "found 0");
    CHECK(!llmc_model_is(empty) && !llmc_model_is(test_directory) && !llmc_model_is(test_path("missing")));
    check_refused(test_directory, "found a directory");
    check_refused(test_path("missing"), "cannot open");
}

static void test_bad_requests(void) {
    float out[4 * C * C];
    LlmcModel model;
    Error error = {""};
    CHECK(llmc_model_open(&model, write_model(LLMC_VERSION_F32, 4), &error) == 0);
    static const char *const unknown[] = {"transformer.h.3.ln_1.bias",
                                          "transformer.h.-1.ln_1.bias",
                                          "h.0.attn.omega",
                                          "transformer.ln_1.bias",
                                          "transformer.h.0.ln_f.bias",
                                          "h.0",
                                          ""};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        Tensor wanted = {unknown[i], DTYPE_F32, 1, {C}, out};
        CHECK(llmc_model_read(&model, &wanted, 1, &error) == -1);
        CHECK_CONTAINS(error.text, "plain softmax GPT-2 only");
    }
    Tensor transposed = {"h.0.mlp.c_fc.weight", DTYPE_F32, 2, {4 * C, C}, out};
    CHECK(llmc_model_read(&model, &transposed, 1, &error) == -1);
    CHECK_CONTAINS(error.text, "expected shape (132,33), found (33,132)");
    llmc_model_close(&model);
}

static void test_not_finite(void) {
    float out[C], nan = NAN;
    LlmcModel model;
    Error error = {""};
    const char *path = write_model(LLMC_VERSION_F32, 4);
    FILE *file = fopen(path, "r+b");
    fseek(file, -8, SEEK_END); // the last but one of ln_f.bias
    fwrite(&nan, 4, 1, file);
    fclose(file);
    CHECK(llmc_model_open(&model, path, &error) == 0);
    Tensor wanted = {"transformer.ln_f.bias", DTYPE_F32, 1, {C}, out};
    CHECK(llmc_model_read(&model, &wanted, 1, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.ln_f.bias: expected finite numbers, found NaN at index 31");
    llmc_model_close(&model);
}

static LlmcModel shrinking;

static void read_shrunken(void) {
    static float out[V * C];
    Tensor wanted = {"wte.weight", DTYPE_F32, 2, {V, C}, out};
    Tensor last = {"ln_f.bias", DTYPE_F32, 1, {C}, out};
    Error error = {""};
    if (llmc_model_read(&shrinking, &wanted, 1, &error)) _exit(3); // still there
    llmc_model_read(&shrinking, &last, 1, &error);
    _exit(2);
}

static void test_shrinks_while_read(void) {
    char said[2048];
    Error error = {""};
    const char *path = write_model(LLMC_VERSION_F32, 4);
    CHECK(llmc_model_open(&shrinking, path, &error) == 0 && truncate(path, 8192) == 0);
    CHECK(run_apart(read_shrunken, said, sizeof said) == 1);
    CHECK_CONTAINS(said, "model.bin: the file shrank or was removed while in use");
    llmc_model_close(&shrinking);
}

int main(void) {
    test_directory_make();
    RUN(test_float);
    RUN(test_bfloat16);
    RUN(test_written_float);
    RUN(test_written_bfloat16);
    RUN(test_bad_header);
    RUN(test_bad_size);
    RUN(test_bad_requests);
    RUN(test_not_finite);
    RUN(test_shrinks_while_read);
    return test_summary();
}
