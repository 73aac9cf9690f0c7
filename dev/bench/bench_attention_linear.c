// The linear attentions against this project's softmax, against their own length, and in memory:
//
//   build/dev/bench/bench_attention_linear [PART...]    (all of them when none is named)
//
//   speed    forward + backward at 12 heads of 64: softmax and slay in turns, by length; the rate of slay's products
//            beside that of a loop of multiplications without any memory
//   limit    the least that slay could take: its products with operands from the cache, what makes its features, and
//            its inputs and outputs read and written once a walk, each alone; beside slay itself and softmax
//   nodes    slay with fewer quadrature nodes beside slay as the paper has it, forward + backward
//   heads    forward of a single head, by all threads and by one
//   growth   forward with its projections, embed 256 in 8 heads, from T = 16384 to 131072: eight times the length
//            should take eight times the time
//   memory   peak resident set of slay at T = 131072, forward and with backward, inputs and outputs included
//   step     one decoded position at 1000 and at 100000
//
// Everything that is compared runs in turns: on a shared machine both sides suffer alike. Times are wall-clock times,
// with OMP_NUM_THREADS threads.
#include "attention/attention.h"
#include "attention/linear_tile.h"
#include "attention/registry.h"
#include "core/base/error.h"
#include "core/math/matmul.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/base/random.h"
#include "core/base/vector_math.h"
#include "dev/bench/peak.h"
#include "dev/bench/turns.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    real *qkv, *dqkv, *out, *dout, *saved, *constants, *work, *cache;
} Bench;

static real *numbers(size_t n, uint64_t key) {
    real *block = memory_allocate(n + 1, sizeof(real), "benchmark buffer");
    for (size_t i = 0; i < n; i++) block[i] = (real)((double)random_word(key, i) * 0x1p-31 - 1);
    return block;
}

// R and M of slay; 0: its defaults
static Bench bench_open_sized(const char *name, int T, int NH, int HS, int backward, int R, int M) {
    Bench bench = {.attention = attention_find(name),
                   .config = {.B = 1, .T = T, .C = NH * HS, .NH = NH, .HS = HS, .max_T = 1 << 17, .seed = 1}};
    size_t count = (size_t)T * (size_t)bench.config.C;
    if (!bench.attention) die("no attention %s", name);
    if (bench.attention->defaults) bench.attention->defaults(&bench.config);
    if (R) bench.config.R = R, bench.config.M = M;
    bench.constants = numbers(attention_constant_count(bench.attention, &bench.config), 1);
    attention_draw(bench.attention, bench.constants, NULL, 0, &bench.config);
    bench.qkv = numbers(3 * count, 2);
    bench.out = numbers(count, 3);
    if (backward) {
        bench.dout = numbers(count, 4);
        bench.dqkv = numbers(3 * count, 5);
        bench.saved = memory_allocate(bench.attention->saved_size(&bench.config) + 1, sizeof(real), "saved");
    }
    bench.work = memory_allocate(bench.attention->work_size(&bench.config) + 1, sizeof(real), "scratch");
    return bench;
}

static Bench bench_open(const char *name, int T, int NH, int HS, int backward) {
    return bench_open_sized(name, T, NH, HS, backward, 0, 0);
}

static void bench_close(Bench *bench) {
    real *all[] = {bench->qkv,   bench->dqkv,      bench->out,  bench->dout,
                   bench->saved, bench->constants, bench->work, bench->cache};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

// Milliseconds of one forward pass, with the backward pass when there is a place for gradients.
static double run(Bench *b) {
    double start = clock_seconds();
    b->attention->forward(b->out, b->saved, b->qkv, b->constants, NULL, b->work, &b->config);
    if (b->dqkv)
        b->attention->backward(b->dqkv, NULL, b->dout, b->qkv, b->out, b->saved, b->constants, NULL, b->work,
                               &b->config);
    return 1e3 * (clock_seconds() - start);
}

// ---- speed

// Multiplications and additions of slay's products, forward and backward, counted as the algorithm needs them. A row's
// features (F of them) meet a state once forward (its output), three times backward (dq, dk, dv), and enter one three
// times; projections are made three times for both sides and have one gradient each.
static double slay_operations(const AttentionConfig *c) {
    double F = (double)c->R * c->M * c->P, projections = (double)c->R * c->M + c->P;
    double state = 7 * F * (c->HS + 1), features = 8 * projections * c->HS;
    double pairs = 32.5 * (7 * c->HS + 5.0 * projections); // of a tile of 64 rows with itself
    return 2 * (double)c->T * c->NH * (state + features + pairs);
}

static void compare_speed(int T, int turns, double wanted) {
    Bench softmax = bench_open("softmax", T, 12, 64, 1), slay = bench_open("slay", T, 12, 64, 1);
    double softmax_ms[TURNS_MAX], slay_ms[TURNS_MAX];
    char work[64];
    run(&slay);
    for (int i = 0; i < turns; i++) softmax_ms[i] = run(&softmax), slay_ms[i] = run(&slay);
    snprintf(work, sizeof work, "slay attention, T=%d", T);
    report_turns((Comparison){work, "ms", "slay.c softmax", wanted}, slay_ms, softmax_ms, turns, 0);
    bench_close(&softmax);
    bench_close(&slay);
}

static void measure_rate(int T, int turns) {
    Bench slay = bench_open("slay", T, 12, 64, 1);
    double rate[TURNS_MAX], peak[TURNS_MAX];
    run(&slay);
    for (int i = 0; i < turns; i++) {
        rate[i] = 1e-6 * slay_operations(&slay.config) / run(&slay);
        peak[i] = 1e-9 * measure_multiplying();
    }
    report_turns((Comparison){"slay's products, T=2048", "GFLOP/s", "multiplications alone", 0}, rate, peak, turns, 1);
    bench_close(&slay);
}

static void bench_speed(void) {
    printf("forward + backward, 12 heads of 64, B = 1, %d threads\n", omp_get_max_threads());
    compare_speed(256, 15, 0);
    compare_speed(512, 11, 0);
    compare_speed(1024, 15, 1.3);
    compare_speed(2048, 9, 0);
    compare_speed(4096, 9, 5);
    compare_speed(16384, 3, 20);
    measure_rate(2048, 15);
}

// ---- limit

enum { BLOCK = 96 }; // features of a block of the state, as linear_core.c has them

typedef struct { // operands of one tile, all of which stay in the cache
    real *rows, *others, *phi, *out, *state;
} Operands;

// A tile's products with a state of F features: `reads` that add to rows, `gradients` that give features, `updates`.
static void multiply_with_state(Operands at, int F, int HS, int reads, int gradients, int updates) {
    for (int from = 0; from < F; from += BLOCK) {
        real *state = at.state + (size_t)from * HS;
        for (int i = 0; i < reads; i++)
            tile_multiply(at.out, HS, (TileLeft){at.phi, 1, TILE}, state, HS, TILE, HS, BLOCK, 1, TILE_FULL);
        for (int i = 0; i < gradients; i++)
            tile_multiply(at.phi, TILE, (TileLeft){state, HS, 1}, at.rows, TILE, BLOCK, TILE, HS, 0, TILE_FULL);
        for (int i = 0; i < updates; i++)
            tile_multiply(state, HS, (TileLeft){at.phi, TILE, 1}, at.others, HS, BLOCK, HS, TILE, 1, TILE_FULL);
    }
}

// A tile's products with itself, of which half is wanted: `dots` of rows' vectors `depth` long, `sums` of such vectors.
static void multiply_pairs(Operands at, int depth, int dots, int sums) {
    for (int i = 0; i < dots; i++)
        tile_multiply(at.out, TILE, (TileLeft){at.others, 1, TILE}, at.rows, TILE, TILE, TILE, depth, 0, TILE_C_UPPER);
    for (int i = 0; i < sums; i++)
        tile_multiply(at.out, TILE, (TileLeft){at.others, TILE, 1}, at.rows, TILE, depth, TILE, TILE, 1, TILE_B_UPPER);
}

// All products of one tile of 64 rows, forward and in the two walks backward. At one end of a sequence or the other
// there is no state yet, or nobody reads it any more: half of the products at each, as if there were one tile less.
static void multiply_tile(Operands at, const AttentionConfig *c, int has_state) {
    int outer = c->R * c->M, projections = outer + c->P, HS = c->HS;
    if (has_state) multiply_with_state(at, outer * c->P, HS, 2, 2, 3);
    for (int i = 0; i < 6; i++) // the projections of queries and keys
        tile_multiply(at.out, TILE, (TileLeft){at.others, HS, 1}, at.rows, TILE, projections, TILE, HS, 0, TILE_FULL);
    for (int i = 0; i < 2; i++) // their gradients
        tile_multiply(at.out, TILE, (TileLeft){at.others, 1, HS}, at.rows, TILE, HS, TILE, projections, 0, TILE_FULL);
    multiply_pairs(at, outer, 3, 2);
    multiply_pairs(at, c->P, 3, 2);
    multiply_pairs(at, HS, 2, 2); // <dout, v> in both walks; out and dv
}

// Milliseconds of the products of `tiles` tiles, which the threads share.
static double time_products(const AttentionConfig *c, int tiles) {
    size_t tile = (size_t)TILE * BLOCK, state = (size_t)c->R * c->M * c->P * (size_t)c->HS, each = 4 * tile + state;
    real *base = numbers(each * (size_t)omp_get_max_threads(), 10);
    memset(base, 0, each * (size_t)omp_get_max_threads() * sizeof(real)); // sums that stay in range
    double start = clock_seconds();
#pragma omp parallel
    {
        real *own = base + each * (size_t)omp_get_thread_num();
        Operands at = {own, own + tile, own + 2 * tile, own + 3 * tile, own + 4 * tile};
#pragma omp for
        for (int i = 0; i < tiles; i++) multiply_tile(at, c, i % (c->T / TILE) > 0);
    }
    double ms = 1e3 * (clock_seconds() - start);
    free(base);
    return ms;
}

// What it takes besides to make the features of a tile of queries or keys: x (HS, TILE) turned round and divided by its
// norm, and an exponential for each projection.
static void make_features(const real *x, real *restrict turned, real *restrict y, const AttentionConfig *c) {
    real sums[TILE] = {0};
    tile_transpose(turned, TILE, x, c->HS, TILE, c->HS, 0);
    for (int d = 0; d < c->HS; d++)
        for (int i = 0; i < TILE; i++) sums[i] += turned[d * TILE + i] * turned[d * TILE + i];
    for (int i = 0; i < TILE; i++) sums[i] = 1 / real_sqrt(sums[i]);
    for (int d = 0; d < c->HS; d++)
        for (int i = 0; i < TILE; i++) turned[d * TILE + i] *= sums[i];
    for (int e = 0; e < c->R * c->M; e++)
        for (int i = 0; i < TILE; i++) y[e * TILE + i] = real_exp(turned[e % c->HS * TILE + i]);
}

// phi (96, TILE) = outer (x) inner, a block at a time as the products want it.
static void make_phi(real *phi, const real *outer, const real *inner, const AttentionConfig *c) {
    for (int e = 0; e < c->R * c->M; e++)
        for (int p = 0; p < c->P; p++) {
            real *restrict product = phi + (e * c->P + p) % BLOCK * TILE;
            for (int i = 0; i < TILE; i++) product[i] = outer[e * TILE + i] * inner[p * TILE + i];
        }
}

// Milliseconds of both for as many tiles: features of queries and keys three times each, phi in five of seven products;
// and dout turned round in two walks, dq and dk once each.
static double time_features(const AttentionConfig *c, int tiles) {
    size_t size = (size_t)TILE * (size_t)max_int(BLOCK, max_int(c->HS, c->R * c->M)), each = 4 * size;
    real *base = numbers(each * (size_t)omp_get_max_threads(), 11);
    double start = clock_seconds();
#pragma omp parallel
    {
        real *x = base + each * (size_t)omp_get_thread_num(), *turned = x + size, *y = turned + size, *phi = y + size;
#pragma omp for
        for (int i = 0; i < tiles; i++) {
            for (int side = 0; side < 6; side++) make_features(x, turned, y, c);
            for (int product = 0; product < 5; product++) make_phi(phi, y, turned, c);
            for (int other = 0; other < 4; other++) tile_transpose(turned, TILE, x, c->HS, TILE, c->HS, 0);
        }
    }
    double ms = 1e3 * (clock_seconds() - start);
    free(base);
    return ms;
}

// Milliseconds of reading the inputs in every walk and of writing the outputs, in the order in which they lie.
static double time_memory(Bench *b) {
    size_t rows = (size_t)b->config.B * (size_t)b->config.T, C = (size_t)b->config.C;
    double start = clock_seconds();
#pragma omp parallel
    {
        Vector sum = {0};
        for (int walk = 0; walk < 3; walk++) {
#pragma omp for nowait
            for (size_t i = 0; i < rows; i++) {
                for (size_t c = 0; c < 3 * C; c += LANES) sum += *(Vector *)(b->qkv + i * 3 * C + c);
                for (size_t c = 0; walk && c < C; c += LANES)
                    sum += *(Vector *)(b->dout + i * C + c) + *(Vector *)(b->out + i * C + c);
            }
        }
#pragma omp for
        for (size_t i = 0; i < rows; i++) {
            for (size_t c = 0; c < 3 * C; c += LANES) *(Vector *)(b->dqkv + i * 3 * C + c) = sum;
            for (size_t c = 0; c < C; c += LANES) *(Vector *)(b->out + i * C + c) = sum;
        }
    }
    return 1e3 * (clock_seconds() - start);
}

static void compare_limit(int T, int turns) {
    Bench softmax = bench_open("softmax", T, 12, 64, 1), slay = bench_open("slay", T, 12, 64, 1);
    double parts[3][TURNS_MAX], least[TURNS_MAX], slay_ms[TURNS_MAX], softmax_ms[TURNS_MAX];
    int tiles = 12 * T / TILE;
    char work[64];
    run(&slay);
    for (int i = 0; i < turns; i++) {
        slay_ms[i] = run(&slay), softmax_ms[i] = run(&softmax);
        parts[0][i] = time_products(&slay.config, tiles);
        parts[1][i] = time_features(&slay.config, tiles);
        parts[2][i] = time_memory(&slay);
        least[i] = parts[0][i] + parts[1][i] + parts[2][i];
    }
    printf("T=%d: products %.2f ms, features %.2f ms, memory %.2f ms\n", T, median(parts[0], turns),
           median(parts[1], turns), median(parts[2], turns));
    snprintf(work, sizeof work, "slay's parts alone, T=%d", T);
    report_turns((Comparison){work, "ms", "slay itself", 0}, least, slay_ms, turns, 0);
    report_turns((Comparison){work, "ms", "slay.c softmax", 0}, least, softmax_ms, turns, 0);
    bench_close(&softmax);
    bench_close(&slay);
}

static void bench_limit(void) {
    printf("forward + backward, 12 heads of 64, B = 1, %d threads: what is left when only parts are done\n",
           omp_get_max_threads());
    compare_limit(1024, 15);
    compare_limit(4096, 9);
    compare_limit(16384, 3);
}

// ---- nodes

static void bench_nodes(void) {
    static const struct { int R, M; } sizes[] = {{2, 24}, {2, 16}, {1, 48}, {1, 16}};
    enum { SIZES = sizeof sizes / sizeof sizes[0], TURNS = 15 };
    Bench paper = bench_open("slay", 4096, 12, 64, 1), others[SIZES];
    double paper_ms[TURNS], ms[SIZES][TURNS];
    for (int s = 0; s < SIZES; s++) others[s] = bench_open_sized("slay", 4096, 12, 64, 1, sizes[s].R, sizes[s].M);
    run(&paper);
    for (int i = 0; i < TURNS; i++) {
        paper_ms[i] = run(&paper);
        for (int s = 0; s < SIZES; s++) ms[s][i] = run(&others[s]);
    }
    for (int s = 0; s < SIZES; s++) {
        char work[64];
        snprintf(work, sizeof work, "slay attention, T=4096, R=%d M=%d", sizes[s].R, sizes[s].M);
        report_turns((Comparison){work, "ms", "R=3 M=16", 0}, ms[s], paper_ms, TURNS, 0);
        bench_close(&others[s]);
    }
    bench_close(&paper);
}

// ---- heads

#define DECLARE(symbol) extern const Attention attention_##symbol;
LINEAR_ATTENTIONS(DECLARE)
#define ADDRESS(symbol) &attention_##symbol,
static const Attention *const linear[] = {LINEAR_ATTENTIONS(ADDRESS)};
enum { LINEAR = sizeof linear / sizeof linear[0] };

static void bench_heads(void) {
    int threads = omp_get_max_threads();
    for (int a = 0; a < LINEAR; a++) {
        double all_ms[TURNS_MAX], one_ms[TURNS_MAX];
        char work[64];
        Bench bench = bench_open(linear[a]->name, 16384, 1, 64, 0);
        enum { TURNS = 15 };
        run(&bench);
        for (int i = 0; i < TURNS; i++) {
            all_ms[i] = run(&bench);
            omp_set_num_threads(1);
            one_ms[i] = run(&bench);
            omp_set_num_threads(threads);
        }
        snprintf(work, sizeof work, "%s forward, 1 head, T=16384, %d threads", linear[a]->name, threads);
        report_turns((Comparison){work, "ms", "one thread", 0}, all_ms, one_ms, TURNS, 0);
        bench_close(&bench);
    }
}

// ---- growth

typedef struct { // an attention layer: x (T,C) -> qkv (T,3C) -> attention -> y (T,C)
    Bench bench;
    real *x, *qkv_weight, *proj_weight, *y;
} Layer;

static Layer layer_open(const char *name, int T) {
    size_t C = 256;
    return (Layer){.bench = bench_open(name, T, 8, 32, 0),
                   .x = numbers((size_t)T * C, 6),
                   .qkv_weight = numbers(3 * C * C, 7),
                   .proj_weight = numbers(C * C, 8),
                   .y = numbers((size_t)T * C, 9)};
}

static void layer_close(Layer *layer) {
    bench_close(&layer->bench);
    free(layer->x), free(layer->qkv_weight), free(layer->proj_weight), free(layer->y);
}

static double run_layer(Layer *layer) {
    int T = layer->bench.config.T, C = layer->bench.config.C;
    double start = clock_seconds();
    matmul(layer->bench.qkv, layer->x, layer->qkv_weight, T, 3 * C, C, 0);
    run(&layer->bench);
    matmul(layer->y, layer->bench.out, layer->proj_weight, T, C, C, 0);
    return 1e3 * (clock_seconds() - start);
}

static void bench_growth(void) {
    printf("forward with projections, 8 heads of 32, B = 1, %d threads, ms\n", omp_get_max_threads());
    printf("%-10s %12s %12s %12s\n", "", "T = 16384", "T = 131072", "grows");
    for (int a = 0; a < LINEAR; a++) {
        Layer shorter = layer_open(linear[a]->name, 1 << 14), longer = layer_open(linear[a]->name, 1 << 17);
        double times[2][5];
        run_layer(&shorter);
        for (int i = 0; i < 5; i++) { // eight short ones weigh as much as one long one
            times[0][i] = 0;
            for (int part = 0; part < 8; part++) times[0][i] += run_layer(&shorter) / 8;
            times[1][i] = run_layer(&longer);
        }
        double short_ms = median(times[0], 5), long_ms = median(times[1], 5);
        printf("%-10s %12.1f %12.1f %11.2fx\n", linear[a]->name, short_ms, long_ms, long_ms / short_ms);
        fflush(stdout);
        layer_close(&shorter);
        layer_close(&longer);
    }
}

// ---- memory

// In a process of its own, since a peak does not come down again.
static void measure_memory(const char *name, int backward) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("no process for the memory measurement");
    if (child == 0) {
        Bench bench = bench_open(name, 1 << 17, 8, 32, backward);
        run(&bench);
        printf("%-10s %-18s %8.0f MB\n", name, backward ? "forward + backward" : "forward",
               (double)memory_peak_bytes() / 1e6);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

// A thread's scratch is the same for any length: nothing is kept for the backward pass but the denominators.
static void compare_scratch(void) {
    AttentionConfig config = {.B = 1, .T = 1 << 17, .C = 64, .NH = 1, .HS = 64, .max_T = 1 << 17, .seed = 1};
    const Attention *slay = attention_find("slay");
    slay->defaults(&config);
    double longest = 1e-6 * sizeof(real) * (double)slay->work_size(&config);
    config.T = 4096;
    double shorter = 1e-6 * sizeof(real) * (double)slay->work_size(&config);
    printf("scratch of all %d threads, 1 head of 64: %.2f MB at T = 4096, %.2f MB at T = 131072\n",
           omp_get_max_threads(), shorter, longest);
}

static void bench_memory(void) {
    compare_scratch();
    printf("peak memory at T = 131072, 8 heads of 32, B = 1, with qkv, out and their gradients\n");
    measure_memory("slay", 0);
    measure_memory("slay", 1);
}

// ---- step

enum { STEP_TURNS = 41 };

// Milliseconds of one position, averaged over `count`.
static double decode(Bench *b, int position, int count) {
    double start = clock_seconds();
    for (int i = 0; i < count; i++)
        b->attention->step(b->out, b->cache, position + i, 1, b->qkv, b->constants, NULL, b->work, &b->config);
    return 1e3 * (clock_seconds() - start) / count;
}

static void bench_step(void) {
    printf("one position, 12 heads of 64, %d threads, ms\n", omp_get_max_threads());
    printf("%-10s %12s %12s %12s\n", "", "at 1000", "at 100000", "ratio");
    for (int a = 0; a < LINEAR; a++) {
        Bench bench = bench_open(linear[a]->name, 64, 12, 64, 0);
        double times[2][STEP_TURNS];
        bench.cache = memory_allocate_zeroed(bench.attention->cache_size(&bench.config), sizeof(real), "decode state");
        bench.attention->step(bench.out, bench.cache, 0, 64, bench.qkv, bench.constants, NULL, bench.work,
                              &bench.config);
        for (int i = 0; i < STEP_TURNS; i++) {
            times[i % 2][i] = decode(&bench, i % 2 ? 100000 : 1000, 100);
            times[1 - i % 2][i] = decode(&bench, i % 2 ? 1000 : 100000, 100);
        }
        double early = median(times[0], STEP_TURNS), late = median(times[1], STEP_TURNS);
        printf("%-10s %12.4f %12.4f %11.3fx\n", linear[a]->name, early, late, late / early);
        fflush(stdout);
        bench_close(&bench);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"memory", bench_memory}, {"speed", bench_speed},   {"limit", bench_limit}, {"nodes", bench_nodes},
                 {"heads", bench_heads},   {"growth", bench_growth}, {"step", bench_step}};
    error_set_program(argv[0]);
    for (int i = 1; i < argc; i++) {
        int known = 0;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) known |= strcmp(argv[i], parts[p].name) == 0;
        if (!known) die("unknown part %s; there are memory, speed, limit, nodes, heads, growth and step", argv[i]);
    }
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) { // memory first: its processes inherit what is in use
        int wanted = argc == 1;
        for (int i = 1; i < argc; i++) wanted |= strcmp(argv[i], parts[p].name) == 0;
        if (wanted) parts[p].run();
    }
    return 0;
}
