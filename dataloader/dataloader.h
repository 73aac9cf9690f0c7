// Token shards and the loader. Shards are llm.c's: a header of 256 int32 (magic 20240520, version 1, count), then
// uint16 tokens; for counts of 2^31 and more the header's words 2 and 3 together hold the count as a 64-bit number.
#ifndef DATALOADER_DATALOADER_H
#define DATALOADER_DATALOADER_H

#include "../core/error.h"
#include "../core/file.h"

#include <jansson.h>
#include <stdint.h>

enum { SHARD_MAGIC = 20240520, SHARD_VERSION = 1, SHARD_HEADER_BYTES = 1024 };

typedef struct DataLoader DataLoader;

typedef struct {
    const char *pattern;  // a file, a directory (its *.bin) or a glob, quoted from the shell
    int T;                // tokens per row; a row also has one more token as the last target
    int vocab;            // every token must be below it
    int shuffle;          // 0: rows in order of the shards; 1: a permutation of all rows, new for each epoch
    uint64_t seed;        // of the permutation
} DataLoaderConfig;

// Maps and validates every shard once.
int dataloader_open(DataLoader **loader, const DataLoaderConfig *config, Error *error);
void dataloader_close(DataLoader *loader);

int64_t dataloader_tokens(const DataLoader *loader);        // in all shards
int64_t dataloader_rows(const DataLoader *loader);          // rows of T in one epoch
uint64_t dataloader_fingerprint(const DataLoader *loader);  // of names, sizes and sampled content: "same data?"

// The position is one number: rows consumed since the start of training, over all ranks and epochs.
int64_t dataloader_position(const DataLoader *loader);
void dataloader_seek(DataLoader *loader, int64_t position);

// Fills inputs (B,T) and targets (B,T) with rows position + first .. position + first + B - 1; does not move. Ranks and
// accumulation steps pass their own `first`, so that N ranks read exactly what one would.
int dataloader_rows_at(DataLoader *loader, int64_t first, int B, int32_t *inputs, int32_t *targets, Error *error);
void dataloader_advance(DataLoader *loader, int64_t rows);

json_t *dataloader_to_json(const DataLoader *loader);       // position, fingerprint, shuffle, seed, tokens
// Continues at a saved position; refuses another data set, seed or T unless `force`.
int dataloader_from_json(DataLoader *loader, const json_t *json, int force, Error *error);

// ---- writing shards

typedef struct {
    FileWriter writer;
    uint64_t tokens;
} ShardWriter;

int shard_writer_open(ShardWriter *shard, const char *path, Error *error);
int shard_write(ShardWriter *shard, const uint16_t *tokens, size_t count, Error *error);
int shard_writer_commit(ShardWriter *shard, Error *error); // writes the header's count; the file appears
void shard_writer_abort(ShardWriter *shard);

#endif
