// Which mutant is alive (CUDA_ON_CPU_MUTANT=N), or a list of those that a run reaches
// (CUDA_ON_CPU_MUTANTS_REACHED=FILE): lines of a number and 1, or 2 for a comparison of floats, which is not a mutant.
#include "../include/mutants.h"

#include <climits>
#include <cstdio>
#include <cstdlib>

namespace cuda_on_cpu {

static const char *file_of_reached() {
    return getenv("CUDA_ON_CPU_MUTANTS_REACHED");
}

static int number_alive() {
    const char *value = getenv("CUDA_ON_CPU_MUTANT");
    return value ? atoi(value) : 0;
}

extern const int first_mutant = file_of_reached() ? 0 : number_alive();
extern const unsigned mutant_count = file_of_reached() ? UINT_MAX : number_alive() > 0;

static constexpr int most_mutants = 1 << 20;
enum Reached : unsigned char { NOT_REACHED, REACHED, FLOATS_COMPARED };
static Reached reached[most_mutants];

static void write_reached() {
    FILE *file = fopen(file_of_reached(), "w");
    bool ok = file != nullptr;
    for (int i = 0; ok && i < most_mutants; i++) ok = !reached[i] || fprintf(file, "%d %d\n", i, reached[i]) > 0;
    if (!ok || fclose(file)) {
        fprintf(stderr, "cuda_on_cpu: %s: cannot be written\n", file_of_reached());
        _Exit(1);
    }
}

[[maybe_unused]] static const int writes_at_exit = file_of_reached() ? atexit(write_reached) : 0;

bool reach_mutant(int number) {
    if (mutant_count == 1) return true;
    if (number < most_mutants) reached[number] = REACHED;
    return false;
}

void reach_comparison_of_floats(int number) {
    if (number < most_mutants) reached[number] = FLOATS_COMPARED;
}

} // namespace cuda_on_cpu
