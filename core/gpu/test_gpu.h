// Helpers for the tests of GPU code: tensors on both sides, comparison with the C twin.
#ifndef CORE_TEST_GPU_H
#define CORE_TEST_GPU_H

#include "cuda_common.h"

extern "C" {
#include "core/base/random.h"
#include "core/base/test.h"
}

#include <vector>

// How far a matrix product of fp32 numbers may be off, as a share of the result's largest number. With TF32 products a
// factor keeps ten bits of its fraction: where it is cut off, not rounded, each is up to 2^-10 too small and a product
// 2^-9, or 2e-3. The tests found 6e-4 with rounding and 1.2e-3 without; twice the worst case is allowed.
#ifdef ALLOW_TF32
static const double PRODUCT_BOUND = 4e-3;
#else
static const double PRODUCT_BOUND = 1e-5;
#endif

static uint64_t streams_used;
static cudaStream_t stream; // all work of a test goes there

// On that stream, which does not wait for the default one: a plain cudaMemcpy from pageable memory may return while the
// numbers are still on their way.
template <typename Number> static void send_numbers(Number *device, const std::vector<Number> &numbers) {
    size_t bytes = numbers.size() * sizeof(Number);
    cuda_check(cudaMemcpyAsync(device, numbers.data(), bytes, cudaMemcpyHostToDevice, stream));
    cuda_check(cudaStreamSynchronize(stream));
}

// A tensor on both sides: `host` is what the C twin computes with, `device` the GPU's, of type Number. What is drawn is
// rounded to Number first, so that both see the same.
template <typename Number> struct Tensors {
    std::vector<float> host;
    Number *device;

    explicit Tensors(size_t count, double scale = 0, double shift = 0) : host(count) {
        if (scale > 0) random_fill_normal(host.data(), count, random_key(1, "test numbers", streams_used++), scale);
        cuda_check(cudaMalloc((void **)&device, (count ? count : 1) * sizeof(Number)));
        for (float &x : host) x = to_float(from_float<Number>(x + (float)shift));
        if (scale == 0) // results: numbers that no test can overlook when the code fails to overwrite them
            for (float &x : host) x = NAN;
        send();
    }
    ~Tensors() { cuda_check(cudaFree(device)); }
    Tensors(const Tensors &) = delete;
    float *data() { return host.data(); }
    size_t count() const { return host.size(); }
    void send() {
        std::vector<Number> numbers(host.size());
        for (size_t i = 0; i < host.size(); i++) numbers[i] = from_float<Number>(host[i]);
        send_numbers(device, numbers);
    }
    std::vector<float> fetch() const {
        std::vector<Number> numbers(host.size());
        std::vector<float> floats(host.size());
        cuda_check(cudaStreamSynchronize(stream));
        cuda_check(cudaMemcpy(numbers.data(), device, numbers.size() * sizeof(Number), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < numbers.size(); i++) floats[i] = to_float(numbers[i]);
        return floats;
    }
};
typedef Tensors<floatX> Activation;
typedef Tensors<float> Sum;

template <typename Number> static Number *device_copy(const std::vector<Number> &numbers) {
    Number *device;
    cuda_check(cudaMalloc((void **)&device, numbers.size() * sizeof(Number)));
    send_numbers(device, numbers);
    return device;
}

static std::vector<int> random_tokens(size_t count, int V) {
    std::vector<int> tokens(count);
    uint64_t key = random_key(2, "test tokens", streams_used++);
    for (size_t i = 0; i < count; i++) tokens[i] = (int)random_below(key, i, (uint64_t)V);
    return tokens;
}

// The largest difference as a share of the expected tensor's largest number, or of least_scale if that is larger;
// infinite when anything is not finite.
static double worst_difference(const float *found, const float *expected, size_t count, double least_scale = 0) {
    double worst = 0, largest = fmax(least_scale, 1e-30);
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)found[i] - (double)expected[i]) / largest;
        if (!(difference <= worst)) worst = difference;
        if (!isfinite(difference)) return INFINITY;
    }
    return worst;
}

static void check_equal_within(const char *what, const float *found, const float *expected, size_t count, double bound,
                               double least_scale = 0) {
    double worst = worst_difference(found, expected, count, least_scale);
    if (worst <= bound) return;
    CHECK(!"the tensors agree");
    printf("    %s: differs by %.3g of its largest number, allowed %.3g\n", what, worst, bound);
}

template <typename Number> static void check(const char *what, const Tensors<Number> &tensors, double bound) {
    std::vector<float> found = tensors.fetch();
    check_equal_within(what, found.data(), tensors.host.data(), found.size(), bound);
}

#endif
