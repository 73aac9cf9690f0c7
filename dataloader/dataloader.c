#define _GNU_SOURCE
#include "dataloader.h"
#include "shard.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct { // a shard's place in the data set
    Shard shard;
    Shard own;         // its targets, when they stand in a file of their own; else count is 0
    uint64_t targets;  // at most its tokens - 1; less when the limit cuts it
    int64_t first_row; // rows of all shards before it
    int64_t rows;
    uint64_t fingerprint;
    uint64_t *starts; // (rows) with `documents`: where each row begins
    size_t room;      // for starts
} Part;

struct DataLoader {
    DataLoaderConfig config;
    Part *parts;
    int part_count;
    int64_t tokens, targets, rows;
    int64_t counted; // of the targets
    int has_own;     // some part has targets of its own
    int64_t position;
    uint64_t fingerprint;
    uint16_t *row; // (T + 1): one row as it is in the shard
};

// ---- finding the shards

typedef struct {
    char **paths;
    size_t count;
} PathList;

static void path_list_add(PathList *list, char *path) {
    if ((list->count & (list->count - 1)) == 0) // full at every power of two
        list->paths = memory_resize(list->paths, list->count ? 2 * list->count : 1, sizeof *list->paths, "paths");
    list->paths[list->count++] = path;
}

static void path_list_free(PathList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (PathList){0};
}

// By bytes, not by the locale's rules: every machine must have the same order.
static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_directory(PathList *list, const char *path, Error *error) {
    DIR *directory = opendir(path);
    if (!directory) return error_set(error, "%.700s: cannot open the directory: %s", path, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name);
        if (entry->d_name[0] != '.' && length > 4 && !strcmp(entry->d_name + length - 4, ".bin"))
            path_list_add(list, path_join(path, entry->d_name));
    }
    closedir(directory);
    if (list->count) return 0;
    return error_set(error, "%.700s: no shards (*.bin) in this directory; make some with ./tokenize encode", path);
}

static int list_glob(PathList *list, const char *pattern, Error *error) {
    glob_t found = {0};
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    for (size_t i = 0; status == 0 && i < found.gl_pathc; i++)
        path_list_add(list, memory_copy_string(found.gl_pathv[i]));
    globfree(&found);
    if (list->count) return 0;
    return error_set(error, "%.700s: no such file, and no match as a pattern; make shards with ./tokenize encode",
                     pattern);
}

static int list_shards(PathList *list, const char *pattern, Error *error) {
    *list = (PathList){0};
    if (file_is_directory(pattern)) {
        if (list_directory(list, pattern, error)) return -1;
    } else if (file_exists(pattern)) { // also when its name has brackets or stars in it
        path_list_add(list, memory_copy_string(pattern));
    } else if (list_glob(list, pattern, error)) {
        return -1;
    }
    qsort(list->paths, list->count, sizeof *list->paths, compare_paths);
    return 0;
}

// ---- opening

static int check_config(const DataLoaderConfig *config, Error *error) {
    if (config->T < 1) return error_set(error, "the data loader's T is %d, expected 1 or more", config->T);
    if (config->vocab < 1 || config->vocab > 65536)
        return error_set(error, "a vocabulary of %d tokens; shards hold 1 to 65536 different ones", config->vocab);
    if (config->whole && config->shuffle) return error_set(error, "evaluation data is read in order, not shuffled");
    if (config->limit < 0 || config->least_rows < 0) return error_set(error, "a negative limit for the data loader");
    return 0;
}

// Wrong tokens are usually wrong everywhere: a look at both ends shows them before training starts.
static int check_ends(const Part *part, const DataLoaderConfig *config, Error *error) {
    uint64_t count = part->shard.count, row = (uint64_t)config->T + 1 < count ? (uint64_t)config->T + 1 : count;
    if (shard_check(&part->shard, 0, row, config->vocab, error)) return -1;
    return shard_check(&part->shard, count - row, row, config->vocab, error);
}

static void add_start(Part *part, uint64_t start) {
    if ((size_t)part->rows == part->room) {
        part->room = part->room ? 2 * part->room : 1024;
        part->starts = memory_resize(part->starts, part->room, sizeof *part->starts, "the list of documents");
    }
    part->starts[part->rows++] = start;
}

// Lists where rows begin: at every end-of-text, and every T tokens until the next. Targets are tokens 1 .. targets.
static int find_documents(Part *part, const DataLoaderConfig *config, Error *error) {
    enum { BLOCK = 1 << 16 };
    uint16_t *tokens = memory_allocate(BLOCK, sizeof *tokens, "a block of tokens");
    uint64_t start = 0;
    int status = 0;
    for (uint64_t first = 0; status == 0 && first < part->targets; first += BLOCK) {
        uint64_t count = part->targets - first < BLOCK ? part->targets - first : BLOCK;
        status = shard_read(&part->shard, first, count, tokens, error);
        for (uint64_t i = first; status == 0 && i < first + count; i++) {
            if (tokens[i - first] == config->vocab - 1) start = i;
            if ((i - start) % (uint64_t)config->T == 0) add_start(part, i);
        }
    }
    free(tokens);
    return status;
}

// NAME.targets beside NAME.bin, if it is there.
static int open_targets(Part *part, Error *error) {
    const char *path = part->shard.path;
    size_t length = strlen(path), stem = length > 4 && !strcmp(path + length - 4, ".bin") ? length - 4 : length;
    char *own = memory_allocate(stem + sizeof ".targets", 1, "a path");
    snprintf(own, stem + sizeof ".targets", "%.*s.targets", (int)stem, path);
    int status = file_exists(own) ? shard_open(&part->own, own, error) : 0;
    if (status == 0 && part->own.count && part->own.count != part->shard.count)
        status = error_set(error, "%.700s: expected as many targets as %llu tokens, found %llu; write both again", own,
                           (unsigned long long)part->shard.count, (unsigned long long)part->own.count);
    free(own);
    return status;
}

// How many of the targets of tokens [first, first + count) count.
static int count_targets(const Part *part, uint64_t first, uint64_t count, int64_t *counted, Error *error) {
    enum { BLOCK = 4096 };
    uint16_t block[BLOCK];
    if (!part->own.count) return *counted += (int64_t)count, 0;
    for (uint64_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        if (shard_read(&part->own, first + done, n, block, error)) return -1;
        for (size_t i = 0; i < n; i++) *counted += block[i] != NO_TARGET;
    }
    return 0;
}

// Adds the fingerprint of a part's own targets to its tokens'.
static int add_fingerprints(Part *part, Error *error) {
    uint64_t both[2];
    if (shard_fingerprint(&part->shard, &part->fingerprint, error)) return -1;
    if (!part->own.count) return 0;
    if (shard_fingerprint(&part->own, &both[1], error)) return -1;
    both[0] = part->fingerprint;
    part->fingerprint = XXH3_64bits(both, sizeof both);
    return 0;
}

static int add_part(DataLoader *loader, const char *path, Error *error) {
    const DataLoaderConfig *config = &loader->config;
    Part *part = &loader->parts[loader->part_count++];
    if (shard_open(&part->shard, path, error)) return -1;
    if (open_targets(part, error) || check_ends(part, config, error) || add_fingerprints(part, error)) return -1;
    uint64_t left = config->limit ? (uint64_t)(config->limit - loader->targets) : UINT64_MAX, T = (uint64_t)config->T;
    part->targets = part->shard.count - 1 < left ? part->shard.count - 1 : left;
    if (!config->documents)
        part->rows = (int64_t)(config->whole ? (part->targets + T - 1) / T : part->targets / T);
    else if (find_documents(part, config, error))
        return -1;
    part->first_row = loader->rows;
    loader->rows += part->rows;
    loader->tokens += (int64_t)part->shard.count;
    loader->targets += (int64_t)part->targets;
    loader->has_own |= part->own.count > 0;
    if (config->whole && count_targets(part, 0, part->targets, &loader->counted, error)) return -1;
    uint64_t both[2] = {part->fingerprint, part->targets};
    loader->fingerprint = XXH3_64bits_withSeed(both, sizeof both, loader->fingerprint);
    return 0;
}

static int check_rows(const DataLoader *loader, Error *error) {
    int64_t least = loader->config.least_rows > 1 ? loader->config.least_rows : 1, T = loader->config.T;
    if (loader->rows >= least) return 0;
    return error_set(error,
                     "%.600s: %lld tokens in %d shard%s make %lld rows of T = %lld, expected at least %lld (a batch); "
                     "take more text, a smaller batch or a smaller T",
                     loader->config.pattern, (long long)loader->tokens, loader->part_count,
                     loader->part_count == 1 ? "" : "s", (long long)loader->rows, (long long)T, (long long)least);
}

int dataloader_open(DataLoader **loader, const DataLoaderConfig *config, Error *error) {
    *loader = NULL;
    PathList list;
    if (check_config(config, error) || list_shards(&list, config->pattern, error)) return -1;
    DataLoader *opened = memory_allocate_zeroed(1, sizeof *opened, "the data loader");
    opened->config = *config;
    opened->config.pattern = memory_copy_string(config->pattern);
    opened->parts = memory_allocate_zeroed(list.count, sizeof *opened->parts, "the list of shards");
    int status = 0;
    for (size_t i = 0; status == 0 && i < list.count; i++) status = add_part(opened, list.paths[i], error);
    path_list_free(&list);
    if (status == 0) status = check_rows(opened, error);
    if (status) {
        dataloader_close(opened);
        return -1;
    }
    opened->row = memory_allocate((size_t)config->T + 1, sizeof *opened->row, "a row of tokens");
    *loader = opened;
    return 0;
}

void dataloader_close(DataLoader *loader) {
    if (!loader) return;
    for (int i = 0; i < loader->part_count; i++) {
        shard_close(&loader->parts[i].shard), shard_close(&loader->parts[i].own);
        free(loader->parts[i].starts);
    }
    free(loader->parts);
    free(loader->row);
    free((char *)loader->config.pattern);
    free(loader);
}

int64_t dataloader_tokens(const DataLoader *loader) {
    return loader->tokens;
}

int64_t dataloader_targets(const DataLoader *loader) {
    return loader->config.whole ? loader->counted : loader->rows * loader->config.T;
}

int64_t dataloader_rows(const DataLoader *loader) {
    return loader->rows;
}

int dataloader_shards(const DataLoader *loader) {
    return loader->part_count;
}

uint64_t dataloader_fingerprint(const DataLoader *loader) {
    return loader->fingerprint;
}

int dataloader_shared_shards(const DataLoader *a, const DataLoader *b) {
    int shared = 0;
    for (int i = 0; i < a->part_count; i++) {
        int found = 0;
        for (int j = 0; j < b->part_count && !found; j++) found = a->parts[i].fingerprint == b->parts[j].fingerprint;
        shared += found;
    }
    return shared;
}

// ---- the order of rows

// One pass of a Feistel network over pairs (left, right) in [0, a) x [0, b): each half in turn is moved around its
// circle by a random amount that depends on the other half alone, which can be undone, so the whole is a bijection.
static uint64_t scramble(uint64_t key, uint64_t a, uint64_t b, uint64_t i) {
    enum { ROUNDS = 4 }; // of both halves; the round function is a good generator, so more would change nothing visible
    uint64_t left = i / b, right = i % b;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        left = (left + random_below(key, (2 * round) << 56 | right, a)) % a;
        right = (right + random_below(key, (2 * round + 1) << 56 | left, b)) % b;
    }
    return left * b + right;
}

uint64_t permutation_at(uint64_t key, uint64_t n, uint64_t i) {
    uint64_t a = (uint64_t)ceil(sqrt((double)n)), b = (n + a - 1) / a; // a * b >= n, by less than a
    do i = scramble(key, a, b, i);
    while (i >= n); // walking on along the cycle until it is back inside keeps it a bijection
    return i;
}

// ---- rows

static const Part *part_of_row(const DataLoader *loader, int64_t row) {
    int low = 0, high = loader->part_count - 1; // the last part with first_row <= row: empty ones come before it
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (loader->parts[middle].first_row <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return &loader->parts[low];
}

// Row number `row` of the part when rows begin at documents; *n is how many of its targets count.
static uint64_t locate_document(const DataLoader *loader, const Part *part, int64_t row, uint64_t *n) {
    uint64_t T = (uint64_t)loader->config.T, start = part->starts[row];
    if (!loader->config.whole) { // a full row, even at the shard's end
        *n = part->targets < T ? part->targets : T;
        return start + *n <= part->targets ? start : part->targets - *n;
    }
    uint64_t end = row + 1 < part->rows ? part->starts[row + 1] : part->targets;
    *n = end - start;
    return start;
}

// Where row number `index` of all training begins: sets the part and the number of targets, and returns the token's
// index in the part.
static uint64_t locate(const DataLoader *loader, int64_t index, const Part **part, uint64_t *n) {
    uint64_t T = (uint64_t)loader->config.T, shift = 0, epoch = (uint64_t)(index / loader->rows);
    int64_t row = index % loader->rows;
    if (loader->config.shuffle)
        row = (int64_t)permutation_at(random_key(loader->config.seed, "shuffle", epoch), (uint64_t)loader->rows,
                                      (uint64_t)row);
    *part = part_of_row(loader, row);
    row -= (*part)->first_row;
    if (loader->config.documents) return locate_document(loader, *part, row, n);
    if (loader->config.shuffle) {
        uint64_t left_over = (*part)->targets - (uint64_t)(*part)->rows * T;
        shift =
            random_below(random_key(loader->config.seed, "shift", epoch), (uint64_t)(*part)->first_row, left_over + 1);
    }
    uint64_t start = (uint64_t)row * T + shift, left = (*part)->targets - start;
    *n = left < T ? left : T;
    return start;
}

int64_t dataloader_counted(DataLoader *loader, int64_t rows) {
    int64_t counted = 0;
    Error ignored; // it is told when the row itself is read
    if (!loader->has_own) return rows * loader->config.T;
    for (int64_t i = 0; i < rows; i++) {
        const Part *part;
        uint64_t n, start = locate(loader, loader->position + i, &part, &n);
        if (count_targets(part, start, n, &counted, &ignored)) break;
    }
    return counted > 0 ? counted : 1;
}

// A row's targets from their own shard.
static int read_targets(const DataLoader *loader, const Part *part, uint64_t first, size_t n, int32_t *targets,
                        Error *error) {
    uint16_t *row = loader->row;
    if (shard_read(&part->own, first, n, row, error)) return -1;
    for (size_t t = 0; t < n; t++) {
        targets[t] = row[t] == NO_TARGET ? -1 : row[t];
        if (targets[t] >= loader->config.vocab)
            return error_set(error,
                             "%.700s: target %d at position %llu, expected one below %d, or %d for none; make the file "
                             "for this vocabulary",
                             part->own.path, targets[t], (unsigned long long)(first + t), loader->config.vocab,
                             NO_TARGET);
    }
    return 0;
}

// Reads `n` targets and their inputs from token `first` on, and fills the row up to T with what is not to be counted.
static int read_row(DataLoader *loader, const Part *part, uint64_t first, size_t n, int32_t *inputs, int32_t *targets,
                    Error *error) {
    uint16_t *row = loader->row, largest = 0;
    if (shard_read(&part->shard, first, n + 1, row, error)) return -1;
    for (size_t t = 0; t <= n; t++) largest = row[t] > largest ? row[t] : largest;
    if (largest >= loader->config.vocab) return shard_check(&part->shard, first, n + 1, loader->config.vocab, error);
    for (size_t t = 0; t < n; t++) inputs[t] = row[t];
    for (size_t t = 0; t < n; t++) targets[t] = row[t + 1];
    for (size_t t = n; t < (size_t)loader->config.T; t++) inputs[t] = 0, targets[t] = -1;
    return part->own.count ? read_targets(loader, part, first, n, targets, error) : 0;
}

int dataloader_rows_at(DataLoader *loader, int64_t first, int B, int32_t *inputs, int32_t *targets, Error *error) {
    size_t T = (size_t)loader->config.T;
    for (int b = 0; b < B; b++, inputs += T, targets += T) {
        int64_t index = loader->position + first + b;
        if (loader->config.whole && index >= loader->rows) { // after the end of an evaluation
            for (size_t t = 0; t < T; t++) inputs[t] = 0, targets[t] = -1;
            continue;
        }
        const Part *part;
        uint64_t n, start = locate(loader, index, &part, &n);
        if (read_row(loader, part, start, (size_t)n, inputs, targets, error)) return -1;
    }
    return 0;
}

// ---- the position

int64_t dataloader_position(const DataLoader *loader) {
    return loader->position;
}

void dataloader_seek(DataLoader *loader, int64_t position) {
    loader->position = position;
}

void dataloader_advance(DataLoader *loader, int64_t rows) {
    loader->position += rows;
}

static void fingerprint_text(const DataLoader *loader, char text[17]) {
    snprintf(text, 17, "%016llx", (unsigned long long)loader->fingerprint);
}

json_t *dataloader_to_json(const DataLoader *loader) {
    char fingerprint[17];
    fingerprint_text(loader, fingerprint);
    json_t *json =
        json_pack("{s:I, s:i, s:b, s:b, s:I, s:I, s:s}", "position", (json_int_t)loader->position, "T",
                  loader->config.T, "shuffle", loader->config.shuffle, "documents", loader->config.documents, "seed",
                  (json_int_t)loader->config.seed, "tokens", (json_int_t)loader->tokens, "fingerprint", fingerprint);
    return json_made(json, "the data loader's state");
}

// Lists what differs between the saved state and this loader, as "T (512, now 1024), seed (1, now 2)".
static void list_differences(const DataLoader *loader, const json_t *json, char *text, size_t size) {
    json_t *now = dataloader_to_json(loader);
    static const char *const keys[] = {"T", "shuffle", "documents", "seed", "tokens", "fingerprint"};
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *saved = json_object_get(json, keys[i]), *here = json_object_get(now, keys[i]);
        if (json_equal(saved, here)) continue;
        char *was = saved ? json_print(saved, JSON_ENCODE_ANY) : NULL, *is = json_print(here, JSON_ENCODE_ANY);
        used += (size_t)snprintf(text + used, size - used, "%s%s (%.40s, now %.40s)", used ? ", " : "", keys[i],
                                 was ? was : "none", is);
        free(was);
        free(is);
    }
    json_decref(now);
}

int dataloader_from_json(DataLoader *loader, const json_t *json, int force, Error *error) {
    const json_t *position = json_object_get(json, "position");
    if (!json_is_integer(position) || json_integer_value(position) < 0 || json_integer_value(position) > INT64_MAX / 2)
        return error_set(error, "the saved state of the data loader has no valid position; the checkpoint is damaged");
    char differences[640]; // six of at most 106 characters
    list_differences(loader, json, differences, sizeof differences);
    if (*differences && !force)
        return error_set(error,
                         "%.300s: cannot continue with other data than was saved; different: %s; give what was given "
                         "then, or force it",
                         loader->config.pattern, differences);
    loader->position = json_integer_value(position);
    return 0;
}
