// Where a model's numbers are on the device. Alone it tests one rank; scripts/test_ranks_gpu.sh runs it under mpirun,
// where with ZeRO each rank has a part.
#include "parameters_gpu.h"
#include "core/base/test.h"

#include <vector>

static int rank, ranks;
static cudaStream_t stream;

enum { V = 61, PADDED_V = 64, C = 16, L = 3 };

// A model whose attention has parameters; the vocabulary is no round number.
static void create(ParametersGPU *parameters, int positions, int trains) {
    GPT2Config config = {};
    AttentionConfig sizes = {};
    AttentionStack stack;
    Error error;
    config.max_T = 32, config.V = V, config.L = L, config.NH = 2, config.C = C, config.positions = positions;
    sizes.B = 1, sizes.T = 8, sizes.C = C, sizes.NH = 2, sizes.max_T = 32;
    die_if(attention_stack_configure(&stack, "slay:decay=learned:learn=both", &sizes, NULL, &error), &error);
    parameters_gpu_plan(parameters, &config, &stack, PADDED_V, trains);
    parameters_gpu_allocate(parameters);
}

static int sharing() {
    return ranks > 1 ? TRAINS_SHARING_MOMENTS : TRAINS;
}

static float number(int tensor, size_t i, int kind) {
    return (float)(kind * 1000 + tensor * 10) + (float)(i % 199) / 256;
}

static void fill_host(ParametersGPU *parameters, int filled) {
    for (int t = 0; t < parameters->count; t++) {
        Parameter *p = &parameters->list[t];
        for (size_t i = 0; i < p->count; i++) {
            p->value[i] = filled ? number(t, i, 0) : -1;
            if (p->m) p->m[i] = filled ? number(t, i, 1) : -1, p->v[i] = filled ? number(t, i, 2) : -1;
        }
    }
}

template <typename Number> static std::vector<float> from_device(const Number *device, size_t count) {
    std::vector<Number> numbers(count);
    std::vector<float> floats;
    cuda_check(cudaMemcpyAsync(numbers.data(), device, count * sizeof(Number), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    for (Number x : numbers) floats.push_back(to_float(x));
    return floats;
}

// Over all ranks every number counts once in the norm; each has the weight decay of its tensor, wherever it is updated.
static void every_number_is_updated(void) {
    for (int positions = 0; positions < 2; positions++) {
        ParametersGPU parameters = {};
        create(&parameters, positions, sharing());
        std::vector<double> counted(parameters.numbers), decays(parameters.numbers, -1);
        size_t next = 0;
        for (int k = 0; k < parameters.updated_count; k++) {
            UpdatedPart part = parameters.updated[k];
            CHECK(part.own >= next && part.own + part.range.count <= parameters.own_numbers);
            next = part.own + part.range.count;
            for (size_t i = part.range.start; i < part.range.start + part.range.count; i++)
                counted[i] += part.counts, decays[i] = part.decays;
        }
        parallel_sum(counted.data(), (int)counted.size());
        for (int t = 0; t < parameters.count; t++)
            for (size_t i = 0; i < parameters.list[t].count; i++) {
                size_t place = parameters.offsets[t] + i;
                CHECK(counted[place] == 1);
                CHECK(decays[place] < 0 || decays[place] == parameters.list[t].decays);
                CHECK(!parameters.list[t].of_attention || decays[place] >= 0); // on every rank
            }
        size_t attention = parameters.numbers - parameters.attention_start;
        if (ranks >
            1) // the others' shards are not here: what is, beside the attention, is a part and what was left over
            CHECK((parameters.own_numbers - attention) * (size_t)ranks <=
                  parameters.attention_start + (size_t)(STRETCHES(L) * 32 * ranks * ranks));
        parameters_gpu_free(&parameters);
    }
}

// The stretches, one after the other, are everything, and only the attention's is whole.
static void stretches_are_everything(void) {
    ParametersGPU parameters = {};
    create(&parameters, POSITIONS_LEARNED, sharing());
    std::vector<int> seen(parameters.numbers);
    for (int s = 0; s < STRETCHES(L); s++) {
        Stretch stretch = parameters_gpu_stretch(&parameters, s);
        CHECK(stretch.whole == (s == STRETCH_ATTENTION(L)));
        for (size_t i = stretch.start; i < stretch.start + stretch.count; i++) seen[i]++;
    }
    for (int times : seen) CHECK(times == 1);
    for (int t = 0; t < parameters.count; t++) {
        const Parameter *p = &parameters.list[t];
        int s = p->of_attention ? STRETCH_ATTENTION(L) : p->rank == 1 ? STRETCH_VECTORS(L) : p->layer;
        if (s < 0) s = t == 0 ? STRETCH_WTE(L) : STRETCH_WPE(L);
        Stretch stretch = parameters_gpu_stretch(&parameters, s);
        CHECK(parameters.offsets[t] >= stretch.start);
        CHECK(parameters.offsets[t] + p->count <= stretch.start + stretch.count);
    }
    parameters_gpu_free(&parameters);
}

// What is sent comes back, on rank 0 all of it; in between the layers' weights can be made of `whole`.
static void numbers_go_and_return(void) {
    for (int trains : {(int)TRAINS_NOT, sharing()}) {
        ParametersGPU parameters = {};
        create(&parameters, POSITIONS_LEARNED, trains);
        fill_host(&parameters, 1);
        parameters_gpu_send(&parameters, stream);
        std::vector<float> whole = from_device(parameters.whole, parameters.numbers), gaps = whole;
        fill_host(&parameters, 0);
        parameters_gpu_fetch(&parameters, stream);
        for (int t = 0; t < parameters.count; t++)
            for (size_t i = 0; i < parameters.list[t].count; i++) {
                const Parameter *p = &parameters.list[t];
                CHECK(whole[parameters.offsets[t] + i] == number(t, i, 0));
                gaps[parameters.offsets[t] + i] = 0;
                if (rank > 0) continue;
                CHECK(p->value[i] == number(t, i, 0));
                if (trains) CHECK(p->m[i] == number(t, i, 1) && p->v[i] == number(t, i, 2));
            }
        for (float gap : gaps) CHECK(gap == 0);
        parameters_gpu_free(&parameters);
    }
}

// A layer's attention finds its parameters one after the other, as in the host's list, and their gradients likewise.
static void attention_in_one_block(void) {
    ParametersGPU parameters = {};
    create(&parameters, POSITIONS_LEARNED, sharing());
    fill_host(&parameters, 1);
    parameters_gpu_send(&parameters, stream);
    for (int l = 0; l < L; l++) {
        const Parameter *first = gpt2_attention_parameters(parameters.list, parameters.count, l);
        CHECK(first && first->block_count > 0);
        std::vector<float> block = from_device(parameters_gpu_attention(&parameters, l), first->block_count);
        for (const Parameter *p = first; p->of_attention && p->layer == l; p++) {
            int t = (int)(p - parameters.list);
            for (size_t i = 0; i < p->count; i++) CHECK(block[p->block_place + i] == number(t, i, 0));
        }
        CHECK(parameters_gpu_attention_gradients(&parameters, l) ==
              parameters.gradients + parameters.offsets[first - parameters.list]);
    }
    parameters_gpu_free(&parameters);
}

// As AdamW leaves them: the master weights of a part, and in bf16 what the layers read of it.
__global__ void update_kernel(float *master, floatX *rounded, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    master[i] = master[i] + 1;
#ifdef PRECISION_BF16
    rounded[i] = from_float<floatX>(master[i]);
#endif
}

static void weights_after_an_update(void) {
    if (ranks == 1) SKIP("one rank gathers nothing; scripts/test_ranks_gpu.sh starts several");
    ParametersGPU parameters = {};
    create(&parameters, POSITIONS_LEARNED, TRAINS_SHARING_MOMENTS);
    ExchangeGPU *exchange = exchange_gpu_create(parameters.rounded, parameters.gradients, 1, stream);
    fill_host(&parameters, 1);
    parameters_gpu_send(&parameters, stream);
    for (int k = 0; k < parameters.updated_count; k++) {
        UpdatedPart part = parameters.updated[k];
        update_kernel<<<(unsigned)((part.range.count + 127) / 128), 128, 0, stream>>>(
            parameters.master + part.own, parameters.rounded + part.range.start, part.range.count);
        launch_check();
    }
    parameters_gpu_gather(&parameters, exchange, stream);
    exchange_gpu_wait(exchange);
    std::vector<float> found = from_device(parameters.rounded, parameters.numbers);
    for (int t = 0; t < parameters.count; t++)
        for (size_t i = 0; i < parameters.list[t].count; i++)
            CHECK(found[parameters.offsets[t] + i] == to_float(from_float<floatX>(number(t, i, 0) + 1)));
    exchange_gpu_free(exchange);
    parameters_gpu_free(&parameters);
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    parallel_start(argc, argv);
    rank = parallel_rank(), ranks = parallel_ranks();
    parallel_choose_device();
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(every_number_is_updated);
    RUN(stretches_are_everything);
    RUN(numbers_go_and_return);
    RUN(attention_in_one_block);
    RUN(weights_after_an_update);
    cuda_check(cudaStreamDestroy(stream));
    double failures = test_failed;
    parallel_sum(&failures, 1);
    test_failed = (int)failures;
    int result = test_summary();
    parallel_end();
    return result;
}
