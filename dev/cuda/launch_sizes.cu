// Threads and dynamic shared memory of the quadratic attentions' kernels, which only their launches know; runs without a
// GPU. A line each: pattern of the kernel's name, threads, bytes. For report.py.
#include "../../attention/quadratic.cuh"

#include <stdio.h>

template <int WIDTH> static void print_sizes(void) {
    printf("attend<.*, %d> %d %zu\n", WIDTH, AttendTiles<WIDTH>::THREADS, sizeof(AttendTiles<WIDTH>));
    printf("differentiate<.*, %d, .*> %d %zu\n", WIDTH, DifferentiateTiles<WIDTH>::THREADS,
           sizeof(DifferentiateTiles<WIDTH>));
}

int main(void) {
    printf("decode<.*> %d 0\n", (int)DECODE_THREADS);
    print_sizes<32>(), print_sizes<64>(), print_sizes<128>();
    return 0;
}
