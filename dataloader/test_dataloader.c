// Shards and the loader: the format, every bad file of the list in docs/data.md, order, ranks, resume, evaluation.
#define _GNU_SOURCE
#include "shard.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- files to read

static char folder[] = "/tmp/test_dataloader.XXXXXX";
static Error error;

static const char *path_of(const char *name) {
    static char paths[4][256]; // so that a call can name a few
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void empty_folder(void) {
    Error ignored;
    directory_remove(folder, &ignored);
    directory_create(folder, &ignored);
}

static void write_bytes(const char *name, const void *data, size_t bytes) {
    CHECK(file_replace(path_of(name), data, bytes, &error) == 0);
}

// Token i of a test shard: (base + i) mod 60000, so that a row tells where it came from.
static uint16_t token(uint64_t base, uint64_t i) {
    return (uint16_t)((base + i) % 60000);
}

static void write_shard(const char *name, uint64_t base, size_t count) {
    uint16_t *tokens = memory_allocate(count, sizeof *tokens, "tokens");
    for (size_t i = 0; i < count; i++) tokens[i] = token(base, i);
    ShardWriter writer;
    CHECK(shard_writer_open(&writer, path_of(name), &error) == 0);
    CHECK(shard_write(&writer, tokens, count / 3, &error) == 0);
    CHECK(shard_write(&writer, tokens + count / 3, count - count / 3, &error) == 0);
    CHECK(shard_writer_commit(&writer, &error) == 0);
    free(tokens);
}

// A file as it comes: a header with any words, then `bytes` bytes 1, 2, 3, ...
static void write_raw(const char *name, int32_t magic, int32_t version, int32_t word2, int32_t word3, size_t bytes) {
    char *file = memory_allocate_zeroed(1, SHARD_HEADER_BYTES + bytes, "a file");
    memcpy(file, (int32_t[]){magic, version, word2, word3}, 16);
    for (size_t i = 0; i < bytes; i++) file[SHARD_HEADER_BYTES + i] = (char)i;
    write_bytes(name, file, SHARD_HEADER_BYTES + bytes);
    free(file);
}

static DataLoader *open_loader(DataLoaderConfig config) {
    DataLoader *loader = NULL;
    if (!config.vocab) config.vocab = 65536;
    if (dataloader_open(&loader, &config, &error) == 0) return loader;
    printf("  %s\n", error.text);
    test_complain(__FILE__, __LINE__, "dataloader_open");
    exit(1);
}

// Opening must fail with a line that names the file and says what is wrong.
static void check_refused(DataLoaderConfig config, const char *name, const char *why) {
    DataLoader *loader = NULL;
    error.text[0] = 0;
    if (!config.vocab) config.vocab = 65536;
    if (!config.T) config.T = 4;
    CHECK(dataloader_open(&loader, &config, &error) == -1 && loader == NULL);
    CHECK_CONTAINS(error.text, why);
    CHECK_CONTAINS(error.text, name);
    CHECK(!strchr(error.text, '\n'));
    dataloader_close(loader);
}

static void check_bad_file(const char *name, const char *why) {
    check_refused((DataLoaderConfig){.pattern = path_of(name)}, name, why);
}

// ---- the format

static void writes_llm_c_format(void) {
    write_shard("a.bin", 7, 100);
    char *file;
    size_t bytes;
    CHECK(file_read(&file, &bytes, path_of("a.bin"), 1 << 20, &error) == 0);
    CHECK(bytes == 1024 + 200);
    int32_t words[256];
    uint16_t tokens[100];
    memcpy(words, file, sizeof words);
    memcpy(tokens, file + 1024, sizeof tokens);
    CHECK(words[0] == 20240520 && words[1] == 1 && words[2] == 100);
    for (int i = 3; i < 256; i++) CHECK(words[i] == 0);
    for (int i = 0; i < 100; i++) CHECK(tokens[i] == 7 + i);
    CHECK(!file_exists(path_of("a.bin.tmp")));
    free(file);
}

static void writer_leaves_nothing_half_written(void) {
    ShardWriter writer;
    CHECK(shard_writer_open(&writer, path_of("none.bin"), &error) == 0);
    CHECK(shard_writer_commit(&writer, &error) == -1);
    CHECK_CONTAINS(error.text, "no tokens");
    CHECK(shard_writer_open(&writer, path_of("none.bin"), &error) == 0);
    CHECK(shard_write(&writer, (uint16_t[]){1, 2}, 2, &error) == 0);
    shard_writer_abort(&writer);
    CHECK(!file_exists(path_of("none.bin")) && !file_exists(path_of("none.bin.tmp")));
    CHECK(shard_writer_open(&writer, path_of("missing/none.bin"), &error) == -1);
    CHECK_CONTAINS(error.text, "missing/none.bin");
}

static void reads_ranges_and_refuses_others(void) {
    Shard shard;
    uint16_t tokens[100];
    write_shard("a.bin", 0, 100);
    CHECK(shard_open(&shard, path_of("a.bin"), &error) == 0);
    CHECK(shard.count == 100);
    CHECK(shard_read(&shard, 90, 10, tokens, &error) == 0 && tokens[0] == 90 && tokens[9] == 99);
    CHECK(shard_read(&shard, 100, 0, tokens, &error) == 0);
    CHECK(shard_read(&shard, 91, 10, tokens, &error) == -1);
    CHECK(shard_read(&shard, UINT64_MAX - 1, 10, tokens, &error) == -1);
    CHECK(shard_read(&shard, 1, SIZE_MAX, tokens, &error) == -1);
    shard_close(&shard);
    shard_close(&shard);
}

// ---- bad shards

static void refuses_files_that_are_no_shards(void) {
    write_bytes("empty.bin", "", 0);
    check_bad_file("empty.bin", "empty");
    write_bytes("one.bin", "x", 1);
    check_bad_file("one.bin", "only 1 bytes");
    char page[2048];
    memset(page, '.', sizeof page);
    memcpy(page, "<html>\n.\r.\t.", 12);
    write_bytes("page.bin", page, sizeof page);
    check_bad_file("page.bin", "found text");
    write_raw("magic.bin", 12345, 1, 10, 0, 20);
    check_bad_file("magic.bin", "magic number 20240520, found 12345");
    write_raw("version.bin", SHARD_MAGIC, 2, 10, 0, 20);
    check_bad_file("version.bin", "version 2, expected 1");
}

static void refuses_wrong_counts(void) {
    write_raw("header.bin", SHARD_MAGIC, 1, 10, 0, 0);
    check_bad_file("header.bin", "followed by 0 bytes");
    write_raw("zero.bin", SHARD_MAGIC, 1, 0, 0, 0);
    check_bad_file("zero.bin", "without tokens");
    write_raw("zero_of_ten.bin", SHARD_MAGIC, 1, 0, 0, 20);
    check_bad_file("zero_of_ten.bin", "says 0 tokens");
    write_raw("negative.bin", SHARD_MAGIC, 1, -10, 0, 20);
    check_bad_file("negative.bin", "followed by 20 bytes");
    write_raw("negative64.bin", SHARD_MAGIC, 1, -10, -1, 20);
    check_bad_file("negative64.bin", "says -10 tokens");
    write_raw("huge.bin", SHARD_MAGIC, 1, 0x7fffffff, 0, 20);
    check_bad_file("huge.bin", "says 2147483647 tokens");
    write_raw("word3.bin", SHARD_MAGIC, 1, 10, 1, 20);
    check_bad_file("word3.bin", "says 4294967306 tokens");
    write_raw("wraps.bin", SHARD_MAGIC, 1, 10, INT32_MIN, 20); // 2 * count wraps to 20
    check_bad_file("wraps.bin", "followed by 20 bytes");
}

static void refuses_wrong_sizes(void) {
    write_raw("short.bin", SHARD_MAGIC, 1, 10, 0, 18);
    check_bad_file("short.bin", "followed by 18 bytes");
    write_raw("long.bin", SHARD_MAGIC, 1, 10, 0, 22);
    check_bad_file("long.bin", "followed by 22 bytes");
    write_raw("odd.bin", SHARD_MAGIC, 1, 10, 0, 21);
    check_bad_file("odd.bin", "followed by 21 bytes");
    write_raw("odd_short.bin", SHARD_MAGIC, 1, 10, 0, 19);
    check_bad_file("odd_short.bin", "followed by 19 bytes");
}

static void refuses_uint32_with_a_hint(void) {
    write_raw("llama.bin", 20240801, 7, 10, 0, 40);
    check_bad_file("llama.bin", "uint32");
    write_raw("wide.bin", SHARD_MAGIC, 1, 10, 0, 40);
    check_bad_file("wide.bin", "uint32");
}

static void refuses_what_is_no_file(void) {
    check_bad_file("nothing_*.bin", "no match");
    check_bad_file("nothing.bin", "no such file");
    CHECK(mkdir(path_of("sub"), 0777) == 0);
    check_bad_file("sub", "no shards (*.bin)");
    rmdir(path_of("sub"));
    CHECK(mkfifo(path_of("fifo.bin"), 0666) == 0);
    check_bad_file("fifo.bin", "expected a regular file");
    CHECK(symlink("nowhere", path_of("dangling.bin")) == 0);
    check_bad_file("dangling.bin", "cannot open");
}

static void refuses_tokens_outside_the_vocabulary(void) {
    int places[] = {0, 99};
    for (int i = 0; i < 2; i++) {
        uint16_t tokens[100] = {0};
        tokens[places[i]] = 300;
        ShardWriter writer;
        CHECK(shard_writer_open(&writer, path_of("v.bin"), &error) == 0);
        CHECK(shard_write(&writer, tokens, 100, &error) == 0 && shard_writer_commit(&writer, &error) == 0);
        check_refused((DataLoaderConfig){.pattern = path_of("v.bin"), .vocab = 300}, "v.bin", "token 300 at position");
        dataloader_close(open_loader((DataLoaderConfig){.pattern = path_of("v.bin"), .vocab = 301, .T = 4}));
    }
}

static void catches_a_bad_token_in_the_middle_when_read(void) {
    uint16_t tokens[100] = {0};
    tokens[50] = 300;
    ShardWriter writer;
    CHECK(shard_writer_open(&writer, path_of("m.bin"), &error) == 0);
    CHECK(shard_write(&writer, tokens, 100, &error) == 0 && shard_writer_commit(&writer, &error) == 0);
    DataLoader *loader = open_loader((DataLoaderConfig){.pattern = path_of("m.bin"), .vocab = 300, .T = 4});
    int32_t inputs[4], targets[4];
    for (int row = 0; row < 24; row++) { // rows 0..23 of tokens 4 row .. 4 row + 4
        int bad = 4 * row <= 50 && 50 <= 4 * row + 4;
        CHECK(dataloader_rows_at(loader, row, 1, inputs, targets, &error) == (bad ? -1 : 0));
        if (bad) CHECK_CONTAINS(error.text, "m.bin: token 300 at position 50");
    }
    dataloader_close(loader);
}

static void refuses_too_little_data(void) {
    write_shard("few.bin", 0, 4 * 8 + 1);
    DataLoaderConfig config = {.pattern = path_of("few.bin"), .T = 8, .least_rows = 4};
    dataloader_close(open_loader(config));
    write_shard("few.bin", 0, 4 * 8);
    check_refused(config, "few.bin", "make 3 rows of T = 8, expected at least 4");
    check_refused((DataLoaderConfig){.pattern = path_of("few.bin"), .T = 32}, "few.bin", "make 0 rows");
    check_refused((DataLoaderConfig){.pattern = path_of("few.bin"), .T = 2147483647}, "few.bin", "make 0 rows");
    write_raw("single.bin", SHARD_MAGIC, 1, 1, 0, 2);
    check_refused((DataLoaderConfig){.pattern = path_of("single.bin"), .T = 1}, "single.bin", "make 0 rows");
    check_refused((DataLoaderConfig){.pattern = path_of("single.bin"), .T = 1, .whole = 1}, "single.bin",
                  "make 0 rows");
}

static void refuses_bad_configurations(void) {
    const char *path = path_of("few.bin");
    write_shard("few.bin", 0, 100);
    check_refused((DataLoaderConfig){.pattern = path, .T = -1}, "", "T is -1");
    check_refused((DataLoaderConfig){.pattern = path, .vocab = 65537}, "", "65537 tokens");
    check_refused((DataLoaderConfig){.pattern = path, .whole = 1, .shuffle = 1}, "", "not shuffled");
    check_refused((DataLoaderConfig){.pattern = path, .limit = -1}, "", "negative");
}

static void names_the_bad_one_among_good_ones(void) {
    empty_folder();
    write_shard("a.bin", 0, 100);
    write_raw("b.bin", SHARD_MAGIC, 1, 10, 0, 18);
    write_shard("c.bin", 0, 100);
    check_refused((DataLoaderConfig){.pattern = path_of("*.bin")}, "b.bin", "followed by 18 bytes");
    check_refused((DataLoaderConfig){.pattern = folder}, "b.bin", "followed by 18 bytes");
}

static void survives_a_file_that_shrinks(void) {
    enum { T = 1024 };
    static int32_t inputs[T], targets[T];
    write_shard("shrinks.bin", 0, 64 * T + 1);
    DataLoader *loader = open_loader((DataLoaderConfig){.pattern = path_of("shrinks.bin"), .T = T});
    CHECK(dataloader_rows_at(loader, 63, 1, inputs, targets, &error) == 0);
    CHECK(truncate(path_of("shrinks.bin"), 1024 + 2 * 32 * T) == 0);
    CHECK(dataloader_rows_at(loader, 0, 1, inputs, targets, &error) == 0 && inputs[5] == 5);
    for (int i = 0; i < 3; i++) { // again and again: the signal must not stay blocked
        CHECK(dataloader_rows_at(loader, 60 + i, 1, inputs, targets, &error) == -1);
        CHECK_CONTAINS(error.text, "shrinks.bin: the file shrank");
    }
    CHECK(dataloader_rows_at(loader, 1, 1, inputs, targets, &error) == 0 && inputs[0] == T);
    dataloader_close(loader);
}

// ---- large shards

static void reads_a_sparse_shard_beyond_4_GB(void) {
    enum { T = 16 };
    uint64_t count = 2684354560u; // 5 GiB of tokens, more than 2^31 of them
    int descriptor = open(path_of("large.bin"), O_CREAT | O_RDWR | O_TRUNC, 0666);
    if (descriptor < 0 || ftruncate(descriptor, (off_t)(1024 + 2 * count)) != 0) {
        if (descriptor >= 0) close(descriptor);
        SKIP("no files of 5 GB here");
    }
    uint32_t words[4] = {SHARD_MAGIC, SHARD_VERSION, (uint32_t)count, (uint32_t)(count >> 32)};
    uint64_t place = 2400000000u / T * T; // beyond 4 GB and beyond 2^31 tokens
    CHECK(pwrite(descriptor, words, sizeof words, 0) == sizeof words);
    for (int t = 0; t <= T; t++) {
        uint16_t value = token(100, (uint64_t)t);
        CHECK(pwrite(descriptor, &value, 2, (off_t)(1024 + 2 * (place + (uint64_t)t))) == 2);
    }
    close(descriptor);
    DataLoader *loader = open_loader((DataLoaderConfig){.pattern = path_of("large.bin"), .T = T});
    CHECK(dataloader_tokens(loader) == (int64_t)count);
    CHECK(dataloader_rows(loader) == (int64_t)((count - 1) / T));
    int32_t inputs[T], targets[T];
    CHECK(dataloader_rows_at(loader, (int64_t)place / T, 1, inputs, targets, &error) == 0);
    for (int t = 0; t < T; t++) CHECK(inputs[t] == 100 + t && targets[t] == 101 + t);
    CHECK(dataloader_rows_at(loader, (int64_t)place / T - 1, 1, inputs, targets, &error) == 0);
    CHECK(inputs[0] == 0 && targets[T - 1] == 100);
    CHECK(memory_peak_bytes() < 512u << 20);
    dataloader_close(loader);
    unlink(path_of("large.bin"));
}

static void accepts_2_to_the_31_tokens(void) { // the first count that needs more than llm.c's int32
    int descriptor = open(path_of("large.bin"), O_CREAT | O_RDWR | O_TRUNC, 0666);
    uint32_t words[4] = {SHARD_MAGIC, SHARD_VERSION, 1u << 31, 0};
    if (descriptor < 0 || ftruncate(descriptor, 1024 + (1LL << 32)) != 0) {
        if (descriptor >= 0) close(descriptor);
        SKIP("no files of 4 GB here");
    }
    CHECK(pwrite(descriptor, words, sizeof words, 0) == sizeof words);
    close(descriptor);
    DataLoader *loader = open_loader((DataLoaderConfig){.pattern = path_of("large.bin"), .T = 1024});
    CHECK(dataloader_tokens(loader) == 1LL << 31);
    dataloader_close(loader);
    unlink(path_of("large.bin"));
}

// ---- order

static int is_bijection(uint64_t key, uint64_t n) {
    char *seen = memory_allocate_zeroed(n, 1, "flags");
    int good = 1;
    for (uint64_t i = 0; i < n && good; i++) {
        uint64_t to = permutation_at(key, n, i);
        good = to < n && !seen[to];
        if (good) seen[to] = 1;
    }
    free(seen);
    return good;
}

static void permutation_is_a_bijection(void) {
    uint64_t large[] = {257, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 7919, 10007, 65536, 65537, 99991, 1 << 17};
    for (uint64_t n = 1; n <= 200; n++)
        for (uint64_t seed = 0; seed < 5; seed++) CHECK(is_bijection(random_key(seed, "test", n), n));
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) CHECK(is_bijection(random_key(9, "test", i), large[i]));
    for (uint64_t i = 0; i < 1000; i++) CHECK(permutation_at(5, 1ULL << 40, i) < 1ULL << 40);
}

// Over many keys every element lands everywhere equally often, and neighbours do not stay neighbours.
static void permutation_is_random(void) {
    enum { N = 10, KEYS = 20000 };
    static int counts[N][N];
    for (uint64_t k = 0; k < KEYS; k++)
        for (uint64_t i = 0; i < N; i++) counts[i][permutation_at(random_key(k, "test", 0), N, i)]++;
    double chi_square = 0, expected = KEYS / (double)N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) chi_square += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
    CHECK(chi_square < 150); // 81 degrees of freedom: mean 81, deviation 12.7
    int fixed = 0, neighbours = 0;
    for (uint64_t i = 0; i < 9999; i++) {
        uint64_t here = permutation_at(3, 10000, i), next = permutation_at(3, 10000, i + 1);
        fixed += here == i;
        neighbours += here + 1 == next;
    }
    CHECK(fixed <= 6 && neighbours <= 6); // each is one on average
}

enum { SMALL_T = 8, SMALL_ROWS = 4 + 0 + 12 + 1 };

// Four shards of unequal size, one of them too short for a row.
static void write_unequal_shards(void) {
    empty_folder();
    write_shard("s_3.bin", 30000, SMALL_T + 2);
    write_shard("s_1.bin", 10000, SMALL_T - 1);
    write_shard("s_2.bin", 20000, 12 * SMALL_T + 6);
    write_shard("s_0.bin", 0, 4 * SMALL_T + 1);
}

static DataLoader *open_small(int shuffle, uint64_t seed) {
    return open_loader(
        (DataLoaderConfig){.pattern = path_of("s_*.bin"), .T = SMALL_T, .shuffle = shuffle, .seed = seed});
}

// The first token of row `index`, after checking the rest of the row against it.
static int first_token(DataLoader *loader, int64_t index) {
    int32_t inputs[SMALL_T], targets[SMALL_T];
    CHECK(dataloader_rows_at(loader, index, 1, inputs, targets, &error) == 0);
    for (int t = 0; t < SMALL_T; t++) CHECK(inputs[t] == inputs[0] + t && targets[t] == inputs[t] + 1);
    return inputs[0];
}

static void reads_unequal_shards_in_order(void) {
    write_unequal_shards();
    const char *patterns[] = {path_of("s_*.bin"), path_of("s_[0123].bin"), folder};
    for (int p = 0; p < 3; p++) {
        DataLoader *loader = open_loader((DataLoaderConfig){.pattern = patterns[p], .T = SMALL_T});
        CHECK(dataloader_rows(loader) == SMALL_ROWS && dataloader_shards(loader) == 4);
        CHECK(dataloader_tokens(loader) == 33 + 7 + 102 + 10);
        CHECK(dataloader_targets(loader) == SMALL_ROWS * SMALL_T);
        for (int i = 0; i < 2 * SMALL_ROWS; i++) {
            int row = i % SMALL_ROWS, base = row < 4 ? 0 : row < 16 ? 20000 - 4 * SMALL_T : 30000 - 16 * SMALL_T;
            CHECK(first_token(loader, i) == base + row * SMALL_T);
        }
        dataloader_close(loader);
    }
}

static void reads_a_file_whose_name_looks_like_a_pattern(void) {
    write_shard("odd[1].bin", 5, 100);
    DataLoader *loader = open_loader((DataLoaderConfig){.pattern = path_of("odd[1].bin"), .T = SMALL_T});
    CHECK(first_token(loader, 0) == 5);
    dataloader_close(loader);
}

static void shuffles_every_row_once_per_epoch(void) {
    write_unequal_shards();
    DataLoader *loader = open_small(1, 42);
    int same_place = 0, shifts = 0, orders[3][SMALL_ROWS];
    for (int epoch = 0; epoch < 3; epoch++) {
        char seen[SMALL_ROWS] = {0};
        int shift_of_shard_2 = -1;
        for (int i = 0; i < SMALL_ROWS; i++) {
            int start = first_token(loader, epoch * SMALL_ROWS + i), shard = start / 10000, within = start % 10000;
            int row = (shard == 0 ? 0 : shard == 2 ? 4 : 16) + within / SMALL_T;
            CHECK(!seen[row]);
            seen[row] = 1;
            orders[epoch][i] = row;
            if (shard == 2 && shift_of_shard_2 < 0) shift_of_shard_2 = within % SMALL_T;
            if (shard == 2) CHECK(within % SMALL_T == shift_of_shard_2 && shift_of_shard_2 <= 5);
        }
        shifts |= 1 << shift_of_shard_2;
        for (int i = 0; epoch && i < SMALL_ROWS; i++) same_place += orders[epoch][i] == orders[0][i];
    }
    CHECK(same_place < SMALL_ROWS / 2); // two on average
    CHECK(shifts & (shifts - 1));       // more than one shift was used
    dataloader_close(loader);
}

static void seed_decides_the_order(void) {
    write_unequal_shards();
    DataLoader *a = open_small(1, 1), *b = open_small(1, 1), *c = open_small(1, 2);
    int different = 0;
    for (int i = 0; i < 3 * SMALL_ROWS; i++) {
        int start = first_token(a, i);
        CHECK(start == first_token(b, i));
        different += start != first_token(c, i);
    }
    CHECK(different > 2 * SMALL_ROWS);
    dataloader_close(a);
    dataloader_close(b);
    dataloader_close(c);
}

// ---- ranks and resume

static void ranks_read_what_one_process_reads(void) {
    enum { B = 3, ACCUMULATION = 2, STEPS = 7, TOKENS = B * SMALL_T };
    write_unequal_shards();
    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            DataLoader *all = open_small(shuffle, 5), *mine[4];
            int rows = ranks * ACCUMULATION * B; // of one step
            int32_t *inputs = memory_allocate((size_t)rows, SMALL_T * sizeof(int32_t), "rows"), part_inputs[TOKENS];
            int32_t *targets = memory_allocate((size_t)rows, SMALL_T * sizeof(int32_t), "rows"), part_targets[TOKENS];
            for (int rank = 0; rank < ranks; rank++) mine[rank] = open_small(shuffle, 5);
            for (int step = 0; step < STEPS; step++) {
                CHECK(dataloader_rows_at(all, 0, rows, inputs, targets, &error) == 0);
                dataloader_advance(all, rows);
                for (int micro = 0; micro < ACCUMULATION * ranks; micro++) {
                    DataLoader *loader = mine[micro % ranks];
                    CHECK(dataloader_rows_at(loader, micro * B, B, part_inputs, part_targets, &error) == 0);
                    CHECK(!memcmp(part_inputs, inputs + micro * TOKENS, sizeof part_inputs));
                    CHECK(!memcmp(part_targets, targets + micro * TOKENS, sizeof part_targets));
                }
                for (int rank = 0; rank < ranks; rank++) dataloader_advance(mine[rank], rows);
            }
            for (int rank = 0; rank < ranks; rank++) dataloader_close(mine[rank]);
            dataloader_close(all);
            free(inputs);
            free(targets);
        }
}

static void resumes_at_any_position(void) {
    write_unequal_shards();
    DataLoader *straight = open_small(1, 7);
    for (int stop = 0; stop < 3 * SMALL_ROWS; stop++) {
        DataLoader *first = open_small(1, 7), *second = open_small(1, 7);
        dataloader_advance(first, stop);
        json_t *json = dataloader_to_json(first);
        char *text = json_dumps(json, 0);
        json_t *loaded = json_loads(text, 0, NULL);
        CHECK(strlen(text) < 200);
        CHECK(dataloader_from_json(second, loaded, 0, &error) == 0);
        CHECK(dataloader_position(second) == stop);
        for (int i = 0; i < 5; i++) CHECK(first_token(second, i) == first_token(straight, stop + i));
        json_decref(json);
        json_decref(loaded);
        free(text);
        dataloader_close(first);
        dataloader_close(second);
    }
    dataloader_close(straight);
}

static void check_resume_refused(const json_t *json, DataLoader *loader, const char *difference) {
    CHECK(dataloader_from_json(loader, json, 0, &error) == -1);
    CHECK_CONTAINS(error.text, difference);
    CHECK(dataloader_position(loader) == 0);
    CHECK(dataloader_from_json(loader, json, 1, &error) == 0);
    CHECK(dataloader_position(loader) == 11);
    dataloader_close(loader);
}

static void refuses_to_resume_with_other_data(void) {
    write_unequal_shards();
    DataLoader *loader = open_small(1, UINT64_MAX);
    dataloader_seek(loader, 11);
    json_t *json = dataloader_to_json(loader);
    DataLoader *same = open_small(1, UINT64_MAX);
    CHECK(dataloader_from_json(same, json, 0, &error) == 0);
    dataloader_close(same);
    dataloader_close(loader);
    check_resume_refused(json, open_small(1, 8), "different: seed (");
    check_resume_refused(json, open_small(0, UINT64_MAX), "different: shuffle (true, now false)");
    DataLoaderConfig config = {.pattern = path_of("s_*.bin"), .T = 9, .shuffle = 1, .seed = UINT64_MAX};
    check_resume_refused(json, open_loader(config), "different: T (8, now 9)");
    write_shard("s_2.bin", 20001, 12 * SMALL_T + 6); // the same size, other content
    check_resume_refused(json, open_small(1, UINT64_MAX), "different: fingerprint (");
    write_shard("s_2.bin", 20000, 12 * SMALL_T + 5);
    check_resume_refused(json, open_small(1, UINT64_MAX), "different: tokens (152, now 151), fingerprint (");
    json_decref(json);
}

static void refuses_damaged_positions(void) {
    const char *damaged[] = {"{}",
                             "[]",
                             "7",
                             "{\"position\": -1}",
                             "{\"position\": 1.5}",
                             "{\"position\": \"1\"}",
                             "{\"position\": 9223372036854775807}"};
    write_unequal_shards();
    DataLoader *loader = open_small(0, 0);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        json_t *json = json_loads(damaged[i], JSON_DECODE_ANY, NULL);
        CHECK(dataloader_from_json(loader, json, 1, &error) == -1);
        CHECK_CONTAINS(error.text, "no valid position");
        json_decref(json);
    }
    CHECK(dataloader_from_json(loader, NULL, 0, &error) == -1);
    dataloader_close(loader);
}

static void renamed_shards_are_the_same_data(void) {
    write_unequal_shards();
    DataLoader *before = open_small(0, 0);
    CHECK(rename(path_of("s_3.bin"), path_of("s_4.bin")) == 0);
    DataLoader *after = open_small(0, 0);
    CHECK(dataloader_fingerprint(before) == dataloader_fingerprint(after));
    dataloader_close(before);
    dataloader_close(after);
}

static void finds_training_data_among_validation_data(void) {
    write_unequal_shards();
    DataLoader *all = open_small(0, 0);
    DataLoader *one = open_loader((DataLoaderConfig){.pattern = path_of("s_2.bin"), .T = 4, .whole = 1});
    write_shard("other.bin", 20001, 12 * SMALL_T + 6);
    DataLoader *other = open_loader((DataLoaderConfig){.pattern = path_of("other.bin"), .T = 4});
    CHECK(dataloader_shared_shards(all, all) == 4);
    CHECK(dataloader_shared_shards(all, one) == 1 && dataloader_shared_shards(one, all) == 1);
    CHECK(dataloader_shared_shards(all, other) == 0);
    dataloader_close(all);
    dataloader_close(one);
    dataloader_close(other);
}

// ---- targets in a shard of their own

// Targets of t.bin, of which every third counts.
static void write_targets(size_t count) {
    uint16_t *targets = memory_allocate(count, sizeof *targets, "targets");
    for (size_t i = 0; i < count; i++) targets[i] = i % 3 ? NO_TARGET : (uint16_t)(100 + i);
    ShardWriter writer;
    CHECK(shard_writer_open(&writer, path_of("t.targets"), &error) == 0);
    CHECK(shard_write(&writer, targets, count, &error) == 0);
    CHECK(shard_writer_commit(&writer, &error) == 0);
    free(targets);
}

static void takes_targets_from_beside_a_shard(void) {
    enum { T = 4, N = 5 * T + 1 };
    int32_t inputs[6 * T], targets[6 * T];
    for (int whole = 0; whole < 2; whole++) {
        empty_folder();
        write_shard("t.bin", 0, N);
        DataLoader *plain = open_loader((DataLoaderConfig){.pattern = path_of("t.bin"), .T = T, .whole = whole});
        write_targets(N);
        DataLoader *own = open_loader((DataLoaderConfig){.pattern = folder, .T = T, .whole = whole});
        CHECK(dataloader_shards(own) == 1 && dataloader_rows(own) == 5);
        CHECK(dataloader_fingerprint(own) != dataloader_fingerprint(plain));
        CHECK(dataloader_rows_at(own, 0, 5, inputs, targets, &error) == 0);
        for (int i = 0; i < 5 * T; i++) CHECK(inputs[i] == i && targets[i] == (i % 3 ? -1 : 100 + i));
        if (whole) CHECK(dataloader_targets(own) == 7 && dataloader_targets(plain) == 5 * T);
        CHECK(dataloader_counted(own, 5) == 7 && dataloader_counted(own, 1) == 2);
        CHECK(dataloader_counted(plain, 5) == 5 * T);
        dataloader_seek(own, 1);
        CHECK(dataloader_counted(own, 1) == 1);
        dataloader_close(own);
        dataloader_close(plain);
    }
}

static void refuses_targets_that_do_not_fit(void) {
    DataLoader *loader;
    int32_t inputs[4], targets[4];
    empty_folder();
    write_shard("t.bin", 0, 21);
    write_targets(20);
    check_refused((DataLoaderConfig){.pattern = path_of("t.bin")}, "t.targets",
                  "expected as many targets as 21 tokens, found 20");
    write_targets(21);
    loader = open_loader((DataLoaderConfig){.pattern = path_of("t.bin"), .T = 4, .vocab = 103});
    CHECK(dataloader_rows_at(loader, 0, 1, inputs, targets, &error) == -1);
    CHECK_CONTAINS(error.text, "t.targets: target 103 at position 3, expected one below 103, or 65535 for none");
    dataloader_close(loader);
}

// ---- evaluation

// For every T and B the targets of an evaluation are each shard's tokens but the first, once, in order.
static void evaluation_covers_the_same_targets_for_every_T(void) {
    enum { MOST_T = 200, MOST_B = 4, ALL = 32 + 6 + 101 + 9 };
    static int32_t inputs[MOST_T * MOST_B], targets[MOST_T * MOST_B];
    int sizes[] = {1, 3, 7, 8, 9, 32, 101, 200}, limits[] = {0, 1, 35, ALL - 1, ALL, 10 * ALL};
    write_unequal_shards();
    for (int s = 0; s < 8; s++)
        for (int l = 0; l < 6; l++)
            for (int B = 1; B <= MOST_B; B += 3) {
                int T = sizes[s], expected = limits[l] && limits[l] < ALL ? limits[l] : ALL, seen = 0;
                DataLoaderConfig config = {.pattern = path_of("s_*.bin"), .T = T, .whole = 1, .limit = limits[l]};
                DataLoader *loader = open_loader(config);
                CHECK(dataloader_targets(loader) == expected);
                for (int64_t row = 0; row < dataloader_rows(loader); row += B) {
                    CHECK(dataloader_rows_at(loader, row, B, inputs, targets, &error) == 0);
                    for (int i = 0; i < B * T; i++) {
                        if (targets[i] < 0) {
                            CHECK(targets[i] == -1 && inputs[i] == 0);
                            continue;
                        }
                        int base = seen < 32 ? 0 : seen < 38 ? 10000 - 32 : seen < 139 ? 20000 - 38 : 30000 - 139;
                        CHECK(targets[i] == base + seen + 1 && inputs[i] == base + seen);
                        seen++;
                    }
                }
                CHECK(seen == expected);
                dataloader_close(loader);
            }
}

// ---- rows that begin at documents

enum { DOCUMENT_END = 999, DOCUMENT_TOKENS = 4 + 11 + 1 + 30 + 6 };

// Documents of 4, 11, 1, 30 and 6 tokens, the end-of-text before each counted; token i is i otherwise.
static void write_documents(void) {
    static const int lengths[] = {4, 11, 1, 30, 6};
    uint16_t tokens[DOCUMENT_TOKENS];
    int at = 0;
    for (int i = 0; i < DOCUMENT_TOKENS; i++) tokens[i] = (uint16_t)i;
    for (int d = 0; d < 5; at += lengths[d++]) tokens[at] = DOCUMENT_END;
    ShardWriter writer;
    empty_folder();
    CHECK(shard_writer_open(&writer, path_of("d.bin"), &error) == 0);
    CHECK(shard_write(&writer, tokens, DOCUMENT_TOKENS, &error) == 0);
    CHECK(shard_writer_commit(&writer, &error) == 0);
}

// With T = 10: rows at 0; 4 and 14; 15; 16, 26 and 36; 46.
static void rows_begin_at_documents(void) {
    static const int starts[] = {0, 4, 14, 15, 16, 26, 36, 46}, ends[] = {4, 14, 15, 16, 26, 36, 46, 51};
    int32_t inputs[10], targets[10];
    write_documents();
    DataLoaderConfig config = {.pattern = path_of("d.bin"), .T = 10, .vocab = DOCUMENT_END + 1, .documents = 1};
    for (config.whole = 0; config.whole <= 1; config.whole++) {
        DataLoader *loader = open_loader(config);
        CHECK(dataloader_rows(loader) == 8);
        for (int row = 0; row < 8; row++) {
            // Training fills a row up with what follows, and the last one begins earlier to be full.
            int start = config.whole || row < 7 ? starts[row] : 41, n = config.whole ? ends[row] - starts[row] : 10;
            CHECK(dataloader_rows_at(loader, row, 1, inputs, targets, &error) == 0);
            for (int t = 0; t < 10; t++) {
                int is_first =
                    start + t == 0 || start + t == 4 || start + t == 15 || start + t == 16 || start + t == 46;
                CHECK(inputs[t] == (t < n ? (is_first ? DOCUMENT_END : start + t) : 0));
                CHECK(t < n ? targets[t] == (t + 1 < n ? inputs[t + 1] : targets[t]) : targets[t] == -1);
                if (t == n - 1 && start + n < DOCUMENT_TOKENS && start + n != 4 && start + n != 15 && start + n != 16 &&
                    start + n != 46)
                    CHECK(targets[t] == start + n);
            }
        }
        dataloader_close(loader);
    }
}

// Every token but the first is a target once, for every T.
static void evaluation_by_documents_covers_every_target(void) {
    int32_t inputs[64], targets[64];
    write_documents();
    for (int T = 1; T <= 64; T++) {
        DataLoaderConfig config = {
            .pattern = path_of("d.bin"), .T = T, .vocab = DOCUMENT_END + 1, .documents = 1, .whole = 1};
        DataLoader *loader = open_loader(config);
        int seen = 0;
        for (int64_t row = 0; row < dataloader_rows(loader); row++) {
            CHECK(dataloader_rows_at(loader, row, 1, inputs, targets, &error) == 0);
            for (int t = 0; t < T && targets[t] >= 0; t++) {
                seen++;
                CHECK(targets[t] == DOCUMENT_END || targets[t] == seen);
            }
        }
        CHECK(seen == DOCUMENT_TOKENS - 1 && dataloader_targets(loader) == seen);
        dataloader_close(loader);
    }
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    RUN(writes_llm_c_format);
    RUN(writer_leaves_nothing_half_written);
    RUN(reads_ranges_and_refuses_others);
    RUN(refuses_files_that_are_no_shards);
    RUN(refuses_wrong_counts);
    RUN(refuses_wrong_sizes);
    RUN(refuses_uint32_with_a_hint);
    RUN(refuses_what_is_no_file);
    RUN(refuses_tokens_outside_the_vocabulary);
    RUN(catches_a_bad_token_in_the_middle_when_read);
    RUN(refuses_too_little_data);
    RUN(refuses_bad_configurations);
    RUN(names_the_bad_one_among_good_ones);
    RUN(survives_a_file_that_shrinks);
    RUN(reads_a_sparse_shard_beyond_4_GB);
    RUN(accepts_2_to_the_31_tokens);
    RUN(permutation_is_a_bijection);
    RUN(permutation_is_random);
    RUN(reads_unequal_shards_in_order);
    RUN(reads_a_file_whose_name_looks_like_a_pattern);
    RUN(shuffles_every_row_once_per_epoch);
    RUN(seed_decides_the_order);
    RUN(ranks_read_what_one_process_reads);
    RUN(resumes_at_any_position);
    RUN(refuses_to_resume_with_other_data);
    RUN(refuses_damaged_positions);
    RUN(renamed_shards_are_the_same_data);
    RUN(finds_training_data_among_validation_data);
    RUN(takes_targets_from_beside_a_shard);
    RUN(refuses_targets_that_do_not_fit);
    RUN(evaluation_covers_the_same_targets_for_every_T);
    RUN(rows_begin_at_documents);
    RUN(evaluation_by_documents_covers_every_target);
    empty_folder();
    rmdir(folder);
    return test_summary();
}
