#define _GNU_SOURCE
#include "shard.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADER_WORDS = SHARD_HEADER_BYTES / 4, LLAMA3_MAGIC = 20240801 };
enum { SAMPLE_TOKENS = 2048, SAMPLES = 16 }; // of the fingerprint
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and are read as they are");

// ---- the header

static const char *const make_one = "make shards with ./tokenize encode";

// What a file that is no shard may be instead, for the message.
static int wrong_magic(const char *path, const int32_t *words, Error *error) {
    if (words[0] == LLAMA3_MAGIC)
        return error_set(error,
                         "%.700s: a shard of uint32 tokens (llm.c's for Llama 3); expected uint16 tokens of GPT-2's "
                         "kind: encode the text again with ./tokenize encode",
                         path);
    const unsigned char *bytes = (const unsigned char *)words;
    int printable = 0;
    for (int i = 0; i < 64; i++)
        printable += bytes[i] >= 32 || bytes[i] == '\n' || bytes[i] == '\r' || bytes[i] == '\t';
    if (printable == 64) return error_set(error, "%.700s: expected a token shard, found text; %s", path, make_one);
    return error_set(error, "%.700s: not a token shard: expected the magic number %d, found %d; %s", path, SHARD_MAGIC,
                     words[0], make_one);
}

static int wrong_size(const char *path, uint64_t count, uint64_t bytes, Error *error) {
    if (count > 0 && count <= UINT64_MAX / 4 && bytes == count * 4)
        return error_set(error,
                         "%.700s: %llu tokens in %llu bytes: these are uint32 tokens, expected uint16; encode the "
                         "text again with ./tokenize encode",
                         path, (unsigned long long)count, (unsigned long long)bytes);
    return error_set(error,
                     "%.700s: the header says %lld tokens (%.1f MB), followed by %llu bytes; the file is damaged "
                     "or incomplete: copy, download or encode it again",
                     path, (long long)count, 2e-6 * (double)count, (unsigned long long)bytes);
}

static int read_header(Shard *shard, Error *error) {
    if (shard->file.size == 0)
        return error_set(error, "%.700s: empty; expected a token shard; %s", shard->path, make_one);
    if (shard->file.size < SHARD_HEADER_BYTES)
        return error_set(error, "%.700s: only %zu bytes, shorter than a token shard's header of %d; %s", shard->path,
                         shard->file.size, SHARD_HEADER_BYTES, make_one);
    int32_t words[HEADER_WORDS];
    if (file_copy(words, &shard->file, 0, sizeof words, error)) return -1;
    if (words[0] != SHARD_MAGIC) return wrong_magic(shard->path, words, error);
    if (words[1] != SHARD_VERSION)
        return error_set(error,
                         "%.700s: a token shard of version %d, expected %d; encode the text again with "
                         "./tokenize encode",
                         shard->path, words[1], SHARD_VERSION);
    shard->count = (uint64_t)(uint32_t)words[3] << 32 | (uint32_t)words[2];
    uint64_t bytes = shard->file.size - SHARD_HEADER_BYTES;
    // Only a count that is the file's own survives, so nothing later has to distrust it.
    if (bytes % 2 != 0 || shard->count != bytes / 2) return wrong_size(shard->path, shard->count, bytes, error);
    if (shard->count == 0) return error_set(error, "%.700s: a shard without tokens; remove it", shard->path);
    return 0;
}

int shard_open(Shard *shard, const char *path, Error *error) {
    *shard = (Shard){.path = memory_copy_string(path)};
    if (file_map(&shard->file, path, error) == 0 && read_header(shard, error) == 0) return 0;
    shard_close(shard);
    return -1;
}

void shard_close(Shard *shard) {
    file_unmap(&shard->file);
    free(shard->path);
    *shard = (Shard){0};
}

// ---- reading

int shard_read(const Shard *shard, uint64_t first, size_t count, uint16_t *tokens, Error *error) {
    if (first > shard->count || count > shard->count - first)
        return error_set(error, "%.700s: tokens %llu to %llu asked for, it has %llu", shard->path,
                         (unsigned long long)first, (unsigned long long)first + count,
                         (unsigned long long)shard->count);
    return file_copy(tokens, &shard->file, SHARD_HEADER_BYTES + first * sizeof *tokens, count * sizeof *tokens, error);
}

int shard_check(const Shard *shard, uint64_t first, uint64_t count, int vocab, Error *error) {
    uint16_t block[SAMPLE_TOKENS];
    for (uint64_t done = 0; done < count; done += SAMPLE_TOKENS) {
        size_t n = count - done < SAMPLE_TOKENS ? count - done : SAMPLE_TOKENS;
        if (shard_read(shard, first + done, n, block, error)) return -1;
        for (size_t i = 0; i < n; i++)
            if (block[i] >= vocab)
                return error_set(error,
                                 "%.700s: token %u at position %llu, but the vocabulary has only %d; the shard is of "
                                 "another tokenizer or damaged: encode the text again",
                                 shard->path, block[i], (unsigned long long)(first + done + i), vocab);
    }
    return 0;
}

int shard_fingerprint(const Shard *shard, uint64_t *fingerprint, Error *error) {
    uint16_t block[SAMPLE_TOKENS];
    uint64_t hash = XXH3_64bits(&shard->count, sizeof shard->count);
    size_t n = shard->count < SAMPLE_TOKENS ? shard->count : SAMPLE_TOKENS;
    uint64_t last = shard->count - n; // where the last block starts
    for (uint64_t i = 0; i < SAMPLES; i++) {
        uint64_t first = last / (SAMPLES - 1) * i + last % (SAMPLES - 1) * i / (SAMPLES - 1);
        if (shard_read(shard, first, n, block, error)) return -1;
        hash = XXH3_64bits_withSeed(block, n * sizeof *block, hash);
    }
    *fingerprint = hash;
    return 0;
}

// ---- writing

int shard_writer_open(ShardWriter *shard, const char *path, Error *error) {
    static const unsigned char blank[SHARD_HEADER_BYTES]; // filled in by commit, when the count is known
    *shard = (ShardWriter){0};
    if (file_writer_open(&shard->writer, path, 0, error)) return -1;
    return file_write(&shard->writer, blank, sizeof blank, error);
}

int shard_write(ShardWriter *shard, const uint16_t *tokens, size_t count, Error *error) {
    if (file_write(&shard->writer, tokens, count * sizeof *tokens, error)) return -1;
    shard->tokens += count;
    return 0;
}

int shard_writer_commit(ShardWriter *shard, Error *error) {
    if (shard->tokens == 0) {
        error_set(error, "%.700s: no tokens to write; nothing was changed",
                  shard->writer.path ? shard->writer.path : "a shard");
        shard_writer_abort(shard);
        return -1;
    }
    uint32_t words[4] = {SHARD_MAGIC, SHARD_VERSION, (uint32_t)shard->tokens, (uint32_t)(shard->tokens >> 32)};
    if (file_write_at(&shard->writer, 0, words, sizeof words, error)) return -1;
    return file_writer_commit(&shard->writer, error);
}

void shard_writer_abort(ShardWriter *shard) {
    file_writer_abort(&shard->writer);
    *shard = (ShardWriter){0};
}
