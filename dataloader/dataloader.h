// Token shards and the loader. Shards are llm.c's: a header of 256 int32 (magic 20240520, version 1, count), then
// uint16 tokens. The header's words 2 and 3 together are the count as a 64-bit number; below 2^31 that is llm.c's own.
#ifndef DATALOADER_DATALOADER_H
#define DATALOADER_DATALOADER_H

#include "core/base/error.h"
#include "core/base/file.h"

#include <jansson.h>
#include <stdint.h>

enum { SHARD_MAGIC = 20240520, SHARD_VERSION = 1, SHARD_HEADER_BYTES = 1024 };
enum { NO_TARGET = 65535 }; // in a shard of targets: a position that is not counted

typedef struct DataLoader DataLoader;

typedef struct {
    const char *pattern; // a file, a directory (its *.bin) or a glob, quoted from the shell
    int T;               // tokens per row; a row also has one more token as the last target
    int vocab;           // every token must be below it
    int shuffle;         // 0: rows in order of the shards; 1: a permutation of all rows, new for each epoch
    uint64_t seed;       // of the permutation
    int whole;           // 1: for evaluation, see below
    int documents;       // 1: rows begin at documents, see below
    int64_t limit;       // read only the first `limit` targets; 0: all
    int64_t least_rows;  // refuse a data set with fewer rows, such as one that cannot fill a batch; 0: any
} DataLoaderConfig;

// How rows are cut. Shards are taken in the order of their names (strcmp). A shard of n tokens has n - 1 targets.
//
//   training    floor((n - 1) / T) whole rows in each shard; no row crosses a shard's end. When shuffled, all rows of
//               an epoch come in the order of a permutation computed from (seed, epoch, index), without any table, and
//               the (n - 1) mod T targets left over are not lost for good: each epoch shifts the shard's rows by
//               another amount within them. After the last row the next epoch begins.
//   evaluation  (`whole`) every token but a shard's first is a target exactly once, whatever T is: a shard's last row
//               may be short, and is filled up with inputs 0 and targets -1 (not to be counted). Rows after the last
//               one are all of that kind, so B need not divide their number. The mean over targets >= 0 weights by
//               tokens.

// With `documents` a document (it begins with the end-of-text token, vocab - 1) starts a row of its own and every T
// tokens a further one, so that no row begins in the middle of a text whose beginning it lacks. In training a row is
// filled up with the text that follows; in evaluation it ends where the next document begins. Opening then reads all
// tokens once.

// A target is the token that follows, unless targets of their own stand beside the shard: NAME.targets beside NAME.bin,
// in the same format and with as many numbers. Number i is then the target of token i, and NO_TARGET is one that does
// not count. So a task can be asked about at some positions alone. The rows' order does not change.

// Maps every shard, validates its header and size, the tokens at its start and end, and samples between; every other
// token is checked when its row is read, so that none out of range gets out of here.
int dataloader_open(DataLoader **loader, const DataLoaderConfig *config, Error *error);
void dataloader_close(DataLoader *loader);

int64_t dataloader_tokens(const DataLoader *loader);  // in all shards
int64_t dataloader_targets(const DataLoader *loader); // in one epoch: what an evaluation's mean is over
int64_t dataloader_rows(const DataLoader *loader);    // rows of T in one epoch
// Targets of the next `rows` rows that count, at least 1: what the mean of a step is over. All of them, unless they
// stand in shards of their own.
int64_t dataloader_counted(DataLoader *loader, int64_t rows);
int dataloader_shards(const DataLoader *loader);
uint64_t dataloader_fingerprint(const DataLoader *loader); // of sizes and sampled content, not names: "same data?"
// The number of shards of `a` that `b` has too (by content): training data among the validation data.
int dataloader_shared_shards(const DataLoader *a, const DataLoader *b);

// The position is one number: rows consumed since the start of training, over all ranks and epochs.
int64_t dataloader_position(const DataLoader *loader);
void dataloader_seek(DataLoader *loader, int64_t position);

// Fills inputs (B,T) and targets (B,T) with rows position + first .. position + first + B - 1; does not move. Ranks and
// accumulation steps pass their own `first`, so that N ranks read exactly what one would. One thread at a time.
int dataloader_rows_at(DataLoader *loader, int64_t first, int B, int32_t *inputs, int32_t *targets, Error *error);
void dataloader_advance(DataLoader *loader, int64_t rows);

// {"position", "T", "shuffle", "documents", "seed", "tokens", "fingerprint"}; a new reference.
json_t *dataloader_to_json(const DataLoader *loader);
// Continues at a saved position; refuses another data set, seed, order or T unless `force`.
int dataloader_from_json(DataLoader *loader, const json_t *json, int force, Error *error);

// Index `i` of the permutation of [0, n) with this key (n >= 1, i < n).
uint64_t permutation_at(uint64_t key, uint64_t n, uint64_t i);

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
