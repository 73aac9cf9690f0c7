// GPT-2's splitting rule: text falls into pieces, and byte pairs are merged only inside a piece. The rule is the
// regular expression
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// and this is a scanner for it, written by hand. A byte that is not part of well-formed UTF-8 counts as a character of
// its own, of class "other": every byte string has pieces, and their bytes one after the other are the text.
#ifndef DATALOADER_PIECES_H
#define DATALOADER_PIECES_H

#include "unicode_classes.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE, CLASS_NOT_ASCII } CharacterClass;

// clang-format off
#define FOUR(class)    class, class, class, class
#define SIXTEEN(class) FOUR(class), FOUR(class), FOUR(class), FOUR(class)
static const uint8_t byte_class[256] = { // spaces are 9 to 13 and 32
    FOUR(0), FOUR(0), 0, 3, 3, 3, 3, 3, 0, 0,   SIXTEEN(0),
    3, 0, 0, 0, FOUR(0), FOUR(0), FOUR(0),      FOUR(2), FOUR(2), 2, 2, 0, 0, FOUR(0),
    0, 1, 1, 1, FOUR(1), FOUR(1), FOUR(1),      FOUR(1), FOUR(1), 1, 1, 1, 0, FOUR(0),
    0, 1, 1, 1, FOUR(1), FOUR(1), FOUR(1),      FOUR(1), FOUR(1), 1, 1, 1, 0, FOUR(0),
    SIXTEEN(4), SIXTEEN(4), SIXTEEN(4), SIXTEEN(4), SIXTEEN(4), SIXTEEN(4), SIXTEEN(4), SIXTEEN(4),
};
#undef FOUR
#undef SIXTEEN
// clang-format on

static inline CharacterClass code_point_class(uint32_t code) {
    if (code >= UNICODE_CLASSES_LIMIT) return CLASS_OTHER;
    const uint8_t *block = unicode_blocks[unicode_block_of[code / UNICODE_BLOCK]];
    return (CharacterClass)(block[code % UNICODE_BLOCK / 4] >> code % 4 * 2 & 3);
}

static inline int is_continuation(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

// The well-formed sequence of two to four bytes at `text`: its length, and the code point in *code; 0 if there is none
// (stray or missing continuation bytes, over-long forms, surrogates, beyond U+10FFFF).
static inline int utf8_decode(const unsigned char *text, size_t left, uint32_t *code) {
    unsigned char lead = text[0];
    if (lead < 0xC2 || lead > 0xF4 || left < 2 || !is_continuation(text[1])) return 0;
    if (lead < 0xE0) {
        *code = (lead & 0x1Fu) << 6 | (text[1] & 0x3Fu);
        return 2;
    }
    if (left < 3 || !is_continuation(text[2])) return 0;
    uint32_t three = (lead & 0x0Fu) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    if (lead < 0xF0) {
        *code = three;
        return three >= 0x800 && (three < 0xD800 || three > 0xDFFF) ? 3 : 0;
    }
    if (left < 4 || !is_continuation(text[3])) return 0;
    *code = three << 6 | (text[3] & 0x3Fu);
    return *code >= 0x10000 && *code <= 0x10FFFF ? 4 : 0;
}

// The class of the character at `text`, and its length in bytes.
static inline CharacterClass character_class(const unsigned char *text, size_t left, size_t *length) {
    CharacterClass class = (CharacterClass)byte_class[text[0]];
    *length = 1;
    if (class != CLASS_NOT_ASCII) return class;
    uint32_t code = 0;
    int sequence = utf8_decode(text, left, &code);
    if (sequence == 0) return CLASS_OTHER;
    *length = (size_t)sequence;
    return code_point_class(code);
}

// The end of the run of characters of one class that begins at `at` (or `at` itself).
static inline size_t run_end(const unsigned char *text, size_t at, size_t bytes, CharacterClass class) {
    for (size_t length;; at += length) {
        while (at < bytes && byte_class[text[at]] == class) at++;
        if (at >= bytes || text[at] < 0x80) return at;
        if (character_class(text + at, bytes - at, &length) != class) return at;
    }
}

// The length of 's 't 'm 'd 're 've 'll at an apostrophe; 0 if it is none of them.
static inline size_t contraction_length(const unsigned char *text, size_t left) {
    if (left < 2) return 0;
    unsigned char first = text[1], second = left > 2 ? text[2] : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    int three = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
    return three ? 3 : 0;
}

// Of a run of spaces before other text, the last one is left for the piece that follows: `\s+(?!\S)` gives one back.
static inline size_t spaces_end(const unsigned char *text, size_t start, size_t bytes) {
    size_t last = start, at = start, length;
    while (at < bytes && character_class(text + at, bytes - at, &length) == CLASS_SPACE) {
        last = at;
        at += length;
    }
    return at == bytes || last == start ? at : last;
}

// The end of the piece that begins at `start` < bytes.
static inline size_t piece_end(const unsigned char *text, size_t start, size_t bytes) {
    size_t at = start, length;
    CharacterClass class = character_class(text + at, bytes - at, &length);
    if (text[start] == ' ' && start + 1 < bytes) { // a single space goes with what follows it
        at++;
        class = character_class(text + at, bytes - at, &length);
    }
    if (class == CLASS_SPACE) return spaces_end(text, start, bytes);
    if (text[start] == '\'') {
        size_t contraction = contraction_length(text + start, bytes - start);
        if (contraction) return start + contraction;
    }
    return run_end(text, at + length, bytes, class);
}

// Whether the pieces of a text are the pieces of its first `at` bytes followed by those of the rest (0 < at < bytes).
// True where an ASCII space follows a character that is no space:
// - No alternative of the rule matches a space after anything else, so every piece that begins before `at` ends there
//   or earlier.
// - The character before `at` ends a run either way, whether a space or the end of the text comes next; and pieces that
//   end earlier look at most one character ahead, which is still in the first part.
// - The rule never looks back, so the rest is split as if it were alone.
// UTF-8 can be read backwards here: a lead byte is never a continuation byte, so a well-formed sequence that ends at
// `at` is also found by reading forwards.
static inline int is_safe_cut(const unsigned char *text, size_t at) {
    if (byte_class[text[at]] != CLASS_SPACE) return 0;
    if (text[at - 1] < 0x80) return byte_class[text[at - 1]] != CLASS_SPACE;
    for (size_t back = 2; back <= 4 && back <= at; back++) {
        uint32_t code = 0;
        if (utf8_decode(text + at - back, back, &code) == (int)back) return code_point_class(code) != CLASS_SPACE;
    }
    return 1; // a byte that is part of no character
}

#endif
