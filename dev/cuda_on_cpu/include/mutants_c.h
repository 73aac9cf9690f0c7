// What find_mutants.py plants into C sources, as include/mutants.h does it for kernels; the compiler includes this
// before each of them (-include), and runtime/mutants_c.c says which one is alive:
//
//   a condition always true   if (mutant(8) || (i < n))
//   a comparison moved        i < MOVED_UP(9, n)       of whole numbers and pointers: i <= n when 9 is alive
//   an index moved            row[(i) + mutant(10)]
//   a call removed            (void)(mutant(11) || (update(model), 0));
//   a sign turned             a + TURNED(12) * b
#ifndef MUTANTS_C_H
#define MUTANTS_C_H

// The mutants that reach_mutant has to be asked about: none, the one alive, or all while it is noted which are reached.
extern int first_mutant;
extern unsigned mutant_count;
int reach_mutant(int number);
int reach_float(int number);

__attribute__((always_inline)) static inline int mutant(int number) {
    return (unsigned)(number - first_mutant) < mutant_count && reach_mutant(number);
}

__attribute__((always_inline)) static inline int float_mutant(int number) {
    return (unsigned)(number - first_mutant) < mutant_count && reach_float(number);
}

// So narrow a type that it may be a factor of vectors of floats too.
__attribute__((always_inline)) static inline signed char TURNED(int number) {
    return mutant(number) ? -1 : 1;
}

// Where floats are compared, < and <= differ only by chance: nothing is moved, and it is noted that these are floats.
#define MOVED_UP(number, right)                                                                                        \
    ((right) + _Generic((right), float : float_mutant(number), double : float_mutant(number), default : mutant(number)))
#define MOVED_DOWN(number, right)                                                                                      \
    ((right)-_Generic((right), float : float_mutant(number), double : float_mutant(number), default : mutant(number)))

#endif
