#include "tokenizer.h"
#include "merge_queue.h"
#include "pieces.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    FILE_BYTES_MAX = 64 << 20,
    SHORT_PIECE_MAX = 40,      // up to here, looking at all pairs for the best beats a queue
    LONG_PIECE_MAX = 64 << 20, // a longer piece is cut, which bounds the memory that hostile text can ask for
    CACHE_ENTRIES = 1 << 16,
    CACHED_BYTES_MAX = 15,
    CACHED_IDS_MAX = 7,
    NO_RANK = 65535, // one more than the highest rank
};

typedef struct {
    uint32_t pair; // left id << 16 | right id; NO_PAIR in an empty slot (id 65535 is no rank)
    uint32_t rank;
} PairSlot;
#define NO_PAIR UINT32_MAX

struct Tokenizer {
    int ranks;
    char *bytes;       // the tokens, one after the other in order of rank
    uint32_t *offsets; // (ranks + 1) into bytes
    uint16_t byte_id[256];
    uint32_t *token_slots; // (token_mask + 1) rank + 1 by hash of the bytes, 0 in empty slots
    uint32_t token_mask;
    PairSlot *pair_slots; // (pair_mask + 1)
    uint32_t pair_mask;
};

// ---- the tables

static inline size_t token_length(const Tokenizer *tokenizer, uint32_t id) {
    return tokenizer->offsets[id + 1] - tokenizer->offsets[id];
}

// The slot that holds these bytes, or the empty one where they belong.
static uint32_t *find_token_slot(const Tokenizer *tokenizer, const void *bytes, size_t length) {
    uint32_t at = (uint32_t)XXH3_64bits(bytes, length) & tokenizer->token_mask;
    for (;; at = (at + 1) & tokenizer->token_mask) {
        uint32_t *slot = &tokenizer->token_slots[at];
        if (*slot == 0) return slot;
        uint32_t id = *slot - 1;
        if (token_length(tokenizer, id) == length &&
            memcmp(tokenizer->bytes + tokenizer->offsets[id], bytes, length) == 0)
            return slot;
    }
}

static uint32_t find_token(const Tokenizer *tokenizer, const void *bytes, size_t length) {
    uint32_t slot = *find_token_slot(tokenizer, bytes, length);
    return slot ? slot - 1 : NO_RANK;
}

static inline PairSlot *find_pair_slot(const Tokenizer *tokenizer, uint32_t pair) {
    uint32_t at = (uint32_t)((pair * 0x9E3779B97F4A7C15ull) >> 32) & tokenizer->pair_mask;
    while (tokenizer->pair_slots[at].pair != pair && tokenizer->pair_slots[at].pair != NO_PAIR)
        at = (at + 1) & tokenizer->pair_mask;
    return &tokenizer->pair_slots[at];
}

// The rank of the token that two neighbours make, or NO_RANK.
static inline uint32_t pair_rank(const Tokenizer *tokenizer, uint32_t left, uint32_t right) {
    return find_pair_slot(tokenizer, left << 16 | right)->rank;
}

static uint32_t mask_for(size_t entries) {
    uint32_t size = 1024;
    while (size < 2 * entries) size *= 2;
    return size - 1;
}

static int index_tokens(Tokenizer *tokenizer, const char *path, Error *error) {
    tokenizer->token_mask = mask_for((size_t)tokenizer->ranks);
    tokenizer->token_slots = memory_allocate_zeroed(tokenizer->token_mask + 1, sizeof(uint32_t), "the token table");
    for (int rank = 0; rank < tokenizer->ranks; rank++) {
        uint32_t *slot = find_token_slot(tokenizer, tokenizer->bytes + tokenizer->offsets[rank],
                                         token_length(tokenizer, (uint32_t)rank));
        if (*slot)
            return error_set(error, "%.700s: ranks %d and %d are the same token; every token may stand there once",
                             path, (int)*slot - 1, rank);
        *slot = (uint32_t)rank + 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        uint32_t id = find_token(tokenizer, &single, 1);
        if (id == NO_RANK)
            return error_set(error,
                             "%.700s: the single byte %d is not among the %d tokens taken from it; every byte "
                             "must be a token, or some text could not be encoded",
                             path, byte, tokenizer->ranks);
        tokenizer->byte_id[byte] = (uint16_t)id;
    }
    return 0;
}

// Calls for every way to write a token as two tokens: any such pair of neighbours merges into it, as in tiktoken, where
// a pair is known by its bytes.
static size_t for_each_pair(Tokenizer *tokenizer, void (*visit)(Tokenizer *, uint32_t pair, uint32_t rank)) {
    size_t pairs = 0;
    for (uint32_t rank = 0; rank < (uint32_t)tokenizer->ranks; rank++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[rank];
        size_t length = token_length(tokenizer, rank);
        for (size_t cut = 1; cut < length; cut++) {
            uint32_t left = find_token(tokenizer, bytes, cut);
            uint32_t right = left == NO_RANK ? NO_RANK : find_token(tokenizer, bytes + cut, length - cut);
            if (right == NO_RANK) continue;
            if (visit) visit(tokenizer, left << 16 | right, rank);
            pairs++;
        }
    }
    return pairs;
}

static void insert_pair(Tokenizer *tokenizer, uint32_t pair, uint32_t rank) {
    *find_pair_slot(tokenizer, pair) = (PairSlot){pair, rank};
}

static void index_pairs(Tokenizer *tokenizer) {
    tokenizer->pair_mask = mask_for(for_each_pair(tokenizer, NULL));
    tokenizer->pair_slots = memory_allocate(tokenizer->pair_mask + 1, sizeof(PairSlot), "the pair table");
    for (uint32_t at = 0; at <= tokenizer->pair_mask; at++) tokenizer->pair_slots[at] = (PairSlot){NO_PAIR, NO_RANK};
    for_each_pair(tokenizer, insert_pair);
}

// ---- reading the file

typedef struct {
    uint32_t offset, length; // in the buffer of decoded bytes
    int line;                // where it stood; 0: no such rank yet
} ReadToken;

typedef struct { // a file being read
    const char *path;
    char *decoded; // all tokens' bytes, in order of the lines
    uint32_t decoded_bytes;
    ReadToken *tokens; // (lines) by rank
    uint64_t lines;
} VocabularyFile;

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Decodes `length` characters; returns the number of bytes, or -1 when it is not base64 with its padding.
static long base64_decode(char *out, const char *text, size_t length) {
    if (length % 4 != 0) return -1;
    size_t padding = length && text[length - 1] == '=' ? 1 + (text[length - 2] == '=') : 0;
    long bytes = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < length; i++) {
        int value = i < length - padding ? base64_value(text[i]) : 0;
        if (value < 0) return -1;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3) continue;
        for (int shift = 16; shift >= 0; shift -= 8) out[bytes++] = (char)(bits >> shift & 255);
    }
    return bytes - (long)padding;
}

// A rank: decimal digits and nothing else, below `limit`. Returns -1 for anything else.
static long parse_rank(const char *text, size_t length, uint64_t limit) {
    uint64_t rank = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        rank = rank * 10 + (uint64_t)(text[i] - '0');
        if (rank >= limit) return -1;
    }
    return length ? (long)rank : -1;
}

static int read_line(VocabularyFile *file, const char *line, size_t length, int number, Error *error) {
    if (length && line[length - 1] == '\r') length--;
    const char *space = memchr(line, ' ', length);
    if (!space || space + 1 == line + length)
        return error_set(error,
                         "%.700s:%d: expected a base64 token, a space and a rank; is the file truncated, or not "
                         "a tiktoken vocabulary?",
                         file->path, number);
    size_t token_length = (size_t)(space - line), rank_length = length - token_length - 1;
    long bytes = base64_decode(file->decoded + file->decoded_bytes, line, token_length);
    if (bytes < 0)
        return error_set(error,
                         "%.700s:%d: the token is not base64; is the file damaged, or not a tiktoken "
                         "vocabulary?",
                         file->path, number);
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX)
        return error_set(error, "%.700s:%d: a token of %ld bytes; expected 1 to %d", file->path, number, bytes,
                         TOKEN_BYTES_MAX);
    long rank = parse_rank(space + 1, rank_length, file->lines);
    if (rank < 0)
        return error_set(error,
                         "%.700s:%d: rank \"%.*s\" in a file of %llu lines; expected the ranks 0 to %llu, each "
                         "once and without gaps",
                         file->path, number, (int)(rank_length < 30 ? rank_length : 30), space + 1,
                         (unsigned long long)file->lines, (unsigned long long)file->lines - 1);
    if (file->tokens[rank].line)
        return error_set(error, "%.700s:%d: rank %ld was already given in line %d; expected every rank once",
                         file->path, number, rank, file->tokens[rank].line);
    file->tokens[rank] = (ReadToken){file->decoded_bytes, (uint32_t)bytes, number};
    file->decoded_bytes += (uint32_t)bytes;
    return 0;
}

static int read_lines(VocabularyFile *file, const char *text, size_t size, Error *error) {
    const char *line = text, *end = text + size;
    for (int number = 1; line < end; number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline) newline = end;
        if (read_line(file, line, (size_t)(newline - line), number, error)) return -1;
        line = newline + 1;
    }
    return 0;
}

// The first `ranks` tokens in order of rank. As many different ranks as lines, all below the number of lines: there is
// no gap.
static void take_ranks(Tokenizer *tokenizer, const VocabularyFile *file, int ranks) {
    tokenizer->ranks = ranks;
    tokenizer->bytes = memory_allocate(file->decoded_bytes, 1, "the vocabulary");
    tokenizer->offsets = memory_allocate((size_t)ranks + 1, sizeof(uint32_t), "the vocabulary");
    uint32_t offset = 0;
    for (int rank = 0; rank < ranks; rank++) {
        tokenizer->offsets[rank] = offset;
        memcpy(tokenizer->bytes + offset, file->decoded + file->tokens[rank].offset, file->tokens[rank].length);
        offset += file->tokens[rank].length;
    }
    tokenizer->offsets[ranks] = offset;
}

// `vocab` is what was asked for, 0 for all of the file.
static int check_vocab(const VocabularyFile *file, int vocab, Error *error) {
    long long available = (long long)file->lines + 1, wanted = vocab ? vocab : available;
    if (wanted > TOKENIZER_VOCAB_MAX || vocab < 0 || (vocab && vocab < TOKENIZER_VOCAB_MIN))
        return error_set(error,
                         "%.700s: a vocabulary of %lld; expected %d to %d with end-of-text, since shards hold "
                         "16-bit ids; take the first ranks with --vocab %d",
                         file->path, wanted, TOKENIZER_VOCAB_MIN, TOKENIZER_VOCAB_MAX, TOKENIZER_VOCAB_MAX);
    if (wanted > available)
        return error_set(error,
                         "%.700s: a vocabulary of %lld was asked for, the file has %lld ranks, which with "
                         "end-of-text make %lld",
                         file->path, wanted, available - 1, available);
    return 0;
}

static uint64_t count_lines(const char *text, size_t size) {
    uint64_t lines = size > 0 && text[size - 1] != '\n';
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    return lines;
}

int tokenizer_load(Tokenizer **result, const char *path, int vocab, Error *error) {
    char *text = NULL;
    size_t size = 0;
    *result = NULL;
    if (file_read(&text, &size, path, FILE_BYTES_MAX, error)) return -1;
    VocabularyFile file = {.path = path, .lines = count_lines(text, size)};
    int status = size
                     ? check_vocab(&file, vocab, error)
                     : error_set(error, "%.700s: the file is empty; expected lines of a base64 token and a rank", path);
    Tokenizer *tokenizer = memory_allocate_zeroed(1, sizeof(Tokenizer), "the tokenizer");
    if (status == 0) {
        file.decoded = memory_allocate(size + 3, 1, "the vocabulary");
        file.tokens = memory_allocate_zeroed(file.lines, sizeof(ReadToken), "the vocabulary");
        status = read_lines(&file, text, size, error);
    }
    if (status == 0) {
        take_ranks(tokenizer, &file, vocab ? vocab - 1 : (int)file.lines);
        status = index_tokens(tokenizer, path, error);
    }
    if (status == 0) index_pairs(tokenizer);
    free(text);
    free(file.decoded);
    free(file.tokens);
    if (status)
        tokenizer_free(tokenizer);
    else
        *result = tokenizer;
    return status;
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    free(tokenizer->bytes);
    free(tokenizer->offsets);
    free(tokenizer->token_slots);
    free(tokenizer->pair_slots);
    free(tokenizer);
}

int tokenizer_vocab_size(const Tokenizer *tokenizer) {
    return tokenizer->ranks + 1;
}

uint32_t tokenizer_end_of_text(const Tokenizer *tokenizer) {
    return (uint32_t)tokenizer->ranks;
}

const char *tokenizer_token(const Tokenizer *tokenizer, uint32_t id, size_t *bytes) {
    *bytes = 0;
    if (id >= (uint32_t)tokenizer->ranks) return "";
    *bytes = token_length(tokenizer, id);
    return tokenizer->bytes + tokenizer->offsets[id];
}

uint32_t tokenizer_find(const Tokenizer *tokenizer, const char *bytes, size_t length) {
    uint32_t id = length ? find_token(tokenizer, bytes, length) : NO_RANK;
    return id == NO_RANK ? TOKENIZER_NONE : id;
}

uint64_t tokenizer_checksum(const Tokenizer *tokenizer, int ranks) {
    uint64_t of_bytes = XXH3_64bits(tokenizer->bytes, tokenizer->offsets[ranks]);
    return XXH3_64bits_withSeed(tokenizer->offsets, ((size_t)ranks + 1) * sizeof(uint32_t), of_bytes);
}

// ---- merging

// Merges a piece of at most SHORT_PIECE_MAX bytes: always the pair of the lowest rank, the leftmost of equal ones.
// Returns the number of ids.
static size_t merge_short(const Tokenizer *tokenizer, const unsigned char *piece, size_t bytes, uint16_t *ids) {
    uint32_t ranks[SHORT_PIECE_MAX]; // of the pair that begins at each id; the last has none
    size_t count = bytes;
    for (size_t i = 0; i < bytes; i++) ids[i] = tokenizer->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < bytes; i++) ranks[i] = pair_rank(tokenizer, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        ids[best] = (uint16_t)ranks[best];
        count--;
        for (size_t i = best + 1; i < count; i++) ids[i] = ids[i + 1], ranks[i - 1] = ranks[i];
        if (best + 1 < count) ranks[best] = pair_rank(tokenizer, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = pair_rank(tokenizer, ids[best - 1], ids[best]);
    }
    return count;
}

typedef struct {     // work space for long pieces
    uint16_t *ids;   // (capacity) the id of a token, at its first and at its last byte: neighbours are found by length
    uint16_t *ranks; // (capacity) the rank of the pair that begins at this byte; NO_RANK if none does
    size_t capacity;
    MergeQueue *queue;
} LongPiece;

static void long_piece_reserve(LongPiece *work, size_t bytes, size_t ranks) {
    if (!work->queue) work->queue = merge_queue_create(ranks);
    if (bytes <= work->capacity) return;
    work->ids = memory_resize(work->ids, bytes, sizeof *work->ids, "a long piece of text");
    work->ranks = memory_resize(work->ranks, bytes, sizeof *work->ranks, "a long piece of text");
    work->capacity = bytes;
}

static inline void set_pair(LongPiece *work, size_t at, uint32_t rank) {
    work->ranks[at] = (uint16_t)rank;
    if (rank != NO_RANK) merge_queue_push(work->queue, rank, (uint32_t)at);
}

// Merges the pair that begins at `left`, and looks up the pairs that the new token makes with its neighbours.
static void merge_at(const Tokenizer *tokenizer, LongPiece *work, size_t left, uint32_t merged, size_t bytes) {
    size_t right = left + token_length(tokenizer, work->ids[left]), end = left + token_length(tokenizer, merged);
    work->ranks[right] = NO_RANK;
    work->ids[left] = work->ids[end - 1] = (uint16_t)merged;
    set_pair(work, left, end < bytes ? pair_rank(tokenizer, merged, work->ids[end]) : NO_RANK);
    if (left == 0) return;
    uint32_t before = work->ids[left - 1];
    set_pair(work, left - token_length(tokenizer, before), pair_rank(tokenizer, before, merged));
}

// The same merges for a piece of any length, in n log n. Writes at most `bytes` tokens and returns their number.
static size_t merge_long(const Tokenizer *tokenizer, LongPiece *work, const unsigned char *piece, size_t bytes,
                         uint32_t *tokens) {
    long_piece_reserve(work, bytes, (size_t)tokenizer->ranks);
    for (size_t i = 0; i < bytes; i++) work->ids[i] = tokenizer->byte_id[piece[i]];
    for (size_t i = 0; i < bytes; i++)
        set_pair(work, i, i + 1 < bytes ? pair_rank(tokenizer, work->ids[i], work->ids[i + 1]) : NO_RANK);
    uint32_t rank, position;
    while (merge_queue_pop(work->queue, &rank, &position)) // entries whose pair has changed since are passed over
        if (work->ranks[position] == rank) merge_at(tokenizer, work, position, rank, bytes);
    size_t count = 0;
    for (size_t at = 0; at < bytes; at += token_length(tokenizer, work->ids[at])) tokens[count++] = work->ids[at];
    return count;
}

// ---- encoding

typedef struct {
    uint64_t key[2]; // the piece, padded with zeros; its length in the last byte (0: empty)
    uint16_t ids[CACHED_IDS_MAX];
    uint16_t count;
} CacheEntry;

struct TokenizerEncoder {
    const Tokenizer *tokenizer;
    CacheEntry *cache; // (CACHE_ENTRIES); NULL: none
    LongPiece work;
};

TokenizerEncoder *tokenizer_encoder_create(const Tokenizer *tokenizer) {
    TokenizerEncoder *encoder = memory_allocate_zeroed(1, sizeof(TokenizerEncoder), "an encoder");
    encoder->tokenizer = tokenizer;
    encoder->cache = memory_allocate_zeroed(CACHE_ENTRIES, sizeof(CacheEntry), "an encoder's cache");
    return encoder;
}

static void release_encoder(TokenizerEncoder *encoder) {
    free(encoder->cache);
    free(encoder->work.ids);
    free(encoder->work.ranks);
    merge_queue_free(encoder->work.queue);
}

void tokenizer_encoder_free(TokenizerEncoder *encoder) {
    if (!encoder) return;
    release_encoder(encoder);
    free(encoder);
}

static size_t encode_short_piece(const Tokenizer *tokenizer, const unsigned char *piece, size_t bytes, uint16_t *ids) {
    uint32_t whole = find_token(tokenizer, piece, bytes);
    if (whole == NO_RANK) return merge_short(tokenizer, piece, bytes, ids);
    ids[0] = (uint16_t)whole;
    return 1;
}

// Encodes one piece into `tokens`, which has room for as many as the piece has bytes; returns their number.
static size_t encode_piece(TokenizerEncoder *encoder, const unsigned char *piece, size_t bytes, uint32_t *tokens) {
    const Tokenizer *tokenizer = encoder->tokenizer;
    if (bytes <= SHORT_PIECE_MAX) {
        uint16_t ids[SHORT_PIECE_MAX];
        size_t count = encode_short_piece(tokenizer, piece, bytes, ids);
        for (size_t i = 0; i < count; i++) tokens[i] = ids[i];
        return count;
    }
    tokens[0] = bytes <= TOKEN_BYTES_MAX ? find_token(tokenizer, piece, bytes) : NO_RANK;
    return tokens[0] != NO_RANK ? 1 : merge_long(tokenizer, &encoder->work, piece, bytes, tokens);
}

// The piece's bytes as two words with its length on top. `left` says how much may be read from `piece` on.
static inline void load_key(uint64_t key[2], const unsigned char *piece, size_t bytes, size_t left) {
    if (left >= 16) {
        memcpy(key, piece, 16);
        if (bytes < 8)
            key[0] &= ~0ull >> (64 - 8 * bytes), key[1] = 0;
        else
            key[1] &= ~(~0ull << 8 * (bytes - 8));
    } else {
        key[0] = key[1] = 0;
        memcpy(key, piece, bytes);
    }
    key[1] |= (uint64_t)bytes << 56;
}

static inline CacheEntry *find_cached(TokenizerEncoder *encoder, const uint64_t key[2]) {
    uint64_t hash = (key[0] ^ key[1] * 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull;
    return &encoder->cache[(hash ^ hash >> 32) % CACHE_ENTRIES];
}

// The same for a piece of at most CACHED_BYTES_MAX bytes, through the cache; `tokens` has room for CACHED_IDS_MAX + 1
// more than needed, so that all ids of an entry can be copied at once.
static inline size_t encode_cached(TokenizerEncoder *encoder, const unsigned char *piece, size_t bytes, size_t left,
                                   uint32_t *tokens) {
    uint64_t key[2];
    load_key(key, piece, bytes, left);
    CacheEntry *entry = find_cached(encoder, key);
    if (entry->key[0] != key[0] || entry->key[1] != key[1]) {
        uint16_t ids[SHORT_PIECE_MAX];
        size_t count = encode_short_piece(encoder->tokenizer, piece, bytes, ids);
        if (count > CACHED_IDS_MAX) {
            for (size_t i = 0; i < count; i++) tokens[i] = ids[i];
            return count;
        }
        *entry = (CacheEntry){.key = {key[0], key[1]}, .count = (uint16_t)count};
        memcpy(entry->ids, ids, count * sizeof *ids);
    }
    for (int i = 0; i < CACHED_IDS_MAX; i++) tokens[i] = entry->ids[i];
    return entry->count;
}

size_t tokenizer_encoder_append(TokenizerEncoder *encoder, const char *text, size_t bytes, uint32_t **tokens,
                                size_t count, size_t *capacity) {
    const unsigned char *at = (const unsigned char *)text;
    for (size_t start = 0, end; start < bytes; start = end) {
        end = piece_end(at, start, bytes);
        if (end - start > LONG_PIECE_MAX) end = start + LONG_PIECE_MAX;
        size_t length = end - start, needed = count + length + CACHED_IDS_MAX + 1;
        if (needed > *capacity) {
            *capacity = needed + needed / 2 + 64;
            *tokens = memory_resize(*tokens, *capacity, sizeof **tokens, "tokens");
        }
        if (encoder->cache && length <= CACHED_BYTES_MAX)
            count += encode_cached(encoder, at + start, length, bytes - start, *tokens + count);
        else
            count += encode_piece(encoder, at + start, length, *tokens + count);
    }
    return count;
}

size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, uint32_t **tokens,
                        size_t *capacity) {
    TokenizerEncoder encoder = {.tokenizer = tokenizer};
    size_t count = tokenizer_encoder_append(&encoder, text, bytes, tokens, 0, capacity);
    release_encoder(&encoder);
    return count;
}
