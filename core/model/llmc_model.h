// llm.c's model files: a header of 256 int32 (magic 20240326; version 3 with float or 5 with bfloat16 weights; max_T,
// V, L, NH, C, V padded), then the weights, each kind for all layers in turn. Matrices are (out,in) there and are
// transposed to Hugging Face's (in,out) on reading, and back on writing; the rows that pad the vocabulary are left out,
// and written as zeros.
#ifndef CORE_LLMC_MODEL_H
#define CORE_LLMC_MODEL_H

#include "core/base/error.h"
#include "core/base/file.h"
#include "gpt2_config.h"
#include "safetensors.h"

enum { LLMC_MAGIC = 20240326, LLMC_VERSION_F32 = 3, LLMC_VERSION_BF16 = 5, LLMC_HEADER_BYTES = 1024 };

typedef struct {
    char *path; // for messages; a copy
    FileMap file;
    GPT2Config config;
    int padded_V; // rows of wte in the file
    Dtype dtype;  // F32 or BF16
} LlmcModel;

int llmc_model_is(const char *path); // is it a file that begins with the magic number?

// Validates the header, and the file's size against it to the byte.
int llmc_model_open(LlmcModel *model, const char *path, Error *error);
void llmc_model_close(LlmcModel *model); // safe to call twice and after a failed open

// Fills the wanted tensors (`data` is the float destination), named as in Hugging Face's GPT-2.
int llmc_model_read(const LlmcModel *model, const Tensor *wanted, int count, Error *error);

// Writes a file of the sizes and the dtype that `model` has; bfloat16 is rounded to the nearest. `tensors` (float) are
// all of a GPT-2's, named as in Hugging Face's.
int llmc_model_write(const char *path, const LlmcModel *model, const Tensor *tensors, int count, Error *error);
// The vocabulary's rows in files that llm.c writes: a multiple of 128.
int llmc_padded_vocabulary(int V);

#endif
