// The safetensors format: an 8-byte header length, a JSON header, then the tensors' bytes. One reader that trusts
// nothing, one writer that leaves the old file or the whole new one.
#ifndef CORE_SAFETENSORS_H
#define CORE_SAFETENSORS_H

#include "core/base/error.h"
#include "core/base/file.h"

#include <jansson.h>
#include <stdint.h>

typedef enum {
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_COUNT
} Dtype;
enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_NAME_MAX = 255 };

typedef struct {
    const char *name;
    Dtype dtype;
    int rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    const void *data; // reading: inside the mapped file (alignment is not promised); writing: what to write
} Tensor;

typedef struct Safetensors {
    char *path; // for messages; a copy
    FileMap file;
    json_t *header;
    Tensor *tensors; // in order of their offsets
    int count;
    struct Safetensors *parts; // where it is several files: these; `tensors` are those of all of them, no header
    int part_count;
} Safetensors;

// ---- tensors

uint64_t tensor_elements(const Tensor *tensor);
uint64_t tensor_bytes(const Tensor *tensor);
uint64_t tensor_checksum(const Tensor *tensor); // XXH3, 64 bits, of the bytes
int tensor_is_float(const Tensor *tensor);      // F32, F64, F16 or BF16
const char *dtype_name(Dtype dtype);
// "(768,2304)"; `text` holds at least 192 bytes.
const char *tensor_shape_text(const Tensor *tensor, char *text, size_t size);

// Converts any dtype to floats, with all threads. F32 is copied bit for bit.
void tensor_to_floats(float *out, const Tensor *tensor);
// Refuses NaN and infinity, naming the tensor and the first index where one stands.
int floats_check_finite(const float *values, uint64_t count, const char *path, const char *name, Error *error);

// ---- reading

// Validates the whole header: JSON, dtypes, shapes against sizes, offsets without overlap or gap up to the end.
int safetensors_open(Safetensors *file, const char *path, Error *error);
// Several files in a directory as one: `map`, an object, gives each tensor the name of its file; `path`: for messages.
int safetensors_open_parts(Safetensors *file, const char *path, const char *directory, const json_t *map,
                           Error *error);
uint64_t safetensors_bytes(const Safetensors *file); // of the file or its parts
void safetensors_close(Safetensors *file);                                 // safe to call twice and after a failed open
const Tensor *safetensors_find(const Safetensors *file, const char *name); // NULL when absent
const char *safetensors_metadata(const Safetensors *file, const char *key); // NULL when absent

// Copies a tensor of any dtype into floats; the shape must be the one given. Values are not judged.
int safetensors_read(float *out, const Safetensors *file, const char *name, int rank, const uint64_t *shape,
                     Error *error);
// Verifies the checksum of every tensor that has one in the metadata ("xxh3:" + name); names the damaged tensor.
int safetensors_verify(const Safetensors *file, Error *error);
int safetensors_has_checksums(const Safetensors *file); // of all tensors
// XXH3 of everything before the tensors' bytes. The header holds the tensors' checksums, so this one number vouches for
// the whole file.
uint64_t safetensors_header_checksum(const Safetensors *file);

// ---- writing

// Writes all tensors with their checksums and the given metadata (an object of strings, may be NULL).
int safetensors_write(const char *path, const Tensor *tensors, int count, const json_t *metadata, Error *error);

// A 64-bit checksum as it stands in JSON: 16 hexadecimal digits.
typedef struct {
    char text[17];
} ChecksumText;
ChecksumText checksum_text(uint64_t checksum);

#endif
