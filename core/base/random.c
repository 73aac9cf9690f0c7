#include "random.h"
#include "vector_math.h"

#include <math.h>

RandomBlock random_block(uint64_t key, uint64_t counter) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (RandomBlock){{c0, c1, c2, c3}};
}

uint64_t random_key(uint64_t seed, const char *purpose, uint64_t index) {
    uint64_t hash = 0xcbf29ce484222325u; // FNV-1a over the purpose's name
    for (; *purpose; purpose++) hash = (hash ^ (unsigned char)*purpose) * 0x100000001b3u;
    RandomBlock mixed = random_block(seed, hash);
    mixed = random_block(((uint64_t)mixed.word[1] << 32 | mixed.word[0]), index);
    return (uint64_t)mixed.word[1] << 32 | mixed.word[0];
}

uint32_t random_word(uint64_t key, uint64_t i) {
    return random_block(key, i / 4).word[i % 4];
}

double random_uniform(uint64_t key, uint64_t i) {
    return random_word(key, i) * 0x1p-32;
}

// Box-Muller: a block of four words makes a radius (from a number in (0,1)) and an angle, that is two normals.
static double block_radius_part(RandomBlock block) {
    return (block.word[0] + (block.word[1] + 0.5) * 0x1p-32) * 0x1p-32;
}

static double block_angle(RandomBlock block) {
    return 6.283185307179586 * ((block.word[2] + block.word[3] * 0x1p-32) * 0x1p-32);
}

double random_normal(uint64_t key, uint64_t i) {
    RandomBlock block = random_block(key, i / 2);
    double radius = sqrt(-2.0 * log(block_radius_part(block))), angle = block_angle(block);
    return i % 2 == 0 ? radius * cos(angle) : radius * sin(angle);
}

enum { LANES = 256 }; // blocks worked on at a time, in arrays, so that everything runs vectorised

// random_block for LANES counters from `first` on, word by word.
static void random_blocks(uint32_t word[4][LANES], uint64_t key, uint64_t first) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int j = 0; j < LANES; j++) {
        uint64_t counter = first + (uint64_t)j;
        word[0][j] = (uint32_t)counter, word[1][j] = (uint32_t)(counter >> 32), word[2][j] = 0, word[3][j] = 0;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * word[0][j], product1 = (uint64_t)0xCD9E8D57u * word[2][j];
            word[0][j] = (uint32_t)(product1 >> 32) ^ word[1][j] ^ k0;
            word[2][j] = (uint32_t)(product0 >> 32) ^ word[3][j] ^ k1;
            word[1][j] = (uint32_t)product1;
            word[3][j] = (uint32_t)product0;
        }
    }
}

void random_fill_normal(real *out, size_t count, uint64_t key, double scale) {
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < count; start += 2 * LANES) {
        uint32_t word[4][LANES];
        double length[LANES], angle[LANES], even[LANES], odd[LANES];
        random_blocks(word, key, start / 2);
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            RandomBlock block = {{word[0][j], word[1][j], word[2][j], word[3][j]}};
            length[j] = scale * sqrt(-2.0 * log(block_radius_part(block)));
            angle[j] = block_angle(block);
        }
        // In separate loops: in one, the compiler would combine them into a call that has no vector form.
#pragma omp simd
        for (int j = 0; j < LANES; j++) even[j] = length[j] * cos(angle[j]);
#pragma omp simd
        for (int j = 0; j < LANES; j++) odd[j] = length[j] * sin(angle[j]);
        size_t here = count - start < 2 * LANES ? count - start : 2 * LANES;
        for (size_t i = 0; i < here; i++) out[start + i] = (real)(i % 2 == 0 ? even[i / 2] : odd[i / 2]);
    }
}

uint64_t random_below(uint64_t key, uint64_t i, uint64_t n) {
    RandomBlock block = random_block(key, i);
    uint64_t word = (uint64_t)block.word[1] << 32 | block.word[0];
    return (uint64_t)(((unsigned __int128)word * n) >> 64);
}
