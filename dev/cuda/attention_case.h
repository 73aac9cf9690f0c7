// What attention_forward, attention_backward and attention_decode share: the command line, one random case on both
// sides, the comparison.
#ifndef DEV_CUDA_ATTENTION_CASE_H
#define DEV_CUDA_ATTENTION_CASE_H

#include "attention/yat.cuh"

extern "C" {
#include "core/base/random.h"
}

#include <math.h>
#include <string.h>
#include <vector>

extern const AttentionGPU attention_gpu_softmax, attention_gpu_yat, attention_gpu_yat_spherical;

// The mechanisms, each with the score that the versions are made for.
enum Mechanism { SOFTMAX, YAT, YAT_SPHERICAL, MECHANISMS };
static const AttentionGPU *const mechanisms[MECHANISMS] = {&attention_gpu_softmax, &attention_gpu_yat,
                                                           &attention_gpu_yat_spherical};
typedef YatScore<NORMALIZER_KERNEL, false> PlainYat;
typedef YatScore<NORMALIZER_KERNEL, true> SphericalYat;

typedef std::vector<float> Numbers;

// The C code's own errors come to 6e-6 here: spherical yat divides by sums of small squares.
static const double BOUND = sizeof(floatX) == sizeof(float) ? 2e-5 : 3e-2;

typedef struct {
    int version;
    Mechanism mechanism;
    AttentionConfig config;
    size_t numbers; // of out; qkv has three times as many
    Numbers qkv, dout, out, saved, dqkv;
} Case;

static void refuse(const char *program, int versions) {
    fprintf(stderr,
            "usage: %s [VERSION [MECHANISM [B T NH HS]]]\nVERSION: 1 to %d\nMECHANISM: softmax, yat, yat-spherical\n"
            "HS: at most %d\nWithout arguments: every version of every mechanism, small.\n",
            program, versions, LARGEST_HEAD);
    exit(1);
}

// VERSION [MECHANISM [B T NH HS]]
static Case parse_case(int argc, char **argv, int versions) {
    Case c = {};
    int found = argc < 3 ? SOFTMAX : MECHANISMS;
    for (int m = 0; argc >= 3 && m < MECHANISMS; m++) {
        if (!strcmp(argv[2], mechanisms[m]->cpu->name)) found = m;
    }
    c.version = argc > 1 ? atoi(argv[1]) : 0;
    c.config.B = 2, c.config.T = 150, c.config.NH = 3, c.config.HS = 64;
    if (argc > 3 && argc != 7) refuse(argv[0], versions);
    if (argc == 7) c.config.B = atoi(argv[3]), c.config.T = atoi(argv[4]);
    if (argc == 7) c.config.NH = atoi(argv[5]), c.config.HS = atoi(argv[6]);
    bool sizes = c.config.B > 0 && c.config.T > 0 && c.config.NH > 0 && c.config.HS > 0 && c.config.HS <= LARGEST_HEAD;
    if (c.version < 1 || c.version > versions || found == MECHANISMS || !sizes) refuse(argv[0], versions);
    c.mechanism = (Mechanism)found;
    c.config.C = c.config.NH * c.config.HS, c.config.max_T = c.config.T;
    c.config.eps = 1e-3f, c.config.delta = 1e-6f;
    return c;
}

static void run_cpu(Case &c) {
    const Attention *cpu = mechanisms[c.mechanism]->cpu;
    c.numbers = (size_t)c.config.B * c.config.T * c.config.C;
    Numbers work(cpu->work_size(&c.config));
    c.qkv.resize(3 * c.numbers), c.dqkv.resize(3 * c.numbers), c.out.resize(c.numbers), c.dout.resize(c.numbers);
    c.saved.resize(cpu->saved_size(&c.config));
    for (size_t i = 0; i < 3 * c.numbers; i++) c.qkv[i] = to_float(from_float<floatX>((float)random_normal(1, i)));
    for (size_t i = 0; i < c.numbers; i++) c.dout[i] = to_float(from_float<floatX>((float)random_normal(2, i)));
    cpu->forward(c.out.data(), c.saved.data(), c.qkv.data(), NULL, NULL, work.data(), &c.config);
    cpu->backward(c.dqkv.data(), NULL, c.dout.data(), c.qkv.data(), c.out.data(), c.saved.data(), NULL, NULL,
                  work.data(), &c.config);
}

template <class Number> static Number *allocate(size_t n) {
    Number *data;
    cuda_check(cudaMalloc((void **)&data, n * sizeof(Number)));
    return data;
}

template <class Number> static Number *upload(const Numbers &from) {
    std::vector<Number> converted(from.size());
    for (size_t i = 0; i < from.size(); i++) converted[i] = from_float<Number>(from[i]);
    Number *data = allocate<Number>(from.size());
    cuda_check(cudaMemcpy(data, converted.data(), from.size() * sizeof(Number), cudaMemcpyHostToDevice));
    return data;
}

// Runs `launch` once to check and five times to measure; returns whether the result is right.
template <class Launch>
static bool check_and_time(const Case &c, const char *what, const floatX *result, const Numbers &expected,
                           Launch launch) {
    enum { ROUNDS = 5 };
    std::vector<floatX> found(expected.size());
    double worst = 0, largest = 0;
    float milliseconds;
    launch();
    cuda_check(cudaMemcpy(found.data(), result, found.size() * sizeof(floatX), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < found.size(); i++) {
        double d = fabs((double)to_float(found[i]) - expected[i]);
        if (!(d <= worst)) worst = d;
        largest = fmax(largest, fabs(expected[i]));
    }
    bool right = worst <= BOUND * largest;
    cudaEvent_t start, stop;
    cuda_check(cudaEventCreate(&start)), cuda_check(cudaEventCreate(&stop));
    cuda_check(cudaEventRecord(start));
    for (int i = 0; i < ROUNDS; i++) launch();
    cuda_check(cudaEventRecord(stop));
    cuda_check(cudaEventSynchronize(stop));
    cuda_check(cudaEventElapsedTime(&milliseconds, start, stop));
    cuda_check(cudaEventDestroy(start)), cuda_check(cudaEventDestroy(stop));
    printf("%s version %d, %s, %s: B %d, T %d, NH %d, HS %d: %s (off by %.1e of the largest), %.3f ms\n", what,
           c.version, mechanisms[c.mechanism]->cpu->name, PRECISION_NAME, c.config.B, c.config.T, c.config.NH,
           c.config.HS, right ? "right" : "WRONG", worst / largest, milliseconds / ROUNDS);
    return right;
}

// Runs one case, given as arguments, or all of them; returns the exit code. `run` says whether a case came out right.
static int run_cases(int argc, char **argv, int versions, bool (*run)(Case &)) {
    if (argc > 1) {
        Case c = parse_case(argc, argv, versions);
        return !run(c);
    }
    int passed = 0, failed = 0;
    for (int version = 1; version <= versions; version++) {
        for (int m = 0; m < MECHANISMS; m++) {
            char number[16];
            snprintf(number, sizeof number, "%d", version);
            char *arguments[] = {argv[0], number, (char *)mechanisms[m]->cpu->name};
            Case c = parse_case(3, arguments, versions);
            run(c) ? passed++ : failed++;
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}

// What the early versions multiply a row of q or k by; scale is that of queries, else 1.
template <class Score> __device__ float row_factor(const floatX *row, int HS, float scale) {
    if (!Score::unit_length) return scale;
    float square = 0;
    for (int d = 0; d < HS; d++) square += to_float(row[d]) * to_float(row[d]);
    return 1 / fmaxf(sqrtf(square), LEAST_NORM);
}

__device__ static inline float dot_rows(const floatX *a, const floatX *b, int HS) {
    float sum = 0;
    for (int d = 0; d < HS; d++) sum += to_float(a[d]) * to_float(b[d]);
    return sum;
}

// A query's online state after one more pair.
template <class Score> __device__ float fold_pair(float &level, float &total, float score, float &factor) {
    float raised = raised_level<Score::normalizer>(level, score);
    factor = raised == level ? 1.0f : relevel<Score::normalizer>(level, raised);
    float weight = weight_of<Score::normalizer>(score, raised);
    total = total * factor + weight;
    level = raised;
    return weight;
}

#endif
