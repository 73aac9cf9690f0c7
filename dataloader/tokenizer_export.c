// A vocabulary as files: in tiktoken's format, and as Hugging Face's GPT-2 tokenizer keeps it. There bytes are written
// as printable characters, and the order of merging is a list of pairs instead of the ranks of tokens.
#include "tokenizer.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"

// ---- tiktoken's format

static size_t base64_encode(char *out, const char *text, size_t length) {
    const unsigned char *bytes = (const unsigned char *)text;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *start = out;
    for (size_t i = 0; i < length; i += 3) {
        uint32_t bits = (uint32_t)bytes[i] << 16 | (i + 1 < length ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (i + 2 < length ? bytes[i + 2] : 0);
        *out++ = digits[bits >> 18];
        *out++ = digits[bits >> 12 & 63];
        *out++ = i + 1 < length ? digits[bits >> 6 & 63] : '=';
        *out++ = i + 2 < length ? digits[bits & 63] : '=';
    }
    return (size_t)(out - start);
}

size_t tokenizer_write_line(char *line, const char *token, size_t bytes, int rank) {
    size_t length = base64_encode(line, token, bytes);
    return length + (size_t)snprintf(line + length, 32, " %d\n", rank);
}

static MemoryFile make_ranks(const Tokenizer *tokenizer) {
    int ranks = tokenizer_vocab_size(tokenizer) - 1;
    size_t length, most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        tokenizer_token(tokenizer, (uint32_t)rank, &length);
        most += 2 * length + 16; // base64 is a third longer; the rank, its space and the line end
    }
    MemoryFile file = {.name = "tokenizer.tiktoken", .text = memory_resize(NULL, most, 1, "the vocabulary")};
    for (int rank = 0; rank < ranks; rank++) {
        const char *token = tokenizer_token(tokenizer, (uint32_t)rank, &length);
        file.bytes += tokenizer_write_line(file.text + file.bytes, token, length, rank);
    }
    return file;
}

// ---- GPT-2's form

typedef struct {
    size_t length[256];
    char letters[256][2];
} Letters;

// GPT-2's letter for a byte: itself if it is printable Latin-1, else the next one of U+0100, U+0101, ...; as UTF-8.
static Letters make_letters(void) {
    Letters letters;
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        int printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        uint32_t code = printable ? byte : next++;
        int is_short = code < 128;
        letters.letters[byte][0] = (char)(is_short ? code : 0xC0 | code >> 6);
        letters.letters[byte][1] = (char)(0x80 | (code & 0x3F));
        letters.length[byte] = is_short ? 1 : 2;
    }
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
    return visit(context, ranks, END_OF_TEXT);
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

// ---- Hugging Face's files

static int add_name(void *json, uint32_t id, const char *name) {
    json_put(json, name, json_integer(id));
    return 0;
}

static int add_merge(void *json, uint32_t id, const char *pair) {
    (void)id;
    return json_array_append_new(json, json_string(pair));
}

// What a tour adds to an empty object or list; NULL when there is no memory.
static json_t *collect(json_t *json, const Tokenizer *tokenizer,
                       int (*tour)(const Tokenizer *, TokenizerVisit *, void *), TokenizerVisit *add) {
    if (json && tour(tokenizer, add, json) == 0) return json;
    json_decref(json);
    return NULL;
}

static json_t *make_vocabulary(const Tokenizer *tokenizer) {
    return collect(json_object(), tokenizer, tokenizer_visit_names, add_name);
}

// `begins`: end-of-text goes before every text. Spaces before punctuation stay when ids become text again.
static json_t *make_config(const char *class, int begins) {
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:b, s:b}", "tokenizer_class", class, "bos_token", END_OF_TEXT,
                     "eos_token", END_OF_TEXT, "unk_token", END_OF_TEXT, "add_prefix_space", 0, "add_bos_token", begins,
                     "clean_up_tokenization_spaces", 0);
}

// tokenizer.json but for the tokens and merges; %u is the id of end-of-text.
// clang-format off
#define JSON_TEXT(...) #__VA_ARGS__
static const char tokenizer_frame[] = JSON_TEXT({
    "version": "1.0",
    "truncation": null,
    "padding": null,
    "added_tokens": [{"id": %u, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<|endoftext|>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [%u], "tokens": ["<|endoftext|>"]}}
    },
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false}
});
// clang-format on

static json_t *make_tokenizer(const Tokenizer *tokenizer) {
    char text[sizeof tokenizer_frame + 32];
    unsigned end = tokenizer_end_of_text(tokenizer);
    snprintf(text, sizeof text, tokenizer_frame, end, end);
    json_t *json = json_loads(text, 0, NULL), *model = json_object_get(json, "model");
    if (json_object_set_new(model, "vocab", make_vocabulary(tokenizer)) == 0 &&
        json_object_set_new(model, "merges", collect(json_array(), tokenizer, tokenizer_visit_merges, add_merge)) == 0)
        return json;
    json_decref(json);
    return NULL;
}

// Takes over the reference to `json`, which is NULL when there was no memory for it; so is the text then.
static MemoryFile make_file(const char *name, json_t *json) {
    MemoryFile file = {.name = name, .text = json ? json_dumps(json, JSON_COMPACT) : NULL};
    if (file.text) file.bytes = strlen(file.text);
    json_decref(json);
    return file;
}

int tokenizer_make_files(MemoryFile files[TOKENIZER_FILES], const Tokenizer *tokenizer, Error *error) {
    files[0] = make_ranks(tokenizer);
    files[1] = make_file("tokenizer.json", make_tokenizer(tokenizer));
    files[2] = make_file("tokenizer_config.json", make_config("PreTrainedTokenizerFast", 1));
    if (files[1].text && files[2].text) return 0;
    for (int i = 0; i < TOKENIZER_FILES; i++) free(files[i].text), files[i] = (MemoryFile){0};
    return error_set(error, "not enough memory for the vocabulary's files; close other programs and try again");
}

// Takes over the reference to `json`, which is NULL when there was no memory for it.
static int write_json(const char *directory, const char *name, json_t *json, Error *error) {
    MemoryFile file = make_file(name, json);
    char *path = path_join(directory, name);
    int status = file.text ? file_replace(path, file.text, file.bytes, error)
                           : error_set(error, "%.700s: not enough memory to write it", path);
    free(file.text);
    free(path);
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

int tokenizer_export(const Tokenizer *tokenizer, const char *directory, Error *error) {
    if (directory_create(directory, error)) return -1;
    if (write_json(directory, "vocab.json", make_vocabulary(tokenizer), error)) return -1;
    if (write_merges(tokenizer, directory, error)) return -1;
    return write_json(directory, "tokenizer_config.json", make_config("GPT2Tokenizer", 0), error);
}
