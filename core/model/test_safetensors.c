// safetensors: what is written comes back bit for bit, every dtype converts, and no damage gets through.
#define _GNU_SOURCE
#include "safetensors.h"
#include "core/base/test.h"
#include "core/base/test_files.h"

#include <math.h>
#include <omp.h>

// ---- files made by hand

// Writes length, header and `bytes` of data; `length` is the true one unless given.
static const char *write_raw(const char *header, uint64_t length, size_t bytes) {
    const char *path = test_path("raw.safetensors");
    size_t size = strlen(header);
    if (length == 0) length = size;
    unsigned char *file = calloc(1, 8 + size + bytes);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, size);
    for (size_t i = 0; i < bytes; i++) file[8 + size + i] = (unsigned char)i;
    test_write(path, file, 8 + size + bytes);
    free(file);
    return path;
}

// The file must be refused with a message that names it and contains `part`.
static void check_refused(const char *path, const char *part) {
    Safetensors file;
    Error error = {""};
    int status = safetensors_open(&file, path, &error);
    CHECK(status == -1);
    CHECK_CONTAINS(error.text, path);
    CHECK_CONTAINS(error.text, part);
    CHECK(file.tensors == NULL && file.header == NULL && file.file.data == NULL);
    safetensors_close(&file);
}

static void test_bad_headers(void) {
    static const struct {
        const char *header, *message;
        size_t data_bytes;
    } bad[] = {
        {"{\"a\":", "not valid JSON", 0},
        {"[1,2]", "expected a JSON object", 0},
        {"{}{}", "not valid JSON", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         "duplicate", 8},
        {"{\"__metadata__\":[],\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "__metadata__", 4},
        {"{\"__metadata__\":{\"k\":1}}", "expected a string", 0},
        {"{\"a\":5}", "expected a dtype", 0},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "expected a dtype", 4},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", "found F33", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "expected a shape", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "at most 8", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "dimension 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", "dimension 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", "dimension 1", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", "not valid JSON", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", "data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "found 4 to 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", "found -4 to 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "within 0 and 4", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", "within 0 and 4", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "need 8 bytes", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "a gap", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         "overlaps", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[0,4]}}",
         "overlaps", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[8,12]}}",
         "a gap", 12},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "expected 4 bytes", 5},
        {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "not valid JSON", 4},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int before = test_failures_here;
        check_refused(write_raw(bad[i].header, 0, bad[i].data_bytes), bad[i].message);
        if (test_failures_here > before) printf("    header: %s\n", bad[i].header);
    }
}

static void test_bad_lengths(void) {
    const char *path = test_path("raw.safetensors"), good[] = "{}";
    test_write(path, "", 0);
    check_refused(path, "at least 8 bytes, found 0");
    test_write(path, "x", 1);
    check_refused(path, "at least 8 bytes, found 1");
    test_write(path, "\0\0\0\0\0\0\0\0", 8);
    check_refused(path, "found length 0");
    check_refused(write_raw(good, 3, 0), "found length 3");
    check_refused(write_raw(good, 1, 0), "found length 1");
    check_refused(write_raw(good, (uint64_t)1 << 63, 0), "found length 9223372036854775808");
    check_refused(write_raw(good, UINT64_MAX, 0), "found length 18446744073709551615");
    check_refused(write_raw(good, UINT64_MAX - 7, 0), "found length");
    // A header above the limit of 100 MB in a (sparse) file that would hold it.
    write_raw(good, 100000001, 0);
    CHECK(truncate(path, 200000000) == 0);
    check_refused(path, "2 to 100000000 bytes");
}

static void test_long_name(void) {
    char header[1024], name[400];
    memset(name, 'n', sizeof name);
    snprintf(header, sizeof header, "{\"%.256s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    check_refused(write_raw(header, 0, 4), "longer than 255");
    snprintf(header, sizeof header, "{\"%.255s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    Safetensors file;
    Error error;
    CHECK(safetensors_open(&file, write_raw(header, 0, 4), &error) == 0);
    CHECK(safetensors_verify(&file, &error) == 0);
    safetensors_close(&file);
}

// Things that are no safetensors file at all, each with a hint at what it is.
static void test_other_files(void) {
    static const struct {
        const char *content, *message;
    } others[] = {
        {"<!DOCTYPE html><html><head><title>404</title></head></html>", "web page"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"},
        {"PK\003\004 archive/data.pkl", "PyTorch"},
        {"{\"weights\": [1, 2, 3]}", "plain JSON"},
    };
    const char *path = test_path("other.safetensors");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        test_write(path, others[i].content, strlen(others[i].content));
        check_refused(path, others[i].message);
    }
}

static void test_no_regular_file(void) {
    const char *fifo = test_path("fifo"), *loop = test_path("loop"), *closed = test_path("closed");
    check_refused(test_directory, "found a directory");
    check_refused(test_path("missing"), "cannot open");
    CHECK(mkfifo(fifo, 0600) == 0);
    check_refused(fifo, "expected a regular file");
    CHECK(symlink(loop, loop) == 0);
    check_refused(loop, "cannot open");
    test_write(closed, "secret", 6);
    CHECK(chmod(closed, 0) == 0);
    check_refused(closed, geteuid() == 0 ? "at least 8 bytes" : "cannot open"); // root may read everything
    check_refused("/dev/zero", "expected a regular file");
}

// ---- files made by the writer

static const float some_floats[6] = {1.5f, -0.0f, 0x1p-149f, 3.4e38f, -2.25f, 0.1f};
static const uint8_t some_bytes[5] = {0, 1, 2, 254, 255};
static const double some_doubles[2] = {0.1, -1e300};

static const char *write_sample(void) {
    const char *path = test_path("sample.safetensors");
    const Tensor tensors[] = {
        {"matrix", DTYPE_F32, 2, {2, 3}, some_floats},  {"bytes", DTYPE_U8, 1, {5}, some_bytes},
        {"vector", DTYPE_F32, 1, {3}, some_floats + 3}, {"nothing", DTYPE_F32, 2, {0, 7}, some_floats},
        {"scalar", DTYPE_F32, 0, {0}, some_floats + 5}, {"doubles", DTYPE_F64, 1, {2}, some_doubles},
        {"quo\"te\n", DTYPE_BOOL, 1, {2}, some_bytes},
    };
    json_t *metadata = json_pack("{s:s}", "author", "test");
    Error error = {""};
    CHECK(safetensors_write(path, tensors, 7, metadata, &error) == 0);
    json_decref(metadata);
    return path;
}

static void test_round_trip(void) {
    Safetensors file;
    Error error = {""};
    CHECK(safetensors_open(&file, write_sample(), &error) == 0);
    CHECK(file.count == 7);
    CHECK(((uintptr_t)file.tensors[0].data - (uintptr_t)file.file.data) % 64 == 0);
    CHECK(strcmp(safetensors_metadata(&file, "format"), "pt") == 0);
    CHECK(strcmp(safetensors_metadata(&file, "author"), "test") == 0);
    CHECK(safetensors_metadata(&file, "nobody") == NULL);
    CHECK(safetensors_find(&file, "nobody") == NULL);
    CHECK(safetensors_has_checksums(&file) && safetensors_verify(&file, &error) == 0);
    float matrix[6], vector[3], scalar[1], doubles[2];
    uint64_t shape[2] = {2, 3}, wrong[2] = {3, 2};
    CHECK(safetensors_read(matrix, &file, "matrix", 2, shape, &error) == 0);
    CHECK(memcmp(matrix, some_floats, sizeof matrix) == 0);
    CHECK(safetensors_read(vector, &file, "vector", 1, shape + 1, &error) == 0); // 5 bytes after a multiple of 8
    CHECK(memcmp(vector, some_floats + 3, sizeof vector) == 0);
    CHECK(safetensors_read(scalar, &file, "scalar", 0, shape, &error) == 0 && scalar[0] == 0.1f);
    CHECK(safetensors_read(doubles, &file, "doubles", 1, shape, &error) == 0);
    CHECK(doubles[0] == 0.1f && isinf(doubles[1]));
    CHECK(safetensors_find(&file, "quo\"te\n") != NULL);
    CHECK(safetensors_read(matrix, &file, "matrix", 2, wrong, &error) == -1);
    CHECK_CONTAINS(error.text, "expected shape (3,2), found (2,3)");
    CHECK(safetensors_read(matrix, &file, "matrix", 1, shape, &error) == -1);
    CHECK(safetensors_read(matrix, &file, "other", 2, shape, &error) == -1);
    CHECK_CONTAINS(error.text, "expected a tensor other");
    safetensors_close(&file);
    safetensors_close(&file);
}

static void test_writer_refuses(void) {
    const Tensor twice[] = {{"a", DTYPE_F32, 1, {1}, some_floats}, {"a", DTYPE_F32, 1, {1}, some_floats}};
    Error error = {""};
    CHECK(safetensors_write(test_path("twice"), twice, 2, NULL, &error) == -1);
    CHECK_CONTAINS(error.text, "same name");
    CHECK(safetensors_write("/nowhere/at/all", twice, 1, NULL, &error) == -1);
    CHECK_CONTAINS(error.text, "/nowhere/at/all");
    CHECK(!file_exists(test_path("twice")) && !file_exists(test_path("twice.tmp")));
}

static void test_damage(void) {
    size_t size = 0;
    const char *sample = write_sample(), *path = test_path("damaged.safetensors");
    unsigned char *good = test_read(sample, &size);
    Safetensors file;
    Error error = {""};
    CHECK(safetensors_open(&file, sample, &error) == 0);
    size_t data = (size_t)((const unsigned char *)file.tensors[0].data - file.file.data);
    uint64_t header_checksum = safetensors_header_checksum(&file);

    // Cut at every border between tensors, one byte short, one byte long.
    for (int i = 0; i < file.count; i++) {
        size_t end = (size_t)((const unsigned char *)file.tensors[i].data - file.file.data);
        if (end == size) continue;
        test_write(path, good, end);
        check_refused(path, "cut short");
    }
    test_write(path, good, size - 1);
    check_refused(path, "cut short");
    unsigned char *longer = calloc(1, size + 1);
    memcpy(longer, good, size);
    test_write(path, longer, size + 1);
    check_refused(path, "copy the file again");
    free(longer);

    // One bit flipped: in the data the tensor is named, in the header reading fails or the header's checksum tells.
    for (size_t i = 0; i < size; i++) {
        Safetensors damaged;
        test_write(path, good, size);
        test_flip_bit(path, i, (int)(i % 8));
        if (safetensors_open(&damaged, path, &error)) {
            CHECK(i < data);
            continue;
        }
        if (i < data)
            CHECK(safetensors_header_checksum(&damaged) != header_checksum);
        else
            CHECK(safetensors_verify(&damaged, &error) == -1 && strstr(error.text, "expected checksum"));
        safetensors_close(&damaged);
    }
    test_write(path, good, size);
    test_flip_bit(path, data + 24, 0);
    Safetensors damaged;
    CHECK(safetensors_open(&damaged, path, &error) == 0 && safetensors_verify(&damaged, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor bytes");
    safetensors_close(&damaged);
    safetensors_close(&file);
    free(good);
}

enum { SHRINKING_NUMBERS = 1 << 16 };
static Safetensors shrinking;

static void verify_shrunken(void) {
    Error error = {""};
    omp_set_num_threads(1); // threads do not survive a fork
    _exit(safetensors_verify(&shrinking, &error) ? 3 : 2);
}
static void convert_shrunken(void) {
    static float out[SHRINKING_NUMBERS];
    omp_set_num_threads(1);
    tensor_to_floats(out, &shrinking.tensors[0]);
    _exit(2);
}

// Another process cuts the file while it is read in place: one line that names it, not a crash.
static void test_shrinks_while_read(void) {
    static const float numbers[SHRINKING_NUMBERS];
    const Tensor tensor = {"zeros", DTYPE_F32, 1, {SHRINKING_NUMBERS}, numbers};
    const char *path = test_path("shrinks.safetensors");
    void (*const readers[])(void) = {verify_shrunken, convert_shrunken};
    char said[2048];
    Error error = {""};
    for (int i = 0; i < 2; i++) {
        CHECK(safetensors_write(path, &tensor, 1, NULL, &error) == 0);
        CHECK(safetensors_open(&shrinking, path, &error) == 0 && truncate(path, 5000) == 0);
        CHECK(run_apart(readers[i], said, sizeof said) == 1);
        CHECK_CONTAINS(said, "shrinks.safetensors: the file shrank or was removed while in use");
        safetensors_close(&shrinking);
    }
}

// A file large enough to be checksummed by several threads: the first of two damaged tensors is the one named.
static void test_damage_in_a_large_file(void) {
    enum { COUNT = 9, ELEMENTS = 1 << 18 };
    const char *path = test_path("large.safetensors");
    char names[COUNT][16];
    float *numbers = calloc(ELEMENTS, sizeof *numbers);
    Tensor tensors[COUNT];
    Safetensors file;
    Error error = {""};
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i] = (Tensor){names[i], DTYPE_F32, 1, {ELEMENTS}, numbers};
    }
    CHECK(safetensors_write(path, tensors, COUNT, NULL, &error) == 0);
    CHECK(safetensors_open(&file, path, &error) == 0 && safetensors_verify(&file, &error) == 0);
    for (int i = 7; i >= 3; i -= 4)
        test_flip_bit(path, (size_t)((const unsigned char *)file.tensors[i].data - file.file.data) + 77, 5);
    CHECK(safetensors_verify(&file, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor t3:");
    safetensors_close(&file);
    free(numbers);
}

// ---- conversion

static float convert_one(Dtype dtype, const void *bytes) {
    char shifted[9]; // an odd address
    memcpy(shifted + 1, bytes, 8);
    Tensor tensor = {"t", dtype, 0, {0}, shifted + 1};
    float value = 0;
    tensor_to_floats(&value, &tensor);
    return value;
}

static void test_conversion(void) {
    static const struct {
        uint16_t half;
        float value;
    } halves[] = {{0x0000, 0.0f},     {0x3c00, 1.0f},      {0xc000, -2.0f},
                  {0x7bff, 65504.0f}, {0x0001, 0x1p-24f},  {0x03ff, 1023 * 0x1p-24f},
                  {0x0400, 0x1p-14f}, {0x8001, -0x1p-24f}, {0x3555, 0.33325195f},
                  {0x7c00, INFINITY}, {0xfc00, -INFINITY}};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        uint64_t bytes = halves[i].half;
        CHECK(convert_one(DTYPE_F16, &bytes) == halves[i].value);
    }
    uint64_t bytes = 0x7e00, bf16 = 0xc049, i32 = (uint32_t)-7, i16 = (uint16_t)-300, i8 = (uint8_t)-5, u8 = 200,
             yes = 2;
    int64_t i64 = -123456789012;
    double f64 = 0.1;
    CHECK(isnan(convert_one(DTYPE_F16, &bytes)));
    CHECK(convert_one(DTYPE_BF16, &bf16) == -3.140625f);
    CHECK(convert_one(DTYPE_F64, &f64) == 0.1f);
    CHECK(convert_one(DTYPE_I64, &i64) == (float)-123456789012);
    CHECK(convert_one(DTYPE_I32, &i32) == -7 && convert_one(DTYPE_I16, &i16) == -300);
    CHECK(convert_one(DTYPE_I8, &i8) == -5 && convert_one(DTYPE_U8, &u8) == 200 && convert_one(DTYPE_BOOL, &yes) == 1);
}

// More numbers than one block, so that the seams between blocks are looked at.
static void test_conversion_of_many(void) {
    uint64_t count = (1 << 19) + 3;
    uint16_t *in = malloc(count * sizeof *in);
    float *out = malloc(count * sizeof *out);
    for (uint64_t i = 0; i < count; i++) in[i] = (uint16_t)(0x3f80 + i % 64);
    Tensor tensor = {"t", DTYPE_BF16, 1, {count}, in};
    tensor_to_floats(out, &tensor);
    for (uint64_t i = 0; i < count; i++) CHECK(out[i] == 1.0f + (float)(i % 64) / 128);
    free(in);
    free(out);
}

static void test_finite_check(void) {
    uint64_t count = (1 << 19) + 3;
    float *values = calloc(count, sizeof *values);
    Error error = {""};
    CHECK(floats_check_finite(values, count, "file", "name", &error) == 0);
    values[count - 1] = -INFINITY;
    CHECK(floats_check_finite(values, count, "file", "name", &error) == -1);
    CHECK_CONTAINS(error.text, "file: tensor name: expected finite numbers, found infinity at index 524290");
    values[300000] = values[300001] = NAN;
    CHECK(floats_check_finite(values, count, "file", "name", &error) == -1);
    CHECK_CONTAINS(error.text, "found NaN at index 300000");
    free(values);
}

int main(void) {
    test_directory_make();
    RUN(test_round_trip);
    RUN(test_writer_refuses);
    RUN(test_bad_lengths);
    RUN(test_bad_headers);
    RUN(test_long_name);
    RUN(test_other_files);
    RUN(test_no_regular_file);
    RUN(test_damage);
    RUN(test_damage_in_a_large_file);
    RUN(test_shrinks_while_read);
    RUN(test_conversion);
    RUN(test_conversion_of_many);
    RUN(test_finite_check);
    return test_summary();
}
