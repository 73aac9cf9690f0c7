// A vocabulary as Hugging Face's GPT-2 tokenizer keeps it. There bytes are written as printable characters, and the
// order of merging is a list of pairs instead of the ranks of tokens.
#include "tokenizer.h"
#include "../core/file.h"
#include "../core/json.h"
#include "../core/memory.h"

#include <stdlib.h>
#include <string.h>

// GPT-2's letter for a byte: itself if it is printable Latin-1, else the next one of U+0100, U+0101, ...; as UTF-8.
static size_t write_letter(char *out, unsigned char byte) {
    uint32_t code = 256;
    for (unsigned b = 0; b <= byte; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b < byte)
            code += !printable;
        else if (printable)
            code = byte;
    }
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

typedef struct {
    size_t length[256];
    char letters[256][2];
} Letters;

static Letters make_letters(void) {
    Letters letters;
    for (int byte = 0; byte < 256; byte++)
        letters.length[byte] = write_letter(letters.letters[byte], (unsigned char)byte);
    return letters;
}

// Two bytes at most for each byte of the token.
static size_t write_letters(char *out, const Letters *letters, const char *bytes, size_t length) {
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        memcpy(out + used, letters->letters[byte], letters->length[byte]);
        used += letters->length[byte];
    }
    return used;
}

static int write_json(const char *directory, const char *name, json_t *json, Error *error) {
    char *text = json_print(json, JSON_INDENT(0) | JSON_COMPACT), *path = path_join(directory, name);
    int status = file_replace(path, text, strlen(text), error);
    free(text);
    free(path);
    return status;
}

int tokenizer_visit_names(const Tokenizer *tokenizer, TokenizerVisit *visit, void *context) {
    Letters letters = make_letters();
    char name[2 * TOKEN_BYTES_MAX + 1];
    uint32_t ranks = tokenizer_end_of_text(tokenizer);
    for (uint32_t id = 0; id < ranks; id++) {
        size_t length;
        const char *bytes = tokenizer_token(tokenizer, id, &length);
        name[write_letters(name, &letters, bytes, length)] = 0; // no letter is 0: byte 0 is U+0100
        if (visit(context, id, name)) return -1;
    }
    return visit(context, ranks, "<|endoftext|>");
}

// Every pair of tokens that makes the token `id`: they all merge into it, in order of the token's rank.
static int visit_pairs(const Tokenizer *tokenizer, const Letters *letters, uint32_t id, TokenizerVisit *visit,
                       void *context) {
    size_t length;
    char pair[2 * TOKEN_BYTES_MAX + 2];
    const char *bytes = tokenizer_token(tokenizer, id, &length);
    for (size_t cut = 1; cut < length; cut++) {
        if (tokenizer_find(tokenizer, bytes, cut) == TOKENIZER_NONE) continue;
        if (tokenizer_find(tokenizer, bytes + cut, length - cut) == TOKENIZER_NONE) continue;
        size_t used = write_letters(pair, letters, bytes, cut);
        pair[used++] = ' ';
        used += write_letters(pair + used, letters, bytes + cut, length - cut);
        pair[used] = 0;
        if (visit(context, id, pair)) return -1;
    }
    return 0;
}

int tokenizer_visit_merges(const Tokenizer *tokenizer, TokenizerVisit *visit, void *context) {
    Letters letters = make_letters();
    for (uint32_t id = 0; id < tokenizer_end_of_text(tokenizer); id++)
        if (visit_pairs(tokenizer, &letters, id, visit, context)) return -1;
    return 0;
}

static int add_name(void *json, uint32_t id, const char *name) {
    json_put(json, name, json_integer(id));
    return 0;
}

static int write_vocabulary(const Tokenizer *tokenizer, const char *directory, Error *error) {
    json_t *json = json_object();
    tokenizer_visit_names(tokenizer, add_name, json);
    int status = write_json(directory, "vocab.json", json, error);
    json_decref(json);
    return status;
}

typedef struct {
    FileWriter writer;
    Error *error;
} MergesFile;

static int write_line(void *context, uint32_t id, const char *line) {
    MergesFile *file = context;
    (void)id;
    return file_write(&file->writer, line, strlen(line), file->error) ||
           file_write(&file->writer, "\n", 1, file->error);
}

static int write_merges(const Tokenizer *tokenizer, const char *directory, Error *error) {
    static const char header[] = "#version: 0.2\n";
    MergesFile file = {.error = error};
    char *path = path_join(directory, "merges.txt");
    int status = file_writer_open(&file.writer, path, 0, error);
    free(path);
    if (status == 0) status = file_write(&file.writer, header, sizeof header - 1, error);
    if (status == 0) status = tokenizer_visit_merges(tokenizer, write_line, &file);
    return status ? -1 : file_writer_commit(&file.writer, error);
}

static int write_config(const char *directory, Error *error) {
    const char *end = "<|endoftext|>";
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:b}", "tokenizer_class", "GPT2Tokenizer", "bos_token", end,
                             "eos_token", end, "unk_token", end, "add_prefix_space", 0);
    int status = write_json(directory, "tokenizer_config.json", json, error);
    json_decref(json);
    return status;
}

int tokenizer_export(const Tokenizer *tokenizer, const char *directory, Error *error) {
    if (directory_create(directory, error)) return -1;
    if (write_vocabulary(tokenizer, directory, error)) return -1;
    if (write_merges(tokenizer, directory, error)) return -1;
    return write_config(directory, error);
}
