// Settings from the environment, read once.
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unistd.h>

namespace cuda_on_cpu {

[[noreturn]] static void refuse_setting(const char *name, const char *value, const char *expected) {
    fprintf(stderr, "cuda_on_cpu: %s=%s: expected %s\n", name, value, expected);
    _exit(1);
}

long number_setting(const char *name, long otherwise, long lowest, long highest) {
    const char *value = getenv(name);
    if (!value || !*value) return otherwise;
    char *end;
    long number = strtol(value, &end, 10);
    if (*end || number < lowest || number > highest) refuse_setting(name, value, "a whole number in range");
    return number;
}

static Order order_setting() {
    const char *value = getenv("CUDA_ON_CPU_ORDER");
    if (!value || !*value || !strcmp(value, "forward")) return Order::forward;
    if (!strcmp(value, "reverse")) return Order::reverse;
    if (!strcmp(value, "random")) return Order::random;
    refuse_setting("CUDA_ON_CPU_ORDER", value, "forward, reverse or random");
}

bool tf32_truncates() {
    const char *value = getenv("CUDA_ON_CPU_TF32");
    if (!value || !*value || !strcmp(value, "round")) return false;
    if (!strcmp(value, "truncate")) return true;
    refuse_setting("CUDA_ON_CPU_TF32", value, "round or truncate");
}

// Opening and closing pages costs time at every launch; lazy streams launch in batches.
#ifdef CUDA_ON_CPU_CHECK
static constexpr bool protect_unless_told = true;
#else
static constexpr bool protect_unless_told = false;
#endif

static Options read_options() {
    Options o;
    o.order = order_setting();
    o.seed = (unsigned)number_setting("CUDA_ON_CPU_SEED", (long)(time(nullptr) ^ getpid()) & 0x7fffffff, 0, 0x7fffffff);
    o.lazy = number_setting("CUDA_ON_CPU_LAZY", 0, 0, 1);
    o.protect = number_setting("CUDA_ON_CPU_PROTECT", protect_unless_told || o.lazy, 0, 1);
    o.trace = number_setting("CUDA_ON_CPU_TRACE", 0, 0, 1);
    o.skip = number_setting("CUDA_ON_CPU_SKIP", 0, 0, 1);
    o.memory = (size_t)number_setting("CUDA_ON_CPU_MEMORY_MB", 16384, 1, 1 << 20) << 20;
    o.processors = (int)number_setting("CUDA_ON_CPU_PROCESSORS", 4, 1, 1024);
    o.devices = (int)number_setting("CUDA_ON_CPU_DEVICES", 8, 0, 64);
    o.driver = (int)number_setting("CUDA_ON_CPU_DRIVER", CUDART_VERSION, 0, 99999);
    if (o.order == Order::random) fprintf(stderr, "cuda_on_cpu: random order, CUDA_ON_CPU_SEED=%u\n", o.seed);
    return o;
}

const Options &options() {
    static const Options the_options = read_options();
    return the_options;
}

// splitmix64: the same schedule for the same seed on every machine
uint32_t random_below(uint32_t limit) {
    static uint64_t state = options().seed;
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (uint32_t)(((z >> 32) * limit) >> 32);
}

double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

} // namespace cuda_on_cpu
