// Encoding any bytes and going back, with a vocabulary trained here: tokens stand for the text, and an encoder that
// remembers gives the same ones the second time. For some texts, for both take long: an encoder that remembers nothing
// gives them too, and the text's pieces can be counted.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "dataloader/tokenizer.h"
#include "dataloader/tokenizer_train.h"

static const char text_to_learn[] =
    "Once upon a time there was a little fox who didn't like the rain. \"It's wet,\" said the fox; they'll say so "
    "too!\n\n"
    "In 1234 or 2026 the others' houses (there were 3,141 of them) stood... Where? Na\xc3\xafve caf\xc3\xa9s, "
    "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\xa6\x8a\xf0\x9f\xa6\x8a the fox, the fox, the foxes.   "
    "\t\n"
    "little little little little rain rain rain rain they'll they'll don't don't 1234 1234 1234 aaaaaaaa aaaa aa\n";

static Tokenizer *learn(void) {
    PieceCounts *counts = piece_counts_create();
    Tokenizer *tokenizer;
    Error error;
    piece_counts_add(counts, text_to_learn, sizeof text_to_learn - 1);
    EXPECT(tokenizer_train(counts, 330, "vocabulary", &error) == 0);
    EXPECT(tokenizer_load(&tokenizer, "vocabulary", 0, &error) == 0);
    piece_counts_free(counts);
    memory_files_clear();
    return tokenizer;
}

static void check_text(const Tokenizer *tokenizer, const uint32_t *tokens, size_t count, const uint8_t *text,
                       size_t size) {
    size_t at = 0, bytes;
    for (size_t i = 0; i < count; i++, at += bytes) {
        const char *token = tokenizer_token(tokenizer, tokens[i], &bytes);
        EXPECT(bytes > 0 && bytes <= size - at && !memcmp(token, text + at, bytes));
    }
    EXPECT(at == size);
}

// The counts go on from text to text, so that their table grows; clearing a new one took longer than all else.
static void count_pieces(const char *text, size_t size) {
    static PieceCounts *counts;
    if (!counts) counts = piece_counts_create();
    size_t before = piece_counts_different(counts);
    piece_counts_add(counts, text, size);
    size_t after = piece_counts_different(counts);
    EXPECT(after >= before && after - before <= size);
    if (after > 20000) piece_counts_free(counts), counts = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *tokenizer;
    static TokenizerEncoder *encoder;
    if (!tokenizer) encoder = tokenizer_encoder_create(tokenizer = learn());
    uint32_t *tokens = NULL, *others = NULL;
    size_t capacity = 0, room = 0;
    char *text = memcpy(malloc(size + 1), data, size);
    size_t count = tokenizer_encoder_append(encoder, text, size, &tokens, 0, &capacity);
    size_t both = tokenizer_encoder_append(encoder, text, size, &tokens, count, &capacity);
    check_text(tokenizer, tokens, count, data, size);
    EXPECT(both == 2 * count && (count == 0 || !memcmp(tokens, tokens + count, count * sizeof *tokens)));
    if (size % 16 == 0) {
        EXPECT(tokenizer_encode(tokenizer, text, size, &others, &room) == count);
        EXPECT(count == 0 || !memcmp(tokens, others, count * sizeof *tokens));
    }
    if (size % 64 == 0) count_pieces(text, size);
    free(text), free(tokens), free(others);
    return 0;
}
