// Byte-level BPE with GPT-2's splitting rule. Files are in tiktoken's text format (base64 token, space, rank), so
// Python's tiktoken reads what is trained here and this reads GPT-2's own vocabulary. Id n_ranks is end-of-text.
#ifndef DATALOADER_TOKENIZER_H
#define DATALOADER_TOKENIZER_H

#include "core/base/file.h"

#include <stddef.h>
#include <stdint.h>

// Ids are 16 bits wide in shards. A token is at most so long, in files and in training.
enum { TOKENIZER_VOCAB_MAX = 65536, TOKENIZER_VOCAB_MIN = 257, TOKEN_BYTES_MAX = 1024 };

typedef struct Tokenizer Tokenizer;

// Loads the first `vocab - 1` ranks of a file (all of them when vocab is 0), plus end-of-text.
int tokenizer_load(Tokenizer **tokenizer, const char *path, int vocab, Error *error);
void tokenizer_free(Tokenizer *tokenizer);

int tokenizer_vocab_size(const Tokenizer *tokenizer); // ranks + 1
uint32_t tokenizer_end_of_text(const Tokenizer *tokenizer);

// Encodes bytes (any bytes). `*tokens` is grown with realloc as needed (start with NULL, 0); returns the count.
// Special-token text like "<|endoftext|>" is encoded as ordinary text. Thread-safe on one shared tokenizer.
size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, uint32_t **tokens,
                        size_t *capacity);

// The bytes of one token (not 0-terminated); end-of-text and ids out of range give 0 bytes.
const char *tokenizer_token(const Tokenizer *tokenizer, uint32_t id, size_t *bytes);

// The id of the token with exactly these bytes, or TOKENIZER_NONE.
#define TOKENIZER_NONE UINT32_MAX
uint32_t tokenizer_find(const Tokenizer *tokenizer, const char *bytes, size_t length);

// xxh3 of the first `ranks` tokens and their lengths: equal vocabularies have equal checksums.
uint64_t tokenizer_checksum(const Tokenizer *tokenizer, int ranks);

// A line of a vocabulary file; returns its length. There is no 0 after it.
enum { TOKENIZER_LINE_MAX = (TOKEN_BYTES_MAX + 2) / 3 * 4 + 32 };
size_t tokenizer_write_line(char *line, const char *token, size_t bytes, int rank);

// ---- for much text: an encoder remembers the pieces it has met (2 MB), one encoder for each thread

typedef struct TokenizerEncoder TokenizerEncoder;

TokenizerEncoder *tokenizer_encoder_create(const Tokenizer *tokenizer);
void tokenizer_encoder_free(TokenizerEncoder *encoder);
// Like tokenizer_encode, but puts the tokens after the `count` that are there; returns the new count.
size_t tokenizer_encoder_append(TokenizerEncoder *encoder, const char *text, size_t bytes, uint32_t **tokens,
                                size_t count, size_t *capacity);

// ---- Hugging Face's files, and others in their manner

// GPT-2's own form of a vocabulary: each byte of a token as a printable letter, in UTF-8; and, in order of merging, the
// pairs of tokens that become one ("a b"). A visit that returns other than 0 ends the tour with -1.
typedef int TokenizerVisit(void *context, uint32_t id, const char *text);
int tokenizer_visit_names(const Tokenizer *tokenizer, TokenizerVisit *visit, void *context); // end-of-text is the last
int tokenizer_visit_merges(const Tokenizer *tokenizer, TokenizerVisit *visit, void *context);

// The files that a checkpoint holds of its vocabulary, made in memory: the ranks in tiktoken's format, which every
// program here reads, and tokenizer.json and tokenizer_config.json, with which AutoTokenizer opens the checkpoint. As
// models are trained with end-of-text before each document, that tokenizer puts one before each text.
enum { TOKENIZER_FILES = 3 };
int tokenizer_make_files(MemoryFile files[TOKENIZER_FILES], const Tokenizer *tokenizer, Error *error);

// Writes vocab.json, merges.txt and tokenizer_config.json into a directory (made if need be), so that Hugging Face's
// AutoTokenizer opens it. Replaces such files, leaves others alone.
int tokenizer_export(const Tokenizer *tokenizer, const char *directory, Error *error);

#endif
