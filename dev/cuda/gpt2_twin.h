// What test_gpt2.cu and the progressions compare with: the functions of train_gpt2.c, under their names, in host
// memory.
#ifndef DEV_CUDA_GPT2_TWIN_H
#define DEV_CUDA_GPT2_TWIN_H

#include "core/train/training.h"

#include <stdint.h>

// The model: train_gpt2.c's gpt2_create, gpt2_free and so on.
void *twin_create(const Settings *settings);
void twin_free(void *model);
ModelTensors twin_to_host(void *model, HostPurpose purpose);
void twin_from_host(void *model, HostPurpose purpose);
void twin_forward(void *model, const MicroBatch *batch);
void twin_backward(void *model, const MicroBatch *batch);
double twin_evaluate(void *model, const MicroBatch *batch);
StepOutcome twin_update(void *model, const Settings *settings, const Update *update);
double twin_flops_per_token(const void *model);
const float *twin_gradient(void *model, int parameter); // of parameter number `parameter`

void twin_embedding_forward(float *out, const int *tokens, const int *positions, const float *wte, const float *wpe,
                            int N, int T, int C);
void twin_embedding_backward(float *dwte, float *dwpe, const float *dout, const int *tokens, const int *positions,
                             int N, int T, int C);
void twin_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                            const float *bias, int N, int C);
void twin_layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                             const float *mean, const float *rstd, const float *weight, int N, int C, float beta);
void twin_linear_forward(float *out, const float *inp, const float *weight, const float *bias, int N, int C, int OC);
void twin_linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                          const float *weight, int N, int C, int OC, float beta);
void twin_gelu_forward(float *out, const float *inp, size_t count);
void twin_gelu_backward(float *dout, const float *inp, size_t count);
void twin_dropout(float *x, size_t rows, size_t columns, size_t first_row, float share, uint64_t key);
void twin_head(double *losses, float *dhidden, float *dwte, const float *hidden, const float *wte, const int *targets,
               float scale, int N, int C, int V, float beta);
// A row of logits becomes its gradient; returns the loss.
double twin_cross_entropy_row(float *logits, int target, float scale, int V);
double twin_gradient_norm(float *gradient, size_t count);
// AdamW's step number `step` (from 0) on one parameter with value, gradient and moments.
void twin_adamw(Parameter *parameter, const Settings *settings, int64_t step, double rate, double gradient_scale);

#endif
