// Trains a vocabulary: counts the pieces of a text, then joins the most frequent pair of neighbours into a new token
// until the vocabulary is full. The first 256 ranks are the bytes in order.
#ifndef DATALOADER_TOKENIZER_TRAIN_H
#define DATALOADER_TOKENIZER_TRAIN_H

#include "core/base/error.h"

#include <stddef.h>
#include <stdint.h>

// ---- the different pieces of a text and how often each occurs. Threads count apart and merge their counts: the order
// of the pieces does not matter to what is learned from them.

typedef struct PieceCounts PieceCounts;

PieceCounts *piece_counts_create(void);
void piece_counts_free(PieceCounts *counts);
void piece_counts_add(PieceCounts *counts, const char *text, size_t bytes);
void piece_counts_merge(PieceCounts *counts, const PieceCounts *others);
size_t piece_counts_different(const PieceCounts *counts);

// ---- training

// Writes a vocabulary of `vocab` tokens (257 to 65536; end-of-text is one of them and stands in no file) in tiktoken's
// format. Each step takes the pair with the highest count, and of equal ones the smallest pair of ids (left id first).
// Refuses when the text runs out of pairs.
int tokenizer_train(const PieceCounts *counts, int vocab, const char *path, Error *error);

#endif
