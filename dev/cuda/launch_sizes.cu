// Threads and dynamic shared memory of the kernels whose launches decide them; runs without a GPU. A line each: pattern
// of the kernel's name, threads, bytes. For report.py, which assumes that all others are launched with 256 threads, as
// they are.
#include "attention/quadratic.cu"

#include <stdio.h>

template <int WIDTH> static void print_sizes(void) {
    printf("attend<.*, %d> %d %zu\n", WIDTH, AttendTiles<WIDTH>::THREADS, sizeof(AttendTiles<WIDTH>));
    printf("differentiate<.*, %d, .*> %d %zu\n", WIDTH, DifferentiateTiles<WIDTH>::THREADS,
           sizeof(DifferentiateTiles<WIDTH>));
    printf("dot_outputs<%d> %d %zu\n", WIDTH, OutputTiles<WIDTH>::THREADS, sizeof(OutputTiles<WIDTH>));
}

int main(void) {
    printf("decode<.*> %d 0\n", (int)DECODE_THREADS);
    printf("prepare %d 0\n", (int)PREPARE_THREADS);
    printf("combine<.*> %d 0\n", (int)LARGEST_HEAD);
    print_sizes<32>(), print_sizes<64>(), print_sizes<128>();
    return 0;
}
