// safetensors files: whatever opens is within the file, verifies or names a tensor, and survives being written again.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "core/base/json.h"
#include "core/model/safetensors.h"

static void read_all(const Safetensors *file) {
    Error error;
    for (int i = 0; i < file->count; i++) {
        const Tensor *tensor = &file->tensors[i];
        EXPECT(tensor_bytes(tensor) <= file->file.size);
        float *numbers = malloc(tensor_elements(tensor) * sizeof *numbers + 1);
        EXPECT(safetensors_read(numbers, file, tensor->name, tensor->rank, tensor->shape, &error) == 0);
        floats_check_finite(numbers, tensor_elements(tensor), file->path, tensor->name, &error);
        free(numbers);
    }
}

// The same tensors come back, now with checksums.
static void write_again(const Safetensors *file) {
    Error error;
    Safetensors again;
    EXPECT(safetensors_write("again", file->tensors, file->count, NULL, &error) == 0);
    EXPECT(safetensors_open(&again, "again", &error) == 0);
    EXPECT(again.count == file->count && safetensors_has_checksums(&again) && safetensors_verify(&again, &error) == 0);
    for (int i = 0; i < file->count; i++) {
        const Tensor *tensor = &file->tensors[i], *other = safetensors_find(&again, tensor->name);
        EXPECT(other && other->dtype == tensor->dtype && other->rank == tensor->rank);
        EXPECT(!memcmp(other->shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape));
        EXPECT(tensor_checksum(other) == tensor_checksum(tensor));
    }
    safetensors_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Safetensors file;
    Error error;
    memory_file_put("file", data, size);
    if (safetensors_open(&file, "file", &error) == 0) {
        if (safetensors_verify(&file, &error)) EXPECT(strstr(error.text, "checksum"));
        safetensors_header_checksum(&file);
        read_all(&file);
        write_again(&file);
        safetensors_close(&file);
    }
    memory_files_clear();
    return 0;
}
