// Newton and Schulz's iteration on the device against the C twin, which core/math/test_newton_schulz.c holds against a
// plain one in double.
#include "newton_schulz_gpu.h"
#include "test_gpu.h"

extern "C" {
#include "core/math/newton_schulz.h"
}

// In bf16 every step rounds to 8 bits, as in the original; 0.032 was found.
static const double BOUND = sizeof(floatX) == 4 ? 10 * PRODUCT_BOUND : 0.06;

static void run(Activation *x, int rows, int columns) {
    NewtonSchulzGPU scratch = {};
    ArenaGPU arena = {};
    newton_schulz_gpu_plan(&scratch, &arena, (size_t)rows * (size_t)columns, (size_t)(rows < columns ? rows : columns));
    arena_gpu_allocate(&arena);
    newton_schulz_gpu(x->device, rows, columns, &scratch, stream);
    cuda_check(cudaStreamSynchronize(stream));
    arena_gpu_free(&arena);
}

static void twin(void) {
    static const int sizes[][2] = {{1, 1}, {8, 8}, {16, 48}, {48, 16}, {24, 96}, {33, 65}, {65, 33}};
    for (const auto &size : sizes) {
        int rows = size[0], columns = size[1];
        Activation x((size_t)rows * (size_t)columns, 0.3);
        std::vector<float> work(newton_schulz_work(rows, columns));
        run(&x, rows, columns);
        newton_schulz(x.data(), rows, columns, work.data());
        check("orthogonal", x, BOUND);
    }
}

static void zeros(void) {
    Activation x(12 * 8, 0.1);
    for (float &number : x.host) number = 0;
    x.send();
    run(&x, 12, 8);
    for (float number : x.fetch()) CHECK(number == 0);
}

int main(void) {
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(twin);
    RUN(zeros);
    return test_summary();
}
