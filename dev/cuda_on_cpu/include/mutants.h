// What find_mutants.py plants into kernels: every mutant of a program is compiled into it, and the environment says
// which one is alive (runtime/mutants.cpp), so that trying another costs a run but no compilation. All are insertions:
//
//   a barrier removed         (cuda_on_cpu::mutant(7) ? (void)0 : (void)__syncthreads())
//   a condition always true   if (cuda_on_cpu::mutant(8) || (i < n))
//   a comparison moved        i < cuda_on_cpu::Moved{9} < n          < or, when 9 is alive, <=
//   an index moved            row[(i) + cuda_on_cpu::mutant(10)]
#ifndef CUDA_ON_CPU_MUTANTS_H
#define CUDA_ON_CPU_MUTANTS_H

#include <type_traits>

namespace cuda_on_cpu {

// The mutants that reach_mutant has to be asked about: none, the one alive, or all while it is noted which are reached.
// Constants, so that check mode does not announce the reading of them.
extern const int first_mutant;
extern const unsigned mutant_count;
bool reach_mutant(int number);
void reach_comparison_of_floats(int number);

[[gnu::always_inline]] inline bool mutant(int number) {
    return (unsigned)(number - first_mutant) < mutant_count && reach_mutant(number);
}

[[gnu::always_inline]] inline void floats_compared(int number) {
    if ((unsigned)(number - first_mutant) < mutant_count) reach_comparison_of_floats(number);
}

// Stands between the two signs of a comparison. All comparisons have the same precedence and go from left to right, so
// whatever stood on either side still does. Where floats are compared, < and <= differ only by chance: those are noted,
// and are not mutants.
struct Moved {
    int number;
};
template <typename Left> struct MovedLeft {
    Left left;
    int number;
};

#define CUDA_ON_CPU_MOVED(sign, moved_sign)                                                                            \
    template <typename Left>[[gnu::always_inline]] inline MovedLeft<Left> operator sign(Left left, Moved moved) {      \
        return {left, moved.number};                                                                                   \
    }                                                                                                                  \
    template <typename Left, typename Right>                                                                           \
    [[gnu::always_inline]] inline bool operator sign(MovedLeft<Left> a, Right right) {                                 \
        if constexpr (std::is_floating_point<Left>::value || std::is_floating_point<Right>::value)                     \
            return floats_compared(a.number), a.left sign right;                                                       \
        else                                                                                                           \
            return mutant(a.number) ? a.left moved_sign right : a.left sign right;                                     \
    }
CUDA_ON_CPU_MOVED(<, <=)
CUDA_ON_CPU_MOVED(<=, <)
CUDA_ON_CPU_MOVED(>, >=)
CUDA_ON_CPU_MOVED(>=, >)
#undef CUDA_ON_CPU_MOVED

} // namespace cuda_on_cpu

#endif
