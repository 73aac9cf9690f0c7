// Vocabulary files: the input as it is, and with the 256 single bytes before it, without which no vocabulary is
// accepted. An accepted one encodes any bytes to tokens that stand for them, and is the same after being written and
// read again.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "dataloader/tokenizer.h"

static void round_trip(const Tokenizer *tokenizer, const uint8_t *text, size_t size) {
    uint32_t *tokens = NULL;
    size_t capacity = 0, at = 0, bytes,
           count = tokenizer_encode(tokenizer, (const char *)text, size, &tokens, &capacity);
    for (size_t i = 0; i < count; i++) {
        const char *token = tokenizer_token(tokenizer, tokens[i], &bytes);
        EXPECT(bytes > 0 && bytes <= size - at && !memcmp(token, text + at, bytes));
        at += bytes;
    }
    EXPECT(at == size);
    free(tokens);
}

static void write_again(const Tokenizer *tokenizer) {
    int ranks = tokenizer_vocab_size(tokenizer) - 1;
    MemoryFile files[TOKENIZER_FILES];
    Tokenizer *again;
    Error error;
    if (tokenizer_make_files(files, tokenizer, &error)) return; // a token that no two others make
    memory_file_put("again", files[0].text, files[0].bytes);
    EXPECT(tokenizer_load(&again, "again", 0, &error) == 0);
    EXPECT(tokenizer_vocab_size(again) == ranks + 1);
    EXPECT(tokenizer_checksum(again, ranks) == tokenizer_checksum(tokenizer, ranks));
    tokenizer_free(again);
    for (int i = 0; i < TOKENIZER_FILES; i++) free(files[i].text);
}

static void load(const char *path, const uint8_t *data, size_t size) {
    Tokenizer *tokenizer;
    Error error;
    if (tokenizer_load(&tokenizer, path, 0, &error)) return;
    round_trip(tokenizer, data, size);
    if (size % 16 == 0) write_again(tokenizer); // which takes long
    tokenizer_free(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char single[256 * 12];
    static size_t before;
    for (int byte = 0; before == 0 || byte > 0; byte = (byte + 1) % 256) {
        before += tokenizer_write_line(single + before, &(char){(char)byte}, 1, byte);
        if (byte == 255) break;
    }
    char *whole = malloc(before + size);
    memcpy(whole, single, before);
    memcpy(whole + before, data, size);
    memory_file_put("as it is", data, size);
    memory_file_put("completed", whole, before + size);
    free(whole);
    load("as it is", data, size);
    load("completed", data, size);
    memory_files_clear();
    return 0;
}
