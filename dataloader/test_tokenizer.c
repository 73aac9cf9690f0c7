// Tests of the tokenizer: the splitting rule and the merges against plain twins and against ids from tiktoken (the
// fixtures, made by dev/fixtures/make_tokenizer_fixture.py), bad files, training, the files in checkpoints, reading in
// blocks.
#define _GNU_SOURCE
#include "merge_queue.h"
#include "pieces.h"
#include "text_reader.h"
#include "tokenizer.h"
#include "tokenizer_train.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *fixture_vocabulary = "dev/fixtures/tokenizer_small.tiktoken";
static char directory[] = "/tmp/test_tokenizer_XXXXXX";
static uint64_t draws; // number of the next random number

static uint32_t draw(uint32_t below) {
    return (uint32_t)random_below(random_key(7, "test", 0), draws++, below);
}

static char *temporary(const char *name) {
    return path_join(directory, name);
}

static Tokenizer *load_fixture(void) {
    Error error = {""};
    Tokenizer *tokenizer = NULL;
    int status = tokenizer_load(&tokenizer, fixture_vocabulary, 0, &error);
    if (status) printf("  %s\n", error.text);
    CHECK(status == 0);
    return tokenizer;
}

// ---- the splitting rule

static void test_classes(void) {
    static const struct {
        uint32_t code;
        CharacterClass class;
    } cases[] = {{'a', CLASS_LETTER},    {0xAA, CLASS_LETTER},    {0xDF, CLASS_LETTER},    {0x4E2D, CLASS_LETTER},
                 {0xAC00, CLASS_LETTER}, {0x10D4A, CLASS_LETTER}, {0x323AF, CLASS_LETTER}, {'0', CLASS_NUMBER},
                 {0xBD, CLASS_NUMBER},   {0x669, CLASS_NUMBER},   {0x2167, CLASS_NUMBER},  {0x1D7FF, CLASS_NUMBER},
                 {' ', CLASS_SPACE},     {0x85, CLASS_SPACE},     {0xA0, CLASS_SPACE},     {0x3000, CLASS_SPACE},
                 {0x2028, CLASS_SPACE},  {0x1C, CLASS_OTHER},     {0x200B, CLASS_OTHER},   {0x301, CLASS_OTHER},
                 {0x1F600, CLASS_OTHER}, {0xFFFF, CLASS_OTHER},   {0x10FFFF, CLASS_OTHER}, {0x180E, CLASS_OTHER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) CHECK(code_point_class(cases[i].code) == cases[i].class);
    for (uint32_t byte = 0; byte < 128; byte++) CHECK(byte_class[byte] == code_point_class(byte));
}

static void test_utf8(void) {
    static const struct {
        const char *bytes;
        int length; // 0: not well-formed
    } cases[] = {{"\xC3\xA9", 2},
                 {"\xE2\x82\xAC", 3},
                 {"\xF0\x9F\x99\x82", 4},
                 {"\xF4\x8F\xBF\xBF", 4},
                 {"\xC0\x80", 0},
                 {"\xC1\xBF", 0},
                 {"\xE0\x9F\xBF", 0},
                 {"\xED\xA0\x80", 0},
                 {"\xF0\x8F\xBF\xBF", 0},
                 {"\xF4\x90\x80\x80", 0},
                 {"\xF5\x80\x80\x80", 0},
                 {"\x80", 0},
                 {"\xC3", 0},
                 {"\xE2\x82", 0},
                 {"\xF0\x9F\x99", 0},
                 {"\xC3(", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t code = 0;
        const unsigned char *bytes = (const unsigned char *)cases[i].bytes;
        CHECK(utf8_decode(bytes, strlen(cases[i].bytes), &code) == cases[i].length);
    }
}

// Writes the pieces with bars between them.
static const char *pieces_of(const char *text) {
    static char out[4096];
    size_t bytes = strlen(text), used = 0;
    for (size_t start = 0, end; start < bytes; start = end) {
        end = piece_end((const unsigned char *)text, start, bytes);
        if (used) out[used++] = '|';
        memcpy(out + used, text + start, end - start);
        used += end - start;
    }
    out[used] = 0;
    return out;
}

static void test_pieces(void) {
    static const char *cases[][2] = {
        {"Hello world", "Hello| world"},
        {"it's we'll I've 'S", "it|'s| we|'ll| I|'ve| '|S"},
        {"''s '", "''|s| '"},
        {"'r'l're", "'|r|'|l|'re"},
        {"a  b   c", "a| | b|  | c"},
        {"a\nb\n\nc", "a|\n|b|\n|\n|c"},
        {"a \n", "a| \n"},
        {"x  \n  y", "x|  \n | y"},
        {"in 1987, 12.5", "in| 1987|,| 12|.|5"},
        {" !? .", " !?| ."},
        {"a\xC2\xA0\xC2\xA0"
         "b",
         "a|\xC2\xA0|\xC2\xA0|b"},
        {" \xE3\x80\x80x", " |\xE3\x80\x80|x"},
        {"\xC3\xA9t\xC3\xA9 \xC2\xBD", "\xC3\xA9t\xC3\xA9| \xC2\xBD"},
        {"a\xFF\xFE"
         "b",
         "a|\xFF\xFE|b"},
        {" \xFF\xC3 ", " \xFF\xC3| "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = pieces_of(cases[i][0]);
        if (strcmp(found, cases[i][1])) printf("  \"%s\": found %s\n", cases[i][0], found);
        CHECK(strcmp(found, cases[i][1]) == 0);
    }
}

// A twin that follows the regular expression to the letter, alternative by alternative, with its backtracking.
static size_t twin_run(const unsigned char *text, size_t at, size_t bytes, CharacterClass class, size_t *last) {
    for (size_t length; at < bytes; at += length) {
        if (character_class(text + at, bytes - at, &length) != class) break;
        *last = at;
    }
    return at;
}

static size_t twin_piece_end(const unsigned char *text, size_t start, size_t bytes) {
    static const char *contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    size_t last = start;
    for (int i = 0; i < 7; i++) {
        size_t n = strlen(contractions[i]);
        if (bytes - start >= n && !memcmp(text + start, contractions[i], n)) return start + n;
    }
    static const CharacterClass classes[] = {CLASS_LETTER, CLASS_NUMBER, CLASS_OTHER};
    for (int i = 0; i < 3; i++) { // ` ?X+`: with the space, then without
        size_t with = start + (text[start] == ' ');
        size_t end = twin_run(text, with, bytes, classes[i], &last);
        if (end > with) return end;
        if ((end = twin_run(text, start, bytes, classes[i], &last)) > start) return end;
    }
    size_t end = twin_run(text, start, bytes, CLASS_SPACE, &last);
    if (end == bytes) return end;     // \s+(?!\S) takes all of them at the end of the text
    return last > start ? last : end; // or all but the last one; or else \s+ takes the only one
}

// Random text that is rich in edges: spaces of all kinds, apostrophes, several scripts, broken UTF-8.
static size_t random_text(char *text, size_t most) {
    static const char *parts[] = {" ",        " ",
                                  "  ",       "\n",
                                  "\t",       "\r\n",
                                  "\xC2\xA0", "\xE3\x80\x80",
                                  "'",        "'s",
                                  "'ll",      "a",
                                  "The",      "x",
                                  "re",       "7",
                                  "42",       "\xC2\xBD",
                                  "!",        "...",
                                  "\xC3\xA9", "\xE4\xB8\xAD",
                                  "\xD0\xB6", "\xF0\x9F\x99\x82",
                                  "\xFF",     "\xC3",
                                  "\xE2\x80", "\x80",
                                  "stone",    "<|endoftext|>"};
    size_t used = 0, wanted = draw((uint32_t)most);
    while (used < wanted) {
        const char *part = parts[draw(sizeof parts / sizeof *parts)];
        size_t n = strlen(part);
        if (used + n > most) break;
        memcpy(text + used, part, n);
        used += n;
        if (draw(40) == 0 && used < most) text[used++] = (char)draw(256);
    }
    return used;
}

static void test_pieces_equal_twin(void) {
    unsigned char text[128];
    for (int round = 0; round < 20000; round++) {
        size_t bytes = random_text((char *)text, sizeof text);
        for (size_t at = 0, end; at < bytes; at = end) {
            end = piece_end(text, at, bytes);
            CHECK(end > at && end == twin_piece_end(text, at, bytes));
            if (end <= at) return;
        }
    }
}

// Cutting a text at a safe cut changes no piece: the pieces of the front end there, those of the rest are the same.
static void test_safe_cuts(void) {
    unsigned char text[128];
    int cuts = 0;
    for (int round = 0; round < 20000; round++) {
        size_t bytes = random_text((char *)text, sizeof text);
        if (bytes < 2) continue;
        size_t cut = 1 + draw((uint32_t)bytes - 1);
        if (!is_safe_cut(text, cut)) continue;
        cuts++;
        size_t at = 0;
        for (size_t apart; at < cut; at = apart) {
            apart = piece_end(text, at, cut);
            CHECK(apart == piece_end(text, at, bytes));
        }
        CHECK(at == cut);
    }
    CHECK(cuts > 1000);
}

// ---- merging

// tiktoken's way in the plainest form: parts of the piece; always join the two neighbours whose bytes are the token of
// the lowest rank, the leftmost of equal ones.
static size_t twin_encode_piece(const Tokenizer *tokenizer, const char *piece, size_t bytes, uint32_t *ids) {
    size_t starts[512], parts = bytes, ranks = (size_t)tokenizer_vocab_size(tokenizer) - 1;
    for (size_t i = 0; i <= bytes; i++) starts[i] = i;
    for (;;) {
        size_t best = parts, best_rank = ranks;
        for (size_t i = 0; i < parts; i++) {
            size_t from = starts[i], to = starts[parts == 1 ? i + 1 : i + 2], length;
            if (parts > 1 && i + 1 == parts) break;
            for (size_t rank = 0; rank < best_rank; rank++) {
                const char *token = tokenizer_token(tokenizer, (uint32_t)rank, &length);
                if (length == to - from && !memcmp(token, piece + from, length)) best = i, best_rank = rank;
            }
        }
        if (parts > 1 && best < parts) {
            memmove(&starts[best + 1], &starts[best + 2], (parts - best - 1) * sizeof *starts);
            parts--;
            continue;
        }
        break;
    }
    for (size_t i = 0; i < parts; i++)
        for (uint32_t rank = 0; rank < ranks; rank++) {
            size_t length;
            const char *token = tokenizer_token(tokenizer, rank, &length);
            if (length == starts[i + 1] - starts[i] && !memcmp(token, piece + starts[i], length)) ids[i] = rank;
        }
    return parts;
}

static size_t twin_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, uint32_t *ids) {
    size_t count = 0, length;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = piece_end((const unsigned char *)text, at, bytes);
        uint32_t whole = 0, ranks = tokenizer_end_of_text(tokenizer);
        for (; whole < ranks; whole++) {
            const char *token = tokenizer_token(tokenizer, whole, &length);
            if (length == end - at && !memcmp(token, text + at, length)) break;
        }
        if (whole < ranks)
            ids[count++] = whole;
        else
            count += twin_encode_piece(tokenizer, text + at, end - at, ids + count);
    }
    return count;
}

static void append_base64(char **file, size_t *used, const unsigned char *bytes, size_t length, int rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    *file = memory_resize(*file, *used + 2 * length + 64, 1, "a vocabulary");
    for (size_t i = 0; i < length; i += 3) {
        unsigned char group[3] = {bytes[i], i + 1 < length ? bytes[i + 1] : 0, i + 2 < length ? bytes[i + 2] : 0};
        uint32_t bits = (uint32_t)group[0] << 16 | (uint32_t)group[1] << 8 | group[2];
        for (int k = 0; k < 4; k++)
            (*file)[(*used)++] = i + (size_t)k > length ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
    *used += (size_t)sprintf(*file + *used, " %d\n", rank);
}

// A vocabulary that no training would give: random strings over three letters, in random order. Tokens that cannot be
// reached, that have several splits, that are shorter and come later.
static Tokenizer *random_vocabulary(int extra) {
    char *file = NULL;
    size_t used = 0;
    int rank = 0;
    unsigned char seen[1 << 16] = {0};
    for (int byte = 0; byte < 256; byte++)
        append_base64(&file, &used, &(unsigned char){(unsigned char)byte}, 1, rank++);
    while (extra > 0) {
        unsigned char token[8];
        uint32_t length = 2 + draw(5), code = 0;
        for (uint32_t i = 0; i < length; i++)
            token[i] = (unsigned char)("abc"[draw(3)]), code = code * 4 + token[i] - 'a' + 1;
        if (seen[code % (1 << 16)]++) continue;
        append_base64(&file, &used, token, length, rank++);
        extra--;
    }
    Error error;
    Tokenizer *tokenizer = NULL;
    char *path = temporary("random.tiktoken");
    CHECK(file_replace(path, file, used, &error) == 0);
    CHECK(tokenizer_load(&tokenizer, path, 0, &error) == 0);
    free(path);
    free(file);
    return tokenizer;
}

static void check_equal_twin(const Tokenizer *tokenizer, TokenizerEncoder *encoder, const char *text, size_t bytes) {
    static uint32_t *plain, *cached;
    static size_t plain_capacity, cached_capacity;
    uint32_t expected[512];
    size_t count = twin_encode(tokenizer, text, bytes, expected);
    CHECK(tokenizer_encode(tokenizer, text, bytes, &plain, &plain_capacity) == count);
    CHECK(memcmp(plain, expected, count * sizeof *expected) == 0);
    for (int again = 0; again < 2; again++) { // the second time from the cache
        CHECK(tokenizer_encoder_append(encoder, text, bytes, &cached, 0, &cached_capacity) == count);
        CHECK(memcmp(cached, expected, count * sizeof *expected) == 0);
    }
}

static void test_merges_equal_twin(void) {
    for (int round = 0; round < 6; round++) {
        Tokenizer *tokenizer = random_vocabulary(20 + 25 * round);
        if (!tokenizer) return;
        TokenizerEncoder *encoder = tokenizer_encoder_create(tokenizer);
        for (int i = 0; i < 60; i++) {
            char text[300];
            size_t bytes = i % 3 == 0 ? 100 + draw(200) : 1 + draw(60);
            int letters = 1 + (int)draw(3);
            for (size_t k = 0; k < bytes; k++) text[k] = "abc"[draw((uint32_t)letters)];
            check_equal_twin(tokenizer, encoder, text, bytes);
        }
        tokenizer_encoder_free(encoder);
        tokenizer_free(tokenizer);
    }
}

static void test_text_equals_twin(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    TokenizerEncoder *encoder = tokenizer_encoder_create(tokenizer);
    for (int i = 0; i < 200; i++) {
        char text[200];
        size_t bytes = random_text(text, sizeof text);
        check_equal_twin(tokenizer, encoder, text, bytes);
    }
    static const char zeros[] = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (size_t bytes = 1; bytes < sizeof zeros; bytes++) check_equal_twin(tokenizer, encoder, zeros, bytes);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}

static void test_merge_queue(void) {
    MergeQueue *queue = merge_queue_create(MERGE_RANKS);
    uint32_t rank, position;
    uint64_t waiting[600];
    for (int round = 0; round < 30; round++) { // pushes and pops mixed, against a plain list
        int count = 0;
        for (int step = 0; step < 600; step++) {
            if (draw(3) && step < 500) {
                rank = draw(4) ? draw(5) * 9000 : draw(65535), position = draw(1000);
                merge_queue_push(queue, rank, position);
                waiting[count++] = (uint64_t)rank << 32 | position;
            } else if (merge_queue_pop(queue, &rank, &position)) {
                int best = 0;
                for (int i = 1; i < count; i++)
                    if (waiting[i] < waiting[best]) best = i;
                CHECK(count > 0 && waiting[best] == ((uint64_t)rank << 32 | position));
                waiting[best] = waiting[--count];
            } else {
                CHECK(count == 0);
            }
        }
        while (merge_queue_pop(queue, &rank, &position)) count--;
        CHECK(count == 0);
    }
    merge_queue_free(queue);
}

// ---- tiktoken's own ids

static size_t decode_base64(char *out, const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = 0;
    uint32_t bits = 0, have = 0;
    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *text) - digits);
        have += 6;
        if (have >= 8) out[bytes++] = (char)(bits >> (have -= 8) & 255);
    }
    return bytes;
}

static void test_ids_equal_tiktoken(void) {
    Tokenizer *tokenizer = load_fixture();
    Error error = {""};
    char *file = NULL, *next_line = NULL, text[16384];
    size_t size, capacity = 0;
    uint32_t *ids = NULL;
    int strings = 0, wrong = 0;
    CHECK(file_read(&file, &size, "dev/fixtures/tokenizer_strings.txt", 1 << 24, &error) == 0);
    for (char *line = file ? strtok_r(file, "\n", &next_line) : NULL; line && tokenizer;
         line = strtok_r(NULL, "\n", &next_line)) {
        char *tab = strchr(line, '\t');
        *tab = 0;
        size_t bytes = decode_base64(text, line), count = tokenizer_encode(tokenizer, text, bytes, &ids, &capacity);
        int same = 1;
        char *at = tab + 1;
        for (size_t i = 0; i < count; i++) same &= strtoul(at, &at, 10) == ids[i];
        wrong += !same || *at != 0;
        strings++;
    }
    CHECK(strings > 500);
    CHECK(wrong == 0);
    free(ids);
    free(file);
    tokenizer_free(tokenizer);
}

// ---- any bytes

static void check_round_trip(const Tokenizer *tokenizer, const char *text, size_t bytes) {
    uint32_t *ids = NULL;
    size_t capacity = 0, at = 0, length, count = tokenizer_encode(tokenizer, text, bytes, &ids, &capacity);
    for (size_t i = 0; i < count; i++) {
        const char *token = tokenizer_token(tokenizer, ids[i], &length);
        CHECK(length > 0 && at + length <= bytes && memcmp(text + at, token, length) == 0);
        at += length;
    }
    CHECK(at == bytes);
    free(ids);
}

static void test_round_trip(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    char text[4096];
    check_round_trip(tokenizer, "", 0);
    for (int byte = 0; byte < 256; byte++) check_round_trip(tokenizer, &(char){(char)byte}, 1);
    for (int round = 0; round < 300; round++) {
        size_t bytes = 1 + draw(sizeof text - 1);
        for (size_t i = 0; i < bytes; i++) text[i] = (char)draw(256);
        check_round_trip(tokenizer, text, bytes);
        bytes = random_text(text, sizeof text);
        check_round_trip(tokenizer, text, bytes);
    }
    tokenizer_free(tokenizer);
}

// A rule that looks at all pairs again after each merge would take hours here.
static void test_long_runs(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    size_t bytes = 10 << 20;
    char *text = memory_allocate(bytes, 1, "a long run");
    clock_t start = clock(); // of this process: a busy machine changes nothing
    static const char *runs[] = {"a", "ab", " ", "\n", "\xFF"};
    for (int run = 0; run < 5; run++) {
        size_t period = strlen(runs[run]), used = run == 0 ? bytes : bytes / 8;
        for (size_t i = 0; i < used; i++) text[i] = runs[run][i % period];
        check_round_trip(tokenizer, text, used);
    }
    CHECK(clock() - start < 30 * CLOCKS_PER_SEC);
    free(text);
    tokenizer_free(tokenizer);
}

static void test_threads_share_a_tokenizer(void) {
    Tokenizer *tokenizer = load_fixture();
    char text[3000];
    size_t bytes = 0, expected_capacity = 0;
    uint32_t *expected = NULL;
    if (!tokenizer) return;
    while (bytes < 2000) bytes += random_text(text + bytes, sizeof text - bytes);
    size_t count = tokenizer_encode(tokenizer, text, bytes, &expected, &expected_capacity);
    int wrong = 0;
#pragma omp parallel for num_threads(4) reduction(+ : wrong)
    for (int i = 0; i < 64; i++) {
        uint32_t *ids = NULL;
        size_t capacity = 0, found = tokenizer_encode(tokenizer, text, bytes, &ids, &capacity);
        wrong += found != count || memcmp(ids, expected, count * sizeof *ids) != 0;
        free(ids);
    }
    CHECK(wrong == 0);
    free(expected);
    tokenizer_free(tokenizer);
}

// ---- files

// Loads a file of the given content; it must fail with a message that names the file and has the two parts.
static void check_refused(const char *content, size_t size, int vocab, const char *part, const char *other_part) {
    Error error = {""};
    Tokenizer *tokenizer = NULL;
    char *path = temporary("bad.tiktoken");
    CHECK(file_replace(path, content, size, &error) == 0);
    CHECK(tokenizer_load(&tokenizer, path, vocab, &error) == -1);
    CHECK(tokenizer == NULL);
    CHECK_CONTAINS(error.text, "bad.tiktoken");
    CHECK_CONTAINS(error.text, part);
    CHECK_CONTAINS(error.text, other_part);
    CHECK(strchr(error.text, '\n') == NULL);
    free(path);
}

// The fixture with its last line replaced.
static void check_last_line_refused(const char *line, const char *part, const char *other_part) {
    Error error;
    char *file, *copy;
    size_t size;
    CHECK(file_read(&file, &size, fixture_vocabulary, 1 << 20, &error) == 0);
    char *last = memrchr(file, '\n', size - 1);
    size_t kept = (size_t)(last + 1 - file), length = strlen(line);
    copy = memory_resize(NULL, kept + length + 1, 1, "a vocabulary");
    memcpy(copy, file, kept);
    memcpy(copy + kept, line, length + 1);
    check_refused(copy, kept + length, 0, part, other_part);
    free(copy);
    free(file);
}

static void test_bad_files(void) {
    Error error = {""};
    Tokenizer *tokenizer = NULL;
    char *file, *long_token = memory_allocate_zeroed(4096, 1, "a line");
    size_t size;
    CHECK(file_read(&file, &size, fixture_vocabulary, 1 << 20, &error) == 0);
    check_refused("", 0, 0, "empty", "expected");
    check_refused(file, 200, 0, "truncated", "expected a base64 token");     // in the middle of a line
    check_refused(file, 7 * 10, 0, "single byte 10", "must be a token");     // between two lines: 10 are left
    check_refused(file, size - 4, 0, "truncated", ":699:");                  // the rank is gone
    check_refused(file, size - 2, 0, "already given", "rank 69");            // a digit of the rank is gone
    check_refused("<html>\n<body>\n", 14, 0, "truncated", "not a tiktoken"); // not a vocabulary at all
    check_last_line_refused("a%b= 698\n", "base64", ":699:");
    check_last_line_refused("abc 698\n", "base64", ":699:");
    check_last_line_refused("YWJjZGVm 697\n", "already given", "rank 697");
    check_last_line_refused("YWJjZGVm 699\n", "without gaps", "\"699\"");
    check_last_line_refused("YWJjZGVm 99999999999999999999\n", "without gaps", "0 to 698");
    check_last_line_refused("YWJjZGVm -1\n", "without gaps", "\"-1\"");
    check_last_line_refused("YWJjZGVm 69x\n", "without gaps", "\"69x\"");
    check_last_line_refused(" 698\n", "0 bytes", ":699:");
    check_last_line_refused("YQ== 698\n", "same token", "97");
    check_last_line_refused("YWJjZGVm 698\n\n", "expected a base64 token", ":700:");
    memset(long_token, 'A', 1400);
    memcpy(long_token + 1400, " 698\n", 6);
    check_last_line_refused(long_token, "1050 bytes", "1 to 1024");
    check_refused(file, size, 701, "701", "699 ranks");
    check_refused(file, size, 256, "256", "257");
    check_refused(file, size, -5, "expected 257", "65536");
    char *without = memory_copy_string(file), *line = strstr(without, "YQ== 97\n");
    memcpy(line, "fn5+", 4); // "~~~" instead of "a"
    check_refused(without, size, 300, "single byte 97", "must be a token");
    CHECK(tokenizer_load(&tokenizer, "/nonexistent/x.tiktoken", 0, &error) == -1);
    CHECK_CONTAINS(error.text, "/nonexistent/x.tiktoken");
    CHECK(tokenizer_load(&tokenizer, "/tmp", 0, &error) == -1);
    CHECK_CONTAINS(error.text, "directory");
    free(without);
    free(long_token);
    free(file);
}

static void test_too_many_ranks(void) {
    char *file = NULL;
    size_t used = 0;
    Error error;
    Tokenizer *tokenizer = NULL;
    for (int rank = 0; rank < 65536; rank++) {
        unsigned char token[3] = {(unsigned char)rank, (unsigned char)(rank >> 8), 'x'};
        append_base64(&file, &used, token, rank < 256 ? 1 : 3, rank);
    }
    check_refused(file, used, 0, "65537", "--vocab 65536");
    char *path = temporary("bad.tiktoken");
    CHECK(tokenizer_load(&tokenizer, path, 65536, &error) == 0); // the most there can be
    if (tokenizer) CHECK(tokenizer_end_of_text(tokenizer) == 65535);
    tokenizer_free(tokenizer);
    free(path);
    free(file);
}

// Windows line ends and another order of the lines mean the same vocabulary, as they do to tiktoken.
static void test_line_ends_and_order(void) {
    Error error;
    Tokenizer *plain = load_fixture(), *other = NULL;
    char *file, *path = temporary("crlf.tiktoken"), *text;
    size_t size, used = 0;
    CHECK(file_read(&file, &size, fixture_vocabulary, 1 << 20, &error) == 0);
    text = memory_resize(NULL, 2 * size, 1, "a vocabulary");
    char *second = strchr(file, '\n') + 1;
    for (char *at = second; at < file + size; at++) {
        if (*at == '\n') text[used++] = '\r';
        text[used++] = *at;
    }
    memcpy(text + used, file, (size_t)(second - file)); // the first line last
    used += (size_t)(second - file);
    CHECK(file_replace(path, text, used, &error) == 0);
    CHECK(tokenizer_load(&other, path, 0, &error) == 0);
    if (plain && other) CHECK(tokenizer_checksum(plain, 699) == tokenizer_checksum(other, 699));
    tokenizer_free(plain);
    tokenizer_free(other);
    free(text);
    free(path);
    free(file);
}

static void test_first_ranks(void) {
    Error error;
    Tokenizer *all = load_fixture(), *some = NULL;
    CHECK(tokenizer_load(&some, fixture_vocabulary, 400, &error) == 0);
    if (!all || !some) return;
    CHECK(tokenizer_vocab_size(all) == 700 && tokenizer_end_of_text(all) == 699);
    CHECK(tokenizer_vocab_size(some) == 400 && tokenizer_end_of_text(some) == 399);
    CHECK(tokenizer_checksum(all, 399) == tokenizer_checksum(some, 399));
    CHECK(tokenizer_checksum(all, 398) != tokenizer_checksum(some, 399));
    size_t bytes = 1;
    tokenizer_token(some, 399, &bytes);
    CHECK(bytes == 0);
    uint32_t *ids = NULL;
    size_t capacity = 0, count = tokenizer_encode(some, "The river was low", 17, &ids, &capacity);
    for (size_t i = 0; i < count; i++) CHECK(ids[i] < 399);
    check_round_trip(some, "The river was low", 17);
    free(ids);
    tokenizer_free(all);
    tokenizer_free(some);
}

// ---- training

static int train_to(const char *path, const char *text, size_t bytes, int vocab, Error *error) {
    PieceCounts *counts = piece_counts_create();
    piece_counts_add(counts, text, bytes);
    int status = tokenizer_train(counts, vocab, path, error);
    piece_counts_free(counts);
    return status;
}

static int same_files(const char *a, const char *b) {
    Error error;
    char *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    int same = file_read(&x, &n, a, 1 << 24, &error) == 0 && file_read(&y, &m, b, 1 << 24, &error) == 0 && n == m &&
               memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

// The fixture was trained by a plain program in Python.
static void test_train_equals_reference(void) {
    Error error = {""};
    char *text, *path = temporary("trained.tiktoken");
    size_t size;
    CHECK(file_read(&text, &size, "dev/fixtures/tokenizer_text.txt", 1 << 20, &error) == 0);
    CHECK(train_to(path, text, size, 700, &error) == 0);
    CHECK(same_files(path, fixture_vocabulary));
    free(text);
    free(path);
}

typedef struct { // training in the plainest way: count all pairs, join the best one everywhere, begin again
    int *symbols, *starts_piece, count;
    char tokens[300][400];
    int ranks, pairs; // different ones, at the last count
} TwinTraining;

static void twin_join(TwinTraining *twin, int left, int right, int merged) {
    int kept = 0;
    for (int i = 0; i < twin->count; i++, kept++) {
        int joins = i + 1 < twin->count && !twin->starts_piece[i + 1] && twin->symbols[i] == left &&
                    twin->symbols[i + 1] == right;
        twin->starts_piece[kept] = twin->starts_piece[i];
        twin->symbols[kept] = joins ? merged : twin->symbols[i];
        i += joins;
    }
    twin->count = kept;
}

static int twin_step(TwinTraining *twin) {
    static int counts[300][300];
    int left = -1, right = -1;
    memset(counts, 0, sizeof counts);
    for (int i = 0; i + 1 < twin->count; i++)
        if (!twin->starts_piece[i + 1]) counts[twin->symbols[i]][twin->symbols[i + 1]]++;
    twin->pairs = 0;
    for (int a = 0; a < twin->ranks; a++)
        for (int b = 0; b < twin->ranks; b++) {
            twin->pairs += counts[a][b] > 0;
            if (counts[a][b] > (left < 0 ? 0 : counts[left][right])) left = a, right = b;
        }
    if (left < 0) return -1;
    size_t left_length = strlen(twin->tokens[left]), right_length = strlen(twin->tokens[right]);
    memcpy(twin->tokens[twin->ranks], twin->tokens[left], left_length); // both together are shorter than the text
    memcpy(twin->tokens[twin->ranks] + left_length, twin->tokens[right], right_length);
    twin_join(twin, left, right, twin->ranks++);
    return 0;
}

static void twin_start(TwinTraining *twin, const char *text, int bytes) {
    memset(twin, 0, sizeof *twin);
    twin->symbols = memory_allocate((size_t)bytes, sizeof(int), "symbols");
    twin->starts_piece = memory_allocate_zeroed((size_t)bytes, sizeof(int), "symbols");
    for (twin->ranks = 0; twin->ranks < 256; twin->ranks++) twin->tokens[twin->ranks][0] = (char)twin->ranks;
    for (int i = 0; i < bytes; i++) twin->symbols[i] = (unsigned char)text[i];
    for (size_t at = 0; at < (size_t)bytes; at = piece_end((const unsigned char *)text, at, (size_t)bytes))
        twin->starts_piece[at] = 1;
    twin->count = bytes;
}

// Trains both to `ranks` tokens, or as many as there are, and compares them.
static void compare_with_twin(TwinTraining *twin, const char *text, int bytes, int ranks) {
    Error error = {""};
    Tokenizer *tokenizer = NULL;
    char *path = temporary("twin.tiktoken");
    twin_start(twin, text, bytes);
    while (twin->ranks < ranks && twin_step(twin) == 0) {}
    CHECK(train_to(path, text, (size_t)bytes, twin->ranks + 1, &error) == 0);
    CHECK(tokenizer_load(&tokenizer, path, 0, &error) == 0);
    for (int rank = 0; rank < twin->ranks && tokenizer; rank++) {
        size_t length;
        const char *token = tokenizer_token(tokenizer, (uint32_t)rank, &length);
        size_t expected = rank ? strlen(twin->tokens[rank]) : 1;
        CHECK(length == expected && memcmp(token, twin->tokens[rank], length) == 0);
    }
    tokenizer_free(tokenizer);
    free(twin->symbols), free(twin->starts_piece), free(path);
}

static void test_train_equals_twin(void) {
    static TwinTraining twin;
    char text[400];
    for (int round = 0; round < 400; round++) {
        int bytes = 40 + (int)draw(360), letters = 2 + (int)draw(3);
        for (int i = 0; i < bytes; i++) text[i] = draw(60) ? "abcd"[draw((uint32_t)letters)] : ' ';
        compare_with_twin(&twin, text, bytes, 280);
    }
}

// More pieces and pairs than the tables begin with room for: 8192 and 32768. Bytes that are no letters, digits or
// spaces stay together in a piece, whatever follows what.
static void test_train_with_many_pieces_and_pairs(void) {
    enum { BYTES = 500000, PIECES = 8192, PAIRS = 32768 };
    static TwinTraining twin;
    char *text = memory_allocate(BYTES, 1, "a text");
    PieceCounts *counts = piece_counts_create();
    for (int i = 0; i < BYTES; i++) {
        do text[i] = (char)(1 + draw(255));
        while (isspace((unsigned char)text[i]) || isdigit((unsigned char)text[i]));
        if (draw(20) == 0) text[i] = ' ';
    }
    piece_counts_add(counts, text, BYTES);
    CHECK(piece_counts_different(counts) > 2 * PIECES);
    compare_with_twin(&twin, text, BYTES, 275);
    CHECK(twin.pairs > PAIRS);
    piece_counts_free(counts);
    free(text);
}

// Each different piece once, however often it comes and from however many texts.
static void test_different_pieces(void) {
    static const char text[] = "one one two one", more[] = "one, three";
    PieceCounts *counts = piece_counts_create(), *others = piece_counts_create();
    for (int i = 0; i < 3; i++) {
        piece_counts_add(counts, text, strlen(text)); // "one", " one", " two"
        CHECK(piece_counts_different(counts) == 3);
    }
    piece_counts_add(others, more, strlen(more)); // "one", ",", " three"
    CHECK(piece_counts_different(others) == 3);
    piece_counts_merge(counts, others);
    CHECK(piece_counts_different(counts) == 5);
    piece_counts_free(counts);
    piece_counts_free(others);
}

static void test_train_in_parts(void) {
    Error error;
    char text[20000], *whole = temporary("whole.tiktoken"), *parts = temporary("parts.tiktoken");
    size_t bytes = 0, cut = 0;
    while (bytes < 15000) bytes += random_text(text + bytes, sizeof text - bytes);
    for (cut = bytes / 2; !is_safe_cut((unsigned char *)text, cut);) cut++;
    CHECK(train_to(whole, text, bytes, 300, &error) == 0);
    PieceCounts *first = piece_counts_create(), *second = piece_counts_create();
    piece_counts_add(first, text, cut);
    piece_counts_add(second, text + cut, bytes - cut);
    piece_counts_merge(second, first); // the other way round: the order does not matter
    CHECK(tokenizer_train(second, 300, parts, &error) == 0);
    CHECK(same_files(whole, parts));
    piece_counts_free(first);
    piece_counts_free(second);
    free(whole);
    free(parts);
}

static void test_train_limits(void) {
    Error error = {""};
    char *path = temporary("limits.tiktoken");
    CHECK(train_to(path, "abab", 4, 1 << 17, &error) == -1);
    CHECK_CONTAINS(error.text, "65536");
    CHECK(train_to(path, "abab", 4, 256, &error) == -1);
    CHECK_CONTAINS(error.text, "257");
    CHECK(train_to(path, "abab", 4, 300, &error) == -1); // "ab", "abab", and no more
    CHECK_CONTAINS(error.text, "vocabulary of 259");
    CHECK(!file_exists(path));
    CHECK(train_to(path, "abab", 4, 259, &error) == 0);
    CHECK(train_to(path, "", 0, 257, &error) == 0); // the bytes alone
    size_t bytes = 100000; // tokens double in length until they would be too long to be read back
    char *run = memory_allocate(bytes, 1, "a run");
    memset(run, 'a', bytes);
    CHECK(train_to(path, run, bytes, 267, &error) == 0);
    Tokenizer *tokenizer = NULL;
    CHECK(tokenizer_load(&tokenizer, path, 0, &error) == 0);
    size_t length = 0;
    if (tokenizer) tokenizer_token(tokenizer, 265, &length);
    CHECK(length == 1024);
    tokenizer_free(tokenizer);
    free(run);
    free(path);
}

// ---- a checkpoint's files

// The ranks come back as they were, also when they are the first of a larger vocabulary.
static void test_files_hold_the_ranks(void) {
    static const int sizes[] = {0, 300};
    char *path = temporary("saved.tiktoken");
    for (int i = 0; i < 2; i++) {
        Tokenizer *tokenizer = NULL, *again = NULL;
        MemoryFile files[TOKENIZER_FILES] = {0};
        Error error = {""};
        CHECK(tokenizer_load(&tokenizer, fixture_vocabulary, sizes[i], &error) == 0);
        CHECK(tokenizer_make_files(files, tokenizer, &error) == 0);
        CHECK(strcmp(files[0].name, "tokenizer.tiktoken") == 0);
        CHECK(file_replace(path, files[0].text, files[0].bytes, &error) == 0);
        CHECK(sizes[i] || same_files(path, fixture_vocabulary));
        CHECK(tokenizer_load(&again, path, 0, &error) == 0);
        int ranks = tokenizer_vocab_size(tokenizer) - 1;
        CHECK(again && tokenizer_vocab_size(again) - 1 == ranks);
        CHECK(again && tokenizer_checksum(again, ranks) == tokenizer_checksum(tokenizer, ranks));
        for (int k = 0; k < TOKENIZER_FILES; k++) free(files[k].text);
        tokenizer_free(tokenizer);
        tokenizer_free(again);
    }
    free(path);
}

typedef struct {
    const json_t *vocabulary, *merges;
    size_t count;
    int differ;
} Expected;

static int compare_name(void *context, uint32_t id, const char *name) {
    Expected *expected = context;
    expected->differ |= json_integer_value(json_object_get(expected->vocabulary, name)) != id;
    expected->count++;
    return 0;
}

static int compare_merge(void *context, uint32_t id, const char *pair) {
    Expected *expected = context;
    const char *found = json_string_value(json_array_get(expected->merges, expected->count++));
    (void)id;
    expected->differ |= !found || strcmp(found, pair) != 0;
    return 0;
}

static json_t *parse(const MemoryFile *file, const char *name) {
    CHECK(strcmp(file->name, name) == 0 && strlen(file->text) == file->bytes);
    json_t *json = json_loadb(file->text, file->bytes, JSON_REJECT_DUPLICATES, NULL);
    CHECK(json != NULL);
    return json;
}

// What AutoTokenizer reads: every token and merge, and end-of-text before each text.
static void test_files_for_hugging_face(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    MemoryFile files[TOKENIZER_FILES] = {0};
    Error error = {""};
    CHECK(tokenizer_make_files(files, tokenizer, &error) == 0);
    json_t *json = parse(&files[1], "tokenizer.json"), *config = parse(&files[2], "tokenizer_config.json");
    const json_t *model = json_object_get(json, "model");
    Expected expected = {json_object_get(model, "vocab"), json_object_get(model, "merges"), 0, 0};
    CHECK(tokenizer_visit_names(tokenizer, compare_name, &expected) == 0);
    CHECK(!expected.differ && expected.count == json_object_size(expected.vocabulary));
    expected.count = 0;
    CHECK(tokenizer_visit_merges(tokenizer, compare_merge, &expected) == 0);
    CHECK(!expected.differ && expected.count == json_array_size(expected.merges) && expected.count > 100);
    json_int_t added = -1, first = -1, end = tokenizer_end_of_text(tokenizer);
    const char *content = "", *before = "", *sequence = "", *bos = "";
    int adds = 0, special = 0;
    CHECK(json_unpack(json, "{s:[{s:I, s:s, s:b}]}", "added_tokens", "id", &added, "content", &content, "special",
                      &special) == 0);
    CHECK(json_unpack(json, "{s:{s:[{s:{s:s}}, {s:{s:s}}], s:{s:{s:[I]}}}}", "post_processor", "single", "SpecialToken",
                      "id", &before, "Sequence", "id", &sequence, "special_tokens", "<|endoftext|>", "ids",
                      &first) == 0);
    CHECK(json_unpack(config, "{s:s, s:b}", "bos_token", &bos, "add_bos_token", &adds) == 0);
    CHECK(added == end && first == end && special && adds);
    CHECK(!strcmp(content, "<|endoftext|>") && !strcmp(before, content) && !strcmp(bos, content));
    CHECK(!strcmp(sequence, "A"));
    json_decref(json);
    json_decref(config);
    for (int i = 0; i < TOKENIZER_FILES; i++) free(files[i].text);
    tokenizer_free(tokenizer);
}

// ---- reading in blocks

// Encodes a file block by block with a small buffer: ids, and UINT32_MAX before each document.
static size_t encode_in_blocks(TokenizerEncoder *encoder, const char *path, size_t buffer, uint32_t *ids, size_t most) {
    TextReader reader;
    Error error;
    uint32_t *tokens = NULL;
    size_t capacity = 0, used = 0;
    const char *paths[] = {path, NULL};
    CHECK(text_reader_open(&reader, paths, 0, &error) == 0);
    reader.capacity = buffer;
    while (text_reader_next(&reader, &error) > 0)
        for (size_t i = 0; i < reader.block_count; i++) {
            size_t n =
                tokenizer_encoder_append(encoder, reader.blocks[i].text, reader.blocks[i].bytes, &tokens, 0, &capacity);
            if (used + n + 1 > most) break;
            if (reader.blocks[i].starts_document) ids[used++] = UINT32_MAX;
            memcpy(ids + used, tokens, n * sizeof *ids);
            used += n;
        }
    text_reader_close(&reader);
    free(tokens);
    return used;
}

static void test_buffer_size_changes_nothing(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    TokenizerEncoder *encoder = tokenizer_encoder_create(tokenizer);
    char *path = temporary("blocks.txt"), text[3000];
    enum { MOST = 8192 };
    static uint32_t whole[MOST], parts[MOST];
    Error error;
    for (int round = 0; round < 60; round++) {
        size_t bytes = 0;
        while (bytes < 2500) {
            bytes += random_text(text + bytes, 200);
            static const char *separators[] = {"\n<|endoftext|>\n", "\n<|endoftext|>", "<|endoftext|>\n",
                                               "\n<|endoftext|>\r\n"};
            const char *separator = separators[draw(4)];
            memcpy(text + bytes, separator, strlen(separator));
            bytes += strlen(separator);
        }
        CHECK(file_replace(path, text, bytes, &error) == 0);
        size_t expected = encode_in_blocks(encoder, path, 1 << 20, whole, MOST);
        for (int k = 0; k < 8; k++) {
            size_t buffer = 20 + draw(300), found = encode_in_blocks(encoder, path, buffer, parts, MOST);
            CHECK(found == expected && memcmp(whole, parts, expected * sizeof *whole) == 0);
        }
    }
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
    free(path);
}

// A document of several blocks has the ids of the whole text.
static void test_blocks_equal_whole(void) {
    Tokenizer *tokenizer = load_fixture();
    if (!tokenizer) return;
    enum { BYTES = 1 << 20 };
    char *path = temporary("large.txt"), *text = memory_allocate(BYTES, 1, "a text");
    uint32_t *blocks = memory_allocate(2 * BYTES, sizeof *blocks, "ids"), *whole = NULL;
    size_t bytes = 0, capacity = 0;
    Error error;
    for (; bytes < BYTES; bytes++) text[bytes] = draw(30) ? "aeinst"[draw(6)] : ' '; // long words: few places to cut
    CHECK(file_replace(path, text, bytes, &error) == 0);
    TokenizerEncoder *encoder = tokenizer_encoder_create(tokenizer);
    size_t found = encode_in_blocks(encoder, path, 1 << 19, blocks, 2 * BYTES);
    size_t expected = tokenizer_encode(tokenizer, text, bytes, &whole, &capacity);
    CHECK(found == expected + 1 && memcmp(blocks + 1, whole, expected * sizeof *whole) == 0);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
    free(whole);
    free(blocks);
    free(text);
    free(path);
}

// The documents of a text, with bars between them.
static const char *documents_of(const char *text, int null_separated, size_t bytes) {
    static char out[1024];
    char *path = temporary("documents.txt");
    const char *paths[] = {path, NULL};
    size_t used = 0;
    TextReader reader;
    Error error;
    CHECK(file_replace(path, text, bytes, &error) == 0);
    CHECK(text_reader_open(&reader, paths, null_separated, &error) == 0);
    while (text_reader_next(&reader, &error) > 0)
        for (size_t i = 0; i < reader.block_count; i++) {
            if (reader.blocks[i].starts_document && reader.blocks[i].document) out[used++] = '|';
            memcpy(out + used, reader.blocks[i].text, reader.blocks[i].bytes);
            used += reader.blocks[i].bytes;
        }
    out[used] = 0;
    text_reader_close(&reader);
    free(path);
    return out;
}

static void test_documents(void) {
    static const char *cases[][2] = {
        {"one", "one"},
        {"one\n<|endoftext|>\ntwo\n", "one|two\n"},
        {"one\n\n<|endoftext|>\n\ntwo", "one\n|\ntwo"},
        {"<|endoftext|>\none\n<|endoftext|>\n", "one"},
        {"<|endoftext|>\n<|endoftext|>\n\n<|endoftext|>\none", "one"},
        {"one\n<|endoftext|>", "one"},
        {"one\r\n<|endoftext|>\r\ntwo", "one\r|two"},
        {"one<|endoftext|>\ntwo", "one<|endoftext|>\ntwo"},
        {"one\n<|endoftext|> \ntwo", "one\n<|endoftext|> \ntwo"},
        {"one\n <|endoftext|>\ntwo", "one\n <|endoftext|>\ntwo"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = documents_of(cases[i][0], 0, strlen(cases[i][0]));
        if (strcmp(found, cases[i][1])) printf("  \"%s\": found \"%s\"\n", cases[i][0], found);
        CHECK(strcmp(found, cases[i][1]) == 0);
    }
    CHECK(strcmp(documents_of("a\0\0b\n<|endoftext|>\n\0", 1, 19), "a||b\n<|endoftext|>\n") == 0);
    CHECK(strcmp(documents_of("a\0b", 1, 3), "a|b") == 0);
}

int main(void) {
    if (!mkdtemp(directory)) return 1;
    RUN(test_classes);
    RUN(test_utf8);
    RUN(test_pieces);
    RUN(test_pieces_equal_twin);
    RUN(test_safe_cuts);
    RUN(test_merge_queue);
    RUN(test_merges_equal_twin);
    RUN(test_text_equals_twin);
    RUN(test_ids_equal_tiktoken);
    RUN(test_round_trip);
    RUN(test_long_runs);
    RUN(test_threads_share_a_tokenizer);
    RUN(test_bad_files);
    RUN(test_too_many_ranks);
    RUN(test_line_ends_and_order);
    RUN(test_first_ranks);
    RUN(test_train_equals_reference);
    RUN(test_train_equals_twin);
    RUN(test_train_with_many_pieces_and_pairs);
    RUN(test_different_pieces);
    RUN(test_train_in_parts);
    RUN(test_train_limits);
    RUN(test_files_hold_the_ranks);
    RUN(test_files_for_hugging_face);
    RUN(test_documents);
    RUN(test_buffer_size_changes_nothing);
    RUN(test_blocks_equal_whole);
    Error error;
    directory_remove(directory, &error);
    return test_summary();
}
