#include "tokenizer_train.h"
#include "pieces.h"
#include "tokenizer.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/progress.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- counting pieces

typedef struct {
    uint64_t hash, count;
    uint64_t offset; // into the bytes
    uint32_t length; // 0: an empty slot
} CountedPiece;

struct PieceCounts {
    CountedPiece *slots; // (mask + 1), at most half of them used
    size_t mask, used;
    char *bytes; // of all pieces, end to end
    size_t bytes_used, bytes_capacity;
};

enum { COUNTED_PIECE_MAX = 64 << 20 }; // longer pieces are counted in parts, as the encoder cuts them

PieceCounts *piece_counts_create(void) {
    PieceCounts *counts = memory_allocate_zeroed(1, sizeof(PieceCounts), "the counts of pieces");
    counts->mask = (1 << 14) - 1;
    counts->slots = memory_allocate_zeroed(counts->mask + 1, sizeof(CountedPiece), "the counts of pieces");
    return counts;
}

void piece_counts_free(PieceCounts *counts) {
    if (!counts) return;
    free(counts->slots);
    free(counts->bytes);
    free(counts);
}

size_t piece_counts_different(const PieceCounts *counts) {
    return counts->used;
}

static void double_slots(PieceCounts *counts) {
    size_t mask = 2 * counts->mask + 1;
    CountedPiece *slots = memory_allocate_zeroed(mask + 1, sizeof(CountedPiece), "the counts of pieces");
    for (size_t i = 0; i <= counts->mask; i++) {
        if (!counts->slots[i].length) continue;
        size_t at = counts->slots[i].hash & mask;
        while (slots[at].length) at = (at + 1) & mask;
        slots[at] = counts->slots[i];
    }
    free(counts->slots);
    counts->slots = slots;
    counts->mask = mask;
}

static uint64_t keep_bytes(PieceCounts *counts, const void *piece, size_t length) {
    if (counts->bytes_used + length > counts->bytes_capacity) {
        counts->bytes_capacity = 2 * (counts->bytes_used + length) + (1 << 16);
        counts->bytes = memory_resize(counts->bytes, counts->bytes_capacity, 1, "the pieces");
    }
    memcpy(counts->bytes + counts->bytes_used, piece, length);
    counts->bytes_used += length;
    return counts->bytes_used - length;
}

static void count_piece(PieceCounts *counts, const void *piece, size_t length, uint64_t times) {
    uint64_t hash = XXH3_64bits(piece, length);
    size_t at = hash & counts->mask;
    for (; counts->slots[at].length; at = (at + 1) & counts->mask) {
        CountedPiece *slot = &counts->slots[at];
        if (slot->hash != hash || slot->length != length) continue;
        if (memcmp(counts->bytes + slot->offset, piece, length) != 0) continue;
        slot->count += times;
        return;
    }
    counts->slots[at] = (CountedPiece){hash, times, keep_bytes(counts, piece, length), (uint32_t)length};
    if (2 * ++counts->used > counts->mask) double_slots(counts);
}

void piece_counts_add(PieceCounts *counts, const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text;
    for (size_t start = 0, end; start < bytes; start = end) {
        end = piece_end(at, start, bytes);
        if (end - start > COUNTED_PIECE_MAX) end = start + COUNTED_PIECE_MAX;
        count_piece(counts, text + start, end - start, 1);
    }
}

void piece_counts_merge(PieceCounts *counts, const PieceCounts *others) {
    for (size_t i = 0; i <= others->mask; i++) {
        const CountedPiece *piece = &others->slots[i];
        if (piece->length) count_piece(counts, others->bytes + piece->offset, piece->length, piece->count);
    }
}

// ---- the state of training

#define NO_SYMBOL UINT16_MAX // between pieces, and where a right neighbour began that was merged away
#define NO_PAIR   UINT32_MAX

typedef struct {  // two neighbours
    uint32_t ids; // left << 16 | right
    uint32_t used, capacity;
    uint32_t *positions; // where it occurs, and places where it no longer does
    uint64_t count;      // in the whole text
} Pair;

typedef struct {
    uint64_t count;
    uint32_t ids, pair;
} Candidate;

typedef struct {
    uint16_t *symbols;  // (size) a token's id at its first and at its last byte; neighbours are found by length
    uint32_t *piece_of; // (size) which piece a position is in
    uint64_t *times;    // (pieces) how often the piece occurs in the text
    uint32_t size;

    Pair *pairs;
    uint32_t pair_count, pair_capacity;
    uint32_t *pair_slots; // (pair_mask + 1) index into pairs + 1, by hash of the ids; at most half of them used
    uint32_t pair_mask;
    Candidate *heap; // the highest count first, the smallest ids first among equals; counts may be out of date
    size_t heap_count, heap_capacity;
    uint32_t pushed; // how many of the pairs the heap has been given

    char *bytes;                               // the tokens, end to end
    uint32_t offsets[TOKENIZER_VOCAB_MAX + 1]; // (ranks + 1)
    int ranks;
} Training;

static inline uint32_t token_length(const Training *training, uint32_t id) {
    return training->offsets[id + 1] - training->offsets[id];
}

static void training_free(Training *training) {
    for (uint32_t i = 0; i < training->pair_count; i++) free(training->pairs[i].positions);
    free(training->symbols);
    free(training->piece_of);
    free(training->times);
    free(training->pairs);
    free(training->pair_slots);
    free(training->heap);
    free(training->bytes);
    free(training);
}

// ---- tokens
//
// Every merge gives a token that was not there before, so the vocabulary has no token twice. For say that the bytes t
// were made into a token in step k. Take any place where t stands and both of its ends are borders between tokens now.
// They were borders all along, as merging only removes borders; so no merge ever reached across them, and inside, the
// merges were those of t standing alone. In step k they made one token of it. There is no pair left whose bytes are t.

static uint32_t add_token(Training *training, const char *bytes, uint32_t length) {
    uint32_t id = (uint32_t)training->ranks++, offset = training->offsets[id];
    training->bytes = memory_resize(training->bytes, (size_t)offset + length, 1, "the vocabulary");
    memcpy(training->bytes + offset, bytes, length);
    training->offsets[id + 1] = offset + length;
    return id;
}

static uint32_t add_merged_token(Training *training, uint32_t left, uint32_t right) {
    char bytes[TOKEN_BYTES_MAX];
    uint32_t left_length = token_length(training, left), right_length = token_length(training, right);
    memcpy(bytes, training->bytes + training->offsets[left], left_length);
    memcpy(bytes + left_length, training->bytes + training->offsets[right], right_length);
    return add_token(training, bytes, left_length + right_length);
}

// ---- pairs

static uint32_t pair_hash(uint32_t ids) {
    return (uint32_t)((ids * 0x9E3779B97F4A7C15ull) >> 32);
}

static uint32_t *find_pair_slot(const Training *training, uint32_t ids) {
    uint32_t at = pair_hash(ids) & training->pair_mask;
    while (training->pair_slots[at] && training->pairs[training->pair_slots[at] - 1].ids != ids)
        at = (at + 1) & training->pair_mask;
    return &training->pair_slots[at];
}

static void double_pair_slots(Training *training) {
    training->pair_mask = 2 * training->pair_mask + 1;
    free(training->pair_slots);
    training->pair_slots = memory_allocate_zeroed((size_t)training->pair_mask + 1, sizeof(uint32_t), "the pairs");
    for (uint32_t i = 0; i < training->pair_count; i++) *find_pair_slot(training, training->pairs[i].ids) = i + 1;
}

static Pair *find_or_add_pair(Training *training, uint32_t ids) {
    uint32_t *slot = find_pair_slot(training, ids);
    if (*slot) return &training->pairs[*slot - 1];
    if (training->pair_count == training->pair_capacity) {
        training->pair_capacity = training->pair_capacity ? 2 * training->pair_capacity : 4096;
        training->pairs = memory_resize(training->pairs, training->pair_capacity, sizeof(Pair), "the pairs");
    }
    Pair *pair = &training->pairs[training->pair_count++];
    *pair = (Pair){.ids = ids};
    *slot = training->pair_count;
    if (2 * training->pair_count > training->pair_mask) double_pair_slots(training);
    return pair;
}

// Counts a pair that begins at `position`. One that would make too long a token is not a pair.
static void add_pair(Training *training, uint32_t left, uint32_t right, uint64_t times, uint32_t position) {
    if (token_length(training, left) + token_length(training, right) > TOKEN_BYTES_MAX) return;
    Pair *pair = find_or_add_pair(training, left << 16 | right);
    pair->count += times;
    if (pair->used == pair->capacity) {
        pair->capacity = pair->capacity ? 2 * pair->capacity : 4;
        pair->positions = memory_resize(pair->positions, pair->capacity, sizeof(uint32_t), "the pairs");
    }
    pair->positions[pair->used++] = position;
}

static void remove_pair(Training *training, uint32_t left, uint32_t right, uint64_t times) {
    uint32_t slot = *find_pair_slot(training, left << 16 | right);
    if (slot) training->pairs[slot - 1].count -= times;
}

// ---- the heap of candidates

static inline int comes_before(const Candidate *a, const Candidate *b) {
    return a->count > b->count || (a->count == b->count && a->ids < b->ids);
}

static void heap_push(Training *training, Candidate candidate) {
    if (training->heap_count == training->heap_capacity) {
        training->heap_capacity = 2 * training->heap_capacity + 4096;
        training->heap = memory_resize(training->heap, training->heap_capacity, sizeof(Candidate), "the candidates");
    }
    size_t at = training->heap_count++;
    for (size_t parent; at > 0 && comes_before(&candidate, &training->heap[parent = (at - 1) / 2]); at = parent)
        training->heap[at] = training->heap[parent];
    training->heap[at] = candidate;
}

static Candidate heap_pop(Training *training) {
    Candidate first = training->heap[0], last = training->heap[--training->heap_count];
    size_t at = 0, count = training->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && comes_before(&training->heap[child + 1], &training->heap[child])) child++;
        if (!comes_before(&training->heap[child], &last)) break;
        training->heap[at] = training->heap[child];
    }
    training->heap[at] = last;
    return first;
}

// A pair is complete after the step that made the younger of its two tokens, and its count only falls from then on.
static void push_new_pairs(Training *training) {
    for (; training->pushed < training->pair_count; training->pushed++) {
        const Pair *pair = &training->pairs[training->pushed];
        if (pair->count) heap_push(training, (Candidate){pair->count, pair->ids, training->pushed});
    }
}

// The pair with the highest count, or NO_PAIR. A candidate whose count has fallen since it was pushed goes back with
// its true one.
static uint32_t take_best_pair(Training *training) {
    while (training->heap_count) {
        Candidate best = heap_pop(training);
        uint64_t count = training->pairs[best.pair].count;
        if (count == best.count) return best.pair;
        if (count) heap_push(training, (Candidate){count, best.ids, best.pair});
    }
    return NO_PAIR;
}

// ---- merging

// Joins the two tokens at `position` if they are still `left` and `right`. A position where no token begins any more
// cannot pass for one: it holds NO_SYMBOL, or, where a token of one byte was swallowed, the id of a longer token that
// ends there, and no pair that starts with a longer token was ever listed at that position.
static void merge_at(Training *training, uint32_t position, uint32_t left, uint32_t right, uint32_t merged) {
    uint16_t *symbols = training->symbols;
    uint32_t middle = position + token_length(training, left);
    if (symbols[position] != left || symbols[middle] != right) return;
    uint32_t end = middle + token_length(training, right), before = symbols[position - 1], after = symbols[end];
    uint64_t times = training->times[training->piece_of[position]];
    symbols[middle] = NO_SYMBOL;
    symbols[position] = symbols[end - 1] = (uint16_t)merged;
    if (before != NO_SYMBOL) {
        remove_pair(training, before, left, times);
        add_pair(training, before, merged, times, position - token_length(training, before));
    }
    if (after != NO_SYMBOL) {
        remove_pair(training, right, after, times);
        add_pair(training, merged, after, times, position);
    }
}

// Joins a pair wherever it stands, from left to right: its positions are in ascending order, since one step found them
// all, going from left to right itself.
static void merge_pair(Training *training, uint32_t index) {
    Pair pair = training->pairs[index];
    training->pairs[index].positions = NULL;
    uint32_t left = pair.ids >> 16, right = pair.ids & 0xFFFF, merged = add_merged_token(training, left, right);
    for (uint32_t i = 0; i < pair.used; i++) merge_at(training, pair.positions[i], left, right, merged);
    training->pairs[index].count = 0;
    free(pair.positions);
    push_new_pairs(training);
}

// ---- the beginning and the end

// Lays out the pieces of two bytes and more, with NO_SYMBOL around each.
static void lay_out_pieces(Training *training, const PieceCounts *counts) {
    uint32_t at = 0, pieces = 0;
    training->symbols[at++] = NO_SYMBOL;
    for (size_t i = 0; i <= counts->mask; i++) {
        const CountedPiece *piece = &counts->slots[i];
        if (piece->length < 2) continue;
        training->times[pieces] = piece->count;
        for (uint32_t k = 0; k < piece->length; k++, at++) {
            training->symbols[at] = (unsigned char)counts->bytes[piece->offset + k]; // the first 256 ids are the bytes
            training->piece_of[at] = pieces;
        }
        training->symbols[at++] = NO_SYMBOL;
        pieces++;
    }
    training->size = at;
}

static int training_start(Training **result, const PieceCounts *counts, Error *error) {
    uint64_t size = counts->bytes_used + counts->used + 1;
    *result = NULL;
    if (size >= UINT32_MAX)
        return error_set(error,
                         "the text has %.1f GB of different pieces, more than training can hold (4 GB); train on "
                         "a part of it",
                         (double)size / 1e9);
    Training *training = memory_allocate_zeroed(1, sizeof(Training), "training a vocabulary");
    training->symbols = memory_allocate(size, sizeof(uint16_t), "the pieces");
    training->piece_of = memory_allocate(size, sizeof(uint32_t), "the pieces");
    training->times = memory_allocate(counts->used, sizeof(uint64_t), "the pieces");
    training->pair_mask = (1 << 16) - 1;
    training->pair_slots = memory_allocate_zeroed((size_t)training->pair_mask + 1, sizeof(uint32_t), "the pairs");
    for (int byte = 0; byte < 256; byte++) add_token(training, &(char){(char)byte}, 1);
    lay_out_pieces(training, counts);
    for (uint32_t i = 0; i + 1 < training->size; i++)
        if (training->symbols[i] != NO_SYMBOL && training->symbols[i + 1] != NO_SYMBOL)
            add_pair(training, training->symbols[i], training->symbols[i + 1], training->times[training->piece_of[i]],
                     i);
    push_new_pairs(training);
    *result = training;
    return 0;
}

static int write_vocabulary(const Training *training, const char *path, Error *error) {
    FileWriter writer;
    if (file_writer_open(&writer, path, 0, error)) return -1;
    for (int rank = 0; rank < training->ranks; rank++) {
        char line[TOKENIZER_LINE_MAX];
        size_t length = tokenizer_write_line(line, training->bytes + training->offsets[rank],
                                             token_length(training, (uint32_t)rank), rank);
        if (file_write(&writer, line, length, error)) return -1;
    }
    return file_writer_commit(&writer, error);
}

int tokenizer_train(const PieceCounts *counts, int vocab, const char *path, Error *error) {
    if (vocab < TOKENIZER_VOCAB_MIN || vocab > TOKENIZER_VOCAB_MAX)
        return error_set(error,
                         "a vocabulary of %d; expected %d (the bytes and end-of-text) to %d (shards hold 16-bit "
                         "ids)",
                         vocab, TOKENIZER_VOCAB_MIN, TOKENIZER_VOCAB_MAX);
    Training *training;
    if (training_start(&training, counts, error)) return -1;
    Progress progress;
    progress_start(&progress, "train", vocab - 1, 1, "tokens");
    uint32_t best = 0;
    while (training->ranks < vocab - 1 && (best = take_best_pair(training)) != NO_PAIR) {
        merge_pair(training, best);
        progress_update(&progress, training->ranks);
    }
    progress_end(&progress);
    int status = best == NO_PAIR ? error_set(error,
                                             "the text has only enough different pairs for a vocabulary of %d, "
                                             "%d was asked for; give more text, or --vocab %d",
                                             training->ranks + 1, vocab, training->ranks + 1)
                                 : write_vocabulary(training, path, error);
    training_free(training);
    return status;
}
