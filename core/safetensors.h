// The safetensors format: an 8-byte header length, a JSON header, then the tensors' bytes. One reader that trusts
// nothing, one writer that leaves the old file or the whole new one.
#ifndef CORE_SAFETENSORS_H
#define CORE_SAFETENSORS_H

#include "error.h"
#include "file.h"

#include <jansson.h>
#include <stdint.h>

typedef enum { DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_U8, DTYPE_BOOL } Dtype;
enum { SAFETENSORS_RANK_MAX = 8 };

typedef struct {
    const char *name;
    Dtype dtype;
    int rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    const void *data; // reading: inside the mapped file (8-byte alignment is not promised); writing: what to write
} Tensor;

typedef struct {
    const char *path; // for messages; a copy
    FileMap file;
    json_t *header;
    Tensor *tensors; // in order of their offsets
    int count;
} Safetensors;

uint64_t tensor_elements(const Tensor *tensor);
uint64_t tensor_bytes(const Tensor *tensor);
const char *dtype_name(Dtype dtype);

// Validates the whole header: JSON, dtypes, shapes against sizes, offsets without overlap or gap up to the end.
int safetensors_open(Safetensors *file, const char *path, Error *error);
void safetensors_close(Safetensors *file);
const Tensor *safetensors_find(const Safetensors *file, const char *name); // NULL when absent
const char *safetensors_metadata(const Safetensors *file, const char *key); // NULL when absent

// Copies a tensor of any numeric dtype into floats; the shape must be the one given.
int safetensors_read(float *out, const Safetensors *file, const char *name, int rank, const uint64_t *shape,
                     Error *error);
// Verifies the checksum of every tensor that has one in the metadata ("xxh3:" + name); names the damaged tensor.
int safetensors_verify(const Safetensors *file, Error *error);

// Writes all tensors with their checksums and the given metadata (an object of strings, may be NULL).
int safetensors_write(const char *path, const Tensor *tensors, int count, const json_t *metadata, Error *error);

#endif
