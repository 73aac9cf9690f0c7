// core/base/random.h on the device: the same streams, the same numbers.
#ifndef CORE_RANDOM_GPU_H
#define CORE_RANDOM_GPU_H

#include <cuda_runtime.h>
#include <stdint.h>

// Philox4x32-10: the four words of block `counter` of stream `key`, as random_block() gives them.
__host__ __device__ static inline uint4 random_block_gpu(uint64_t key, uint64_t counter) {
    uint4 c = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c.x, product1 = (uint64_t)0xCD9E8D57u * c.z;
        c = {(uint32_t)(product1 >> 32) ^ c.y ^ k0, (uint32_t)product1, (uint32_t)(product0 >> 32) ^ c.w ^ k1,
             (uint32_t)product0};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// words[j] = random_word(key, i + j). Four words whose first index is a multiple of 4 are one block.
template <int WIDTH>
__device__ static inline void random_words_gpu(uint32_t (&words)[WIDTH], uint64_t key, uint64_t i) {
    static_assert(WIDTH == 1 || WIDTH == 4, "one word or one block");
    uint4 block = random_block_gpu(key, i / 4);
    uint32_t all[4] = {block.x, block.y, block.z, block.w};
    if constexpr (WIDTH == 4)
        for (int j = 0; j < 4; j++) words[j] = all[j];
    else
        words[0] = i % 4 == 0 ? all[0] : i % 4 == 1 ? all[1] : i % 4 == 2 ? all[2] : all[3];
}

#endif
