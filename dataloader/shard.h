// One token shard, mapped for reading. Every access goes through shard_read, which survives a file that shrinks or a
// disk that fails under the mapping: such a read returns an error instead of ending the process.
#ifndef DATALOADER_SHARD_H
#define DATALOADER_SHARD_H

#include "dataloader.h"

typedef struct {
    char *path;
    FileMap file;
    uint64_t count; // of tokens
} Shard;

// Maps a shard and validates its header against the file's size; the tokens themselves are not touched.
int shard_open(Shard *shard, const char *path, Error *error);
void shard_close(Shard *shard); // safe on a zeroed or closed shard

// Copies tokens [first, first + count) out of the mapping.
int shard_read(const Shard *shard, uint64_t first, size_t count, uint16_t *tokens, Error *error);

// Are tokens [first, first + count) below `vocab`? Names the first one that is not.
int shard_check(const Shard *shard, uint64_t first, uint64_t count, int vocab, Error *error);

// A hash of the count and of sampled blocks, the first and the last among them: "the same shard?" in constant time.
int shard_fingerprint(const Shard *shard, uint64_t *fingerprint, Error *error);

#endif
