// llm.c's model files: a header of 256 int32 (magic 20240326; version 3 with float or 5 with bfloat16 weights; max_T,
// V, L, NH, C, V padded), then the weights, each kind for all layers in turn. Matrices are (out,in) there and are
// transposed to Hugging Face's (in,out) on reading; the rows that pad the vocabulary are left out.
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

#endif
