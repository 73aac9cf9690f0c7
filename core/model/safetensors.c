#include "safetensors.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian and are used in place: this machine would need byte swapping"
#endif

enum {
    LENGTH_BYTES = 8,         // the header's length stands before the header
    DATA_ALIGNMENT = 64,      // of the first tensor in files written here
    CONVERT_BLOCK = 1 << 18,  // numbers that a thread converts at a time
    PARALLEL_BYTES = 1 << 22, // smaller files are checksummed before threads would have started
};
static const uint64_t HEADER_MAX = 100000000; // bytes; the limit of the format's reference implementation

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 4}, [DTYPE_F64] = {"F64", 8},   [DTYPE_F16] = {"F16", 2}, [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_I64] = {"I64", 8}, [DTYPE_I32] = {"I32", 4},   [DTYPE_I16] = {"I16", 2}, [DTYPE_I8] = {"I8", 1},
    [DTYPE_U8] = {"U8", 1},   [DTYPE_BOOL] = {"BOOL", 1},
};

// ---- tensors

const char *dtype_name(Dtype dtype) {
    return dtypes[dtype].name;
}

uint64_t tensor_elements(const Tensor *tensor) {
    uint64_t elements = 1;
    for (int i = 0; i < tensor->rank; i++) elements *= tensor->shape[i];
    return elements;
}

uint64_t tensor_bytes(const Tensor *tensor) {
    return tensor_elements(tensor) * dtypes[tensor->dtype].bytes;
}

uint64_t tensor_checksum(const Tensor *tensor) {
    return XXH3_64bits(tensor->data, tensor_bytes(tensor));
}

int tensor_is_float(const Tensor *tensor) {
    Dtype dtype = tensor->dtype;
    return dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

const char *tensor_shape_text(const Tensor *tensor, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64, i ? "," : "", tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, ")");
    return text;
}

ChecksumText checksum_text(uint64_t checksum) {
    ChecksumText result;
    snprintf(result.text, sizeof result.text, "%016" PRIx64, checksum);
    return result;
}

// ---- conversion

static float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Moves exponent and mantissa to their places in a float, then scales by the difference of the exponents' biases,
// which also normalises the subnormal numbers. Infinity and NaN keep the highest exponent.
static float float_from_half(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    int special = (half & 0x7c00) == 0x7c00;
    float value = special ? float_from_bits(magnitude | 0x7f800000u) : float_from_bits(magnitude) * 0x1p112f;
    return half & 0x8000 ? -value : value;
}

// Numbers in a file may stand at any address, so they are fetched with memcpy (one load instruction).
#define CONVERT(type, expression)                                                                                      \
    for (uint64_t i = 0; i < count; i++) {                                                                             \
        type value;                                                                                                    \
        memcpy(&value, in + i * sizeof value, sizeof value);                                                           \
        out[i] = (expression);                                                                                         \
    }                                                                                                                  \
    break

static void convert_block(float *out, const unsigned char *in, uint64_t count, Dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        memcpy(out, in, count * sizeof *out);
        break;
    case DTYPE_F64:
        CONVERT(double, (float)value);
    case DTYPE_F16:
        CONVERT(uint16_t, float_from_half(value));
    case DTYPE_BF16:
        CONVERT(uint16_t, float_from_bits((uint32_t)value << 16));
    case DTYPE_I64:
        CONVERT(int64_t, (float)value);
    case DTYPE_I32:
        CONVERT(int32_t, (float)value);
    case DTYPE_I16:
        CONVERT(int16_t, (float)value);
    case DTYPE_I8:
        CONVERT(int8_t, (float)value);
    case DTYPE_U8:
        CONVERT(uint8_t, (float)value);
    case DTYPE_BOOL:
        CONVERT(uint8_t, value ? 1.0f : 0.0f);
    case DTYPE_COUNT:
        break;
    }
}

void tensor_to_floats(float *out, const Tensor *tensor) {
    uint64_t elements = tensor_elements(tensor);
    unsigned size = dtypes[tensor->dtype].bytes;
#pragma omp parallel for schedule(static) if (elements > CONVERT_BLOCK)
    for (uint64_t start = 0; start < elements; start += CONVERT_BLOCK) {
        uint64_t count = elements - start < CONVERT_BLOCK ? elements - start : CONVERT_BLOCK;
        convert_block(out + start, (const unsigned char *)tensor->data + start * size, count, tensor->dtype);
    }
}

int floats_check_finite(const float *values, uint64_t count, const char *path, const char *name, Error *error) {
    uint64_t first = count;
#pragma omp parallel for schedule(static) reduction(min : first) if (count > CONVERT_BLOCK)
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]) && i < first) first = i;
    if (first == count) return 0;
    return error_set(error,
                     "%.500s: tensor %.255s: expected finite numbers, found %s at index %" PRIu64
                     "; use an earlier checkpoint",
                     path, name, isnan(values[first]) ? "NaN" : "infinity", first);
}

// ---- reading

// Says what a file that is no safetensors file seems to be, as far as its first bytes tell.
static const char *guess_content(const unsigned char *data, size_t size) {
    static const struct {
        const char *start, *meaning;
    } known[] = {
        {"<", " (this looks like a web page: download the model again)"},
        {"version https://git-lfs", " (this is a git-lfs pointer: fetch the model itself with git lfs pull)"},
        {"PK\003\004", " (this looks like a PyTorch file: save it again with safe_serialization=True)"},
        {"{", " (this looks like plain JSON)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].start);
        if (size >= length && memcmp(data, known[i].start, length) == 0) return known[i].meaning;
    }
    return "; the file is damaged or of another kind";
}

// Finds the header: *length bytes, after the 8 bytes that give this length.
static int find_header(const Safetensors *file, uint64_t *length, Error *error) {
    size_t size = file->file.size;
    if (size < LENGTH_BYTES)
        return error_set(error, "%.700s: expected a safetensors file of at least %d bytes, found %zu; copy it again",
                         file->path, LENGTH_BYTES, size);
    memcpy(length, file->file.data, LENGTH_BYTES);
    uint64_t available = size - LENGTH_BYTES, most = available < HEADER_MAX ? available : HEADER_MAX;
    if (*length >= 2 && *length <= most) return 0;
    return error_set(error,
                     "%.700s: expected a safetensors header of 2 to %" PRIu64 " bytes, found length %" PRIu64 "%s",
                     file->path, most, *length, guess_content(file->file.data, size));
}

static int parse_header(Safetensors *file, uint64_t length, Error *error) {
    const char *text = (const char *)file->file.data + LENGTH_BYTES;
    json_error_t why;
    file->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!file->header)
        return error_set(error, "%.500s: the header is not valid JSON: %.200s (byte %d)%s", file->path, why.text,
                         why.position, guess_content(file->file.data, file->file.size));
    if (!json_is_object(file->header))
        return error_set(error, "%.700s: expected a JSON object as header; the file is damaged", file->path);
    return 0;
}

static int check_metadata(const Safetensors *file, Error *error) {
    json_t *metadata = json_object_get(file->header, "__metadata__"), *value;
    const char *key;
    if (!metadata) return 0;
    if (!json_is_object(metadata))
        return error_set(error, "%.700s: expected an object as __metadata__; the file is damaged", file->path);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return error_set(error, "%.500s: __metadata__ %.100s: expected a string; the file is damaged", file->path,
                             key);
    }
    return 0;
}

static int parse_dtype(Tensor *tensor, const json_t *json, const char *path, Error *error) {
    const char *name = json_string_value(json);
    for (int i = 0; name && i < DTYPE_COUNT; i++) {
        tensor->dtype = (Dtype)i;
        if (strcmp(name, dtypes[i].name) == 0) return 0;
    }
    return error_set(error,
                     "%.500s: tensor %s: expected a dtype among F32, F64, F16, BF16, I64, I32, I16, I8, U8, BOOL, "
                     "found %.50s; convert the model to F32",
                     path, tensor->name, name ? name : "none");
}

static int parse_shape(Tensor *tensor, uint64_t *bytes, const json_t *json, const char *path, Error *error) {
    size_t rank = json_array_size(json);
    if (!json_is_array(json) || rank > SAFETENSORS_RANK_MAX)
        return error_set(error, "%.500s: tensor %s: expected a shape of at most %d numbers, found %s", path,
                         tensor->name, SAFETENSORS_RANK_MAX, json_is_array(json) ? "more" : "none");
    tensor->rank = (int)rank;
    *bytes = dtypes[tensor->dtype].bytes;
    for (size_t i = 0; i < rank; i++) {
        json_t *item = json_array_get(json, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < 0 || size_multiply(*bytes, (uint64_t)value, bytes))
            return error_set(error,
                             "%.500s: tensor %s: dimension %zu is negative, too large or not a whole number; the file "
                             "is damaged: copy it again",
                             path, tensor->name, i);
        tensor->shape[i] = (uint64_t)value;
    }
    return 0;
}

// One entry of the header; `data` and `available` are the part of the file after the header.
static int parse_tensor(Tensor *tensor, const json_t *entry, const unsigned char *data, uint64_t available,
                        const char *path, Error *error) {
    uint64_t bytes = 0;
    if (strlen(tensor->name) > SAFETENSORS_NAME_MAX)
        return error_set(error,
                         "%.500s: a tensor's name is longer than %d bytes: %.60s...; save it under a shorter one", path,
                         SAFETENSORS_NAME_MAX, tensor->name);
    if (parse_dtype(tensor, json_object_get(entry, "dtype"), path, error)) return -1;
    if (parse_shape(tensor, &bytes, json_object_get(entry, "shape"), path, error)) return -1;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return error_set(error,
                         "%.500s: tensor %s: expected two whole numbers as data_offsets, found others; the file is "
                         "damaged: copy it again",
                         path, tensor->name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || begin > end || (uint64_t)end > available)
        return error_set(error,
                         "%.500s: tensor %s: expected offsets within 0 and %" PRIu64 ", found %" JSON_INTEGER_FORMAT
                         " to %" JSON_INTEGER_FORMAT "; the file is cut short or damaged: copy it again",
                         path, tensor->name, available, begin, end);
    if ((uint64_t)(end - begin) != bytes)
        return error_set(error,
                         "%.500s: tensor %s: dtype and shape need %" PRIu64 " bytes, the offsets hold %" PRIu64
                         "; the file is damaged: copy it again",
                         path, tensor->name, bytes, (uint64_t)(end - begin));
    tensor->data = data + begin;
    return 0;
}

// By address; a tensor of no bytes stands before the one that starts where it does.
static int compare_offsets(const void *left, const void *right) {
    const Tensor *a = left, *b = right;
    const char *a_end = (const char *)a->data + tensor_bytes(a), *b_end = (const char *)b->data + tensor_bytes(b);
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a_end == b_end ? 0 : a_end < b_end ? -1 : 1;
}

static int check_layout(const Safetensors *file, const unsigned char *data, uint64_t available, Error *error) {
    const unsigned char *expected = data;
    for (int i = 0; i < file->count; i++) {
        const Tensor *tensor = &file->tensors[i];
        const unsigned char *found = tensor->data;
        if (found != expected)
            return error_set(error,
                             "%.500s: tensor %s: expected to start at offset %td, found %td (%s); the file is damaged",
                             file->path, tensor->name, expected - data, found - data,
                             found < expected ? "it overlaps another tensor" : "there is a gap before it");
        expected = found + tensor_bytes(tensor);
    }
    uint64_t used = (uint64_t)(expected - data);
    if (used == available) return 0;
    return error_set(error,
                     "%.700s: expected %" PRIu64 " bytes after the header, found %" PRIu64 "; copy the file again",
                     file->path, used, available);
}

static int parse_tensors(Safetensors *file, uint64_t header_length, Error *error) {
    const unsigned char *data = file->file.data + LENGTH_BYTES + header_length;
    uint64_t available = file->file.size - LENGTH_BYTES - header_length;
    const char *name;
    json_t *entry;
    file->tensors = memory_allocate_zeroed(json_object_size(file->header) + 1, sizeof *file->tensors, "a tensor list");
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        Tensor *tensor = &file->tensors[file->count++];
        tensor->name = name;
        if (parse_tensor(tensor, entry, data, available, file->path, error)) return -1;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
    return check_layout(file, data, available, error);
}

int safetensors_open(Safetensors *file, const char *path, Error *error) {
    uint64_t length = 0;
    *file = (Safetensors){0};
    if (file_map(&file->file, path, error)) return -1;
    file->path = memory_copy_string(path);
    if (find_header(file, &length, error) || parse_header(file, length, error) || check_metadata(file, error) ||
        parse_tensors(file, length, error)) {
        safetensors_close(file);
        return -1;
    }
    return 0;
}

// ---- several files

enum { PARTS_MAX = 4096 };

// The number of the part of that name, which is opened if it is new; -1 when that fails.
static int part_named(Safetensors *file, const char *directory, const char *name, Error *error) {
    for (int i = 0; i < file->part_count; i++)
        if (strcmp(strrchr(file->parts[i].path, '/') + 1, name) == 0) return i;
    if (strchr(name, '/') || file->part_count == PARTS_MAX)
        return error_set(error, "%.500s: expected names of at most %d files beside it, found %.200s", file->path,
                         PARTS_MAX, name);
    file->parts = memory_resize(file->parts, (size_t)file->part_count + 1, sizeof *file->parts, "the model's parts");
    char *path = path_join(directory, name);
    int failed = safetensors_open(&file->parts[file->part_count], path, error);
    free(path);
    return failed ? -1 : file->part_count++;
}

// Takes the tensors of `map` from the parts.
static int collect_tensors(Safetensors *file, const char *directory, const json_t *map, Error *error) {
    const char *name;
    json_t *entry;
    file->tensors = memory_allocate_zeroed(json_object_size(map) + 1, sizeof *file->tensors, "a tensor list");
    json_object_foreach((json_t *)map, name, entry) {
        const char *place = json_string_value(entry);
        if (!place)
            return error_set(error,
                             "%.500s: tensor %.255s: expected the name of a file, found something else; the file is "
                             "damaged: copy it again",
                             file->path, name);
        int part = part_named(file, directory, place, error);
        const Tensor *found = part < 0 ? NULL : safetensors_find(&file->parts[part], name);
        if (part < 0) return -1;
        if (!found)
            return error_set(error,
                             "%.500s: expected tensor %.255s in %.200s, found none of that name; copy the files again",
                             file->path, name, place);
        file->tensors[file->count++] = *found;
    }
    int there = 0;
    for (int i = 0; i < file->part_count; i++) there += file->parts[i].count;
    if (there == file->count) return 0;
    return error_set(error, "%.500s: expected %d tensors in the files it names, found %d; they are of another model",
                     file->path, file->count, there);
}

int safetensors_open_parts(Safetensors *file, const char *path, const char *directory, const json_t *map,
                           Error *error) {
    *file = (Safetensors){.path = memory_copy_string(path)};
    int failed = json_object_size(map) == 0
                     ? error_set(error, "%.700s: expected a \"weight_map\" of tensors and files, found none", path)
                     : collect_tensors(file, directory, map, error);
    if (failed) safetensors_close(file);
    return failed ? -1 : 0;
}

uint64_t safetensors_bytes(const Safetensors *file) {
    uint64_t sum = file->file.size;
    for (int i = 0; i < file->part_count; i++) sum += file->parts[i].file.size;
    return sum;
}

void safetensors_close(Safetensors *file) {
    for (int i = 0; i < file->part_count; i++) safetensors_close(&file->parts[i]);
    free(file->parts);
    free(file->path);
    free(file->tensors);
    json_decref(file->header);
    file_unmap(&file->file);
    *file = (Safetensors){0};
}

const Tensor *safetensors_find(const Safetensors *file, const char *name) {
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *safetensors_metadata(const Safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

int safetensors_read(float *out, const Safetensors *file, const char *name, int rank, const uint64_t *shape,
                     Error *error) {
    const Tensor *tensor = safetensors_find(file, name);
    if (!tensor) return error_set(error, "%.500s: expected a tensor %.255s, found none of that name", file->path, name);
    Tensor wanted = {.rank = rank};
    memcpy(wanted.shape, shape, (size_t)rank * sizeof *shape);
    if (tensor->rank != rank || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        char expected[192], found[192];
        return error_set(error, "%.500s: tensor %.255s: expected shape %s, found %s", file->path, name,
                         tensor_shape_text(&wanted, expected, sizeof expected),
                         tensor_shape_text(tensor, found, sizeof found));
    }
    tensor_to_floats(out, tensor);
    return 0;
}

// ---- checksums

static const char *stored_checksum(const Safetensors *file, const Tensor *tensor) {
    char key[SAFETENSORS_NAME_MAX + 8];
    snprintf(key, sizeof key, "xxh3:%s", tensor->name);
    return safetensors_metadata(file, key);
}

int safetensors_has_checksums(const Safetensors *file) {
    for (int i = 0; i < file->part_count; i++)
        if (!safetensors_has_checksums(&file->parts[i])) return 0;
    if (file->part_count) return 1;
    for (int i = 0; i < file->count; i++)
        if (!stored_checksum(file, &file->tensors[i])) return 0;
    return 1;
}

int safetensors_verify(const Safetensors *file, Error *error) {
    for (int i = 0; i < file->part_count; i++)
        if (safetensors_verify(&file->parts[i], error)) return -1;
    if (file->part_count) return 0;
    int damaged = file->count; // the first one in the file's order, whatever order the threads work in
#pragma omp parallel for schedule(dynamic) reduction(min : damaged) if (file->file.size > PARALLEL_BYTES)
    for (int i = 0; i < file->count; i++) {
        const char *expected = stored_checksum(file, &file->tensors[i]);
        if (!expected) continue;
        ChecksumText found = checksum_text(tensor_checksum(&file->tensors[i]));
        if (strcmp(expected, found.text) != 0 && i < damaged) damaged = i;
    }
    if (damaged == file->count) return 0;
    const Tensor *tensor = &file->tensors[damaged];
    return error_set(
        error, "%.500s: tensor %s: expected checksum %.16s, found %s; the file is damaged: use another copy",
        file->path, tensor->name, stored_checksum(file, tensor), checksum_text(tensor_checksum(tensor)).text);
}

uint64_t safetensors_header_checksum(const Safetensors *file) {
    uint64_t length = 0;
    memcpy(&length, file->file.data, LENGTH_BYTES); // within the file: opening has checked it
    return XXH3_64bits(file->file.data, LENGTH_BYTES + length);
}

// ---- writing

// NULL when a name is not UTF-8.
static json_t *build_metadata(const Tensor *tensors, int count, uint64_t bytes, const json_t *given) {
    uint64_t *checksums = memory_allocate((size_t)count, sizeof *checksums, "checksums");
#pragma omp parallel for schedule(dynamic) if (bytes > PARALLEL_BYTES)
    for (int i = 0; i < count; i++) checksums[i] = tensor_checksum(&tensors[i]);

    json_t *metadata = json_made(json_pack("{s:s}", "format", "pt"), "metadata"); // transformers insists on this entry
    if (given) json_put_all(metadata, json_incref((json_t *)given));
    int failed = 0;
    for (int i = 0; i < count; i++) {
        char key[SAFETENSORS_NAME_MAX + 8];
        snprintf(key, sizeof key, "xxh3:%s", tensors[i].name);
        failed |= json_object_set_new(metadata, key, json_string(checksum_text(checksums[i]).text));
    }
    free(checksums);
    if (failed) json_decref(metadata);
    return failed ? NULL : metadata;
}

static json_t *describe(const Tensor *tensor, uint64_t offset) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor->rank; d++)
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d]))) return json_decref(shape), NULL;
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_name(tensor->dtype), "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)(offset + tensor_bytes(tensor)));
}

// The header as text, padded with spaces so that the tensors start at a multiple of DATA_ALIGNMENT; free() it. NULL
// when two tensors have the same name, or one is not UTF-8.
static char *build_header(const Tensor *tensors, int count, uint64_t bytes, const json_t *metadata, uint64_t *length) {
    json_t *header = json_object();
    uint64_t offset = 0;
    int failed = json_object_set_new(header, "__metadata__", build_metadata(tensors, count, bytes, metadata));
    for (int i = 0; i < count && !failed; i++) {
        failed = json_object_get(header, tensors[i].name) != NULL ||
                 json_object_set_new(header, tensors[i].name, describe(&tensors[i], offset));
        offset += tensor_bytes(&tensors[i]);
    }
    char *text = failed ? NULL : json_print(header, JSON_COMPACT);
    json_decref(header);
    if (!text) return NULL;

    size_t used = strlen(text), padding = (DATA_ALIGNMENT - (LENGTH_BYTES + used) % DATA_ALIGNMENT) % DATA_ALIGNMENT;
    text = memory_resize(text, used + padding + 1, 1, "a safetensors header");
    memset(text + used, ' ', padding);
    *length = used + padding;
    return text;
}

int safetensors_write(const char *path, const Tensor *tensors, int count, const json_t *metadata, Error *error) {
    uint64_t length = 0, total = LENGTH_BYTES;
    for (int i = 0; i < count; i++) {
        total += tensor_bytes(&tensors[i]);
        if (strlen(tensors[i].name) > SAFETENSORS_NAME_MAX)
            return error_set(error, "%.500s: cannot save a tensor with a name of more than %d bytes: %.60s...", path,
                             SAFETENSORS_NAME_MAX, tensors[i].name);
    }
    char *header = build_header(tensors, count, total, metadata, &length);
    if (!header)
        return error_set(error, "%.700s: cannot save: two tensors have the same name, or one is not UTF-8", path);

    FileWriter writer;
    int failed = file_writer_open(&writer, path, total + length, error) ||
                 file_write(&writer, &length, LENGTH_BYTES, error) || file_write(&writer, header, length, error);
    free(header);
    for (int i = 0; i < count && !failed; i++)
        failed = file_write(&writer, tensors[i].data, tensor_bytes(&tensors[i]), error);
    return failed ? -1 : file_writer_commit(&writer, error);
}
