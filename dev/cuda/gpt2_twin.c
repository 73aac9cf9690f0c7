// The C side of test_gpt2.cu and of the progressions in this folder: the layers and the model of train_gpt2.c, under
// names that C++ can link to.
#define GPT2_MODEL_ONLY
#include "train_gpt2.c"
#include "gpt2_twin.h"

void *twin_create(const Settings *settings) {
    GPT2 *model = memory_allocate(1, sizeof *model, "the model");
    gpt2_create(model, &settings->model, &settings->stack, settings->dropout, (uint64_t)settings->seed, TRAINS,
                settings->recompute);
    return model;
}

void twin_free(void *model) {
    gpt2_free(model);
    free(model);
}

ModelTensors twin_to_host(void *model, HostPurpose purpose) {
    return gpt2_to_host(model, purpose);
}

void twin_from_host(void *model, HostPurpose purpose) {
    gpt2_from_host(model, purpose);
}

void twin_forward(void *model, const MicroBatch *batch) {
    gpt2_forward(model, batch);
}

void twin_backward(void *model, const MicroBatch *batch) {
    gpt2_backward(model, batch);
}

double twin_evaluate(void *model, const MicroBatch *batch) {
    return gpt2_evaluate(model, batch);
}

StepOutcome twin_update(void *model, const Settings *settings, const Update *update) {
    return gpt2_update(model, settings, update);
}

double twin_flops_per_token(const void *model) {
    return gpt2_flops_per_token(model);
}

const float *twin_gradient(void *model, int parameter) {
    return ((GPT2 *)model)->parameters[parameter].gradient;
}

void twin_embedding_forward(float *out, const int *tokens, const int *positions, const float *wte, const float *wpe,
                            int N, int T, int C) {
    embedding_forward(out, tokens, positions, wte, wpe, N, T, C);
}

void twin_embedding_backward(float *dwte, float *dwpe, const float *dout, const int *tokens, const int *positions,
                             int N, int T, int C) {
    embedding_backward(dwte, dwpe, dout, tokens, positions, N, T, C);
}

void twin_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                            const float *bias, int N, int C) {
    layernorm_forward(out, mean, rstd, inp, weight, bias, N, C);
}

void twin_layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                             const float *mean, const float *rstd, const float *weight, int N, int C, float beta) {
    float *work = memory_allocate(layernorm_work((size_t)N, (size_t)C), sizeof(float), "the sums");
    layernorm_backward(dinp, dweight, dbias, dout, inp, mean, rstd, weight, N, C, beta, work);
    free(work);
}

void twin_linear_forward(float *out, const float *inp, const float *weight, const float *bias, int N, int C, int OC) {
    linear_forward(out, inp, weight, bias, N, C, OC);
}

void twin_linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                          const float *weight, int N, int C, int OC, float beta) {
    linear_backward(dinp, dweight, dbias, dout, inp, weight, N, C, OC, beta);
}

void twin_gelu_forward(float *out, const float *inp, size_t count) {
    gelu_forward(out, inp, count);
}

void twin_gelu_backward(float *dout, const float *inp, size_t count) {
    gelu_backward(dout, inp, count);
}

void twin_dropout(float *x, size_t rows, size_t columns, size_t first_row, float share, uint64_t key) {
    dropout(x, rows, columns, first_row, share, key);
}

void twin_head(double *losses, float *dhidden, float *dwte, const float *hidden, const float *wte, const int *targets,
               float scale, int N, int C, int V, float beta) {
    float *work = memory_allocate(head_work((size_t)N, V), sizeof(float), "the logits");
    head_forward_backward(losses, dhidden, dwte, hidden, wte, targets, scale, N, C, V, beta, work);
    free(work);
}

double twin_gradient_norm(float *gradient, size_t count) {
    Parameter parameter = {.gradient = gradient, .count = count};
    GPT2 model = {.own = &parameter, .own_count = 1};
    const char *bad;
    return gpt2_gradient_norm(&model, &bad);
}

void twin_adamw(Parameter *parameter, const Settings *settings, int64_t step, double rate, double gradient_scale) {
    adamw(parameter, 1, settings, step, rate, gradient_scale);
}

double twin_cross_entropy_row(float *logits, int target, float scale, int V) {
    return cross_entropy_row(logits, target, scale, V, 1);
}
