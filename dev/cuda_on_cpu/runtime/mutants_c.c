// Which mutant is alive (CUDA_ON_CPU_MUTANT=N), or a list of those that a run reaches
// (CUDA_ON_CPU_MUTANTS_REACHED=FILE): lines of a number and 1, or 2 where floats are compared. A test may be many
// processes: each adds its lines, by one write.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { MUTANTS_MAX = 1 << 20 };
int first_mutant;
unsigned mutant_count;
static unsigned char reached[MUTANTS_MAX];

int reach_mutant(int number) {
    if (mutant_count == 1) return 1;
    reached[number] = 1;
    return 0;
}

int reach_float(int number) {
    reached[number] = 2;
    return 0;
}

__attribute__((destructor)) static void write_reached(void) {
    FILE *file = mutant_count == UINT_MAX ? fopen(getenv("CUDA_ON_CPU_MUTANTS_REACHED"), "a") : NULL;
    if (file) setvbuf(file, NULL, _IOFBF, 16 * MUTANTS_MAX);
    for (int i = 0; file && i < MUTANTS_MAX; i++)
        if (reached[i]) fprintf(file, "%d %d\n", i, reached[i]);
    if (file) fclose(file);
}

__attribute__((constructor)) static void choose(void) {
    const char *alive = getenv("CUDA_ON_CPU_MUTANT");
    if (alive) first_mutant = atoi(alive), mutant_count = first_mutant > 0;
    if (getenv("CUDA_ON_CPU_MUTANTS_REACHED")) first_mutant = 0, mutant_count = UINT_MAX;
}
