#define _GNU_SOURCE
#include "choices.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 1024, EXAMPLE_START = 65535, EXAMPLE_WORDS = 6 };
enum { COMPLETIONS_MAX = 1024, ROWS_MAX = 1 << 28 };
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "these files are little-endian and are read as they are");

// ---- building

// Room for one more of `count` items: doubled whenever count is a power of two.
static void *grown(void *items, size_t count, size_t size, const char *what) {
    int is_full = (count & (count - 1)) == 0;
    return is_full ? memory_resize(items, count ? 2 * count : 1, size, what) : items;
}

static void add_token(Choices *choices, int token) {
    choices->tokens = grown(choices->tokens, choices->token_count, sizeof(int), "the tokens of a set");
    choices->tokens[choices->token_count++] = token;
}

static void add_row(Choices *choices, const ChoiceRow *row) {
    choices->rows = grown(choices->rows, (size_t)choices->row_count, sizeof *row, "the rows of a set");
    choices->rows[choices->row_count++] = *row;
}

static void add_example(Choices *choices, int first_row, int label) {
    ChoiceExample example = {.first_row = first_row, .rows = choices->row_count - first_row, .label = label};
    choices->examples =
        grown(choices->examples, (size_t)choices->example_count, sizeof example, "the examples of a set");
    choices->examples[choices->example_count++] = example;
}

// Characters of UTF-8: the bytes that do not continue one.
static int count_characters(const char *text, size_t bytes) {
    int count = 0;
    for (size_t i = 0; i < bytes; i++) count += (text[i] & 0xc0) != 0x80;
    return count;
}

// ---- llm.c's files

typedef struct { // where in the file
    const uint16_t *words;
    size_t count, at;
    const char *path;
    int example;
} Words;

static int cut_short(const Words *words, Error *error) {
    return error_set(error, "%.600s: example %d is cut short or damaged; make the file again", words->path,
                     words->example);
}

// A number of tokens, and the tokens.
static int take_tokens(Choices *choices, Words *words, int *count, Error *error) {
    if (words->at >= words->count || words->words[words->at] > words->count - words->at - 1)
        return cut_short(words, error);
    *count = words->words[words->at++];
    for (int i = 0; i < *count; i++) add_token(choices, words->words[words->at++]);
    return 0;
}

static int characters_of_tokens(const int *tokens, int count, const Tokenizer *tokenizer) {
    int characters = 0;
    for (int i = 0; i < count && tokenizer; i++) {
        size_t bytes;
        const char *text = tokenizer_token(tokenizer, (uint32_t)tokens[i], &bytes);
        size_t space = i == 0 && bytes && text[0] == ' ';
        characters += count_characters(text + space, bytes - space);
    }
    return characters;
}

// START, bytes, number, label, completions, then the context and the completions, each after its length.
static int take_example(Choices *choices, Words *words, const Tokenizer *tokenizer, Error *error) {
    const uint16_t *head = words->words + words->at;
    size_t start = words->at, left = words->count - words->at;
    int first_row = choices->row_count;
    if (left < EXAMPLE_WORDS || head[0] != EXAMPLE_START || head[1] % 2 || head[1] / 2u > left)
        return cut_short(words, error);
    int label = head[3], completions = head[4];
    if (completions < 1 || completions > COMPLETIONS_MAX || label >= completions)
        return error_set(error, "%.600s: example %d: expected a label below the number of completions, found %d of %d",
                         words->path, words->example, label, completions);
    ChoiceRow row = {.context = choices->token_count};
    words->at += 5;
    if (take_tokens(choices, words, &row.context_count, error)) return -1;
    for (int i = 0; i < completions; i++) {
        row.completion = choices->token_count;
        if (take_tokens(choices, words, &row.count, error)) return -1;
        if (row.count == 0) return cut_short(words, error);
        row.characters = characters_of_tokens(choices->tokens + row.completion, row.count, tokenizer);
        add_row(choices, &row);
    }
    if (words->at != start + head[1] / 2u) return cut_short(words, error);
    add_example(choices, first_row, label);
    return 0;
}

static int read_binary(Choices *choices, const FileMap *map, const Tokenizer *tokenizer, Error *error) {
    int32_t header[4];
    if (map->size < HEADER_BYTES)
        return error_set(error, "%.700s: expected a header of %d bytes, found %zu", choices->path, HEADER_BYTES,
                         map->size);
    memcpy(header, map->data, sizeof header);
    if (header[1] != CHOICES_VERSION)
        return error_set(error, "%.700s: expected version %d, found %d", choices->path, CHOICES_VERSION, header[1]);
    Words words = {.words = (const uint16_t *)(map->data + HEADER_BYTES),
                   .count = (map->size - HEADER_BYTES) / 2,
                   .path = choices->path};
    for (; words.at < words.count; words.example++)
        if (take_example(choices, &words, tokenizer, error)) return -1;
    if (choices->example_count == header[2] && map->size % 2 == 0) return 0;
    return error_set(error, "%.700s: the header says %d examples, found %d; copy the file again", choices->path,
                     header[2], choices->example_count);
}

// ---- JSONL

typedef struct {
    Choices *choices;
    const Tokenizer *tokenizer;
    uint32_t *tokens; // of tokenizer_encode
    size_t capacity;
    int line;
} Lines;

static int bad_line(const Lines *lines, const char *expected, Error *error) {
    return error_set(error, "%.600s: line %d: expected %s; see docs/evaluation.md", lines->choices->path, lines->line,
                     expected);
}

// The first of these entries that is there.
static const json_t *first_of(const json_t *object, const char *const *keys) {
    const json_t *found = NULL;
    for (; *keys && !found; keys++) found = json_object_get(object, *keys);
    return found;
}

static int encode(Lines *lines, const char *text, size_t bytes) {
    size_t count = tokenizer_encode(lines->tokenizer, text, bytes, &lines->tokens, &lines->capacity);
    for (size_t i = 0; i < count; i++) add_token(lines->choices, (int)lines->tokens[i]);
    return (int)count;
}

// Spaces at the end of the context belong to the completion, which begins with one.
static void add_context(Lines *lines, ChoiceRow *row, const json_t *text) {
    const char *context = json_string_value(text);
    size_t bytes = json_string_length(text);
    while (bytes && context[bytes - 1] == ' ') bytes--;
    row->context = lines->choices->token_count;
    row->context_count = encode(lines, context, bytes);
}

static int add_completion(Lines *lines, ChoiceRow *row, const json_t *json, Error *error) {
    const char *text = json_string_value(json);
    size_t bytes = json_string_length(json);
    if (!text || !bytes) return bad_line(lines, "completions that are texts", error);
    if (*text == ' ') text++, bytes--;
    char *spaced = memory_allocate(bytes + 1, 1, "a completion");
    spaced[0] = ' ';
    memcpy(spaced + 1, text, bytes);
    row->completion = lines->choices->token_count;
    row->count = encode(lines, spaced, bytes + 1);
    row->characters = count_characters(text, bytes);
    free(spaced);
    add_row(lines->choices, row);
    return 0;
}

// A list of texts; of ARC's {"text": [...], "label": [...]} the first; of PIQA's sol1 and sol2 a list. A new reference.
static json_t *completions_of(const json_t *object) {
    static const char *const keys[] = {"endings", "choices", "completions", "options", NULL};
    const json_t *list = first_of(object, keys);
    if (json_is_object(list)) list = json_object_get(list, "text");
    if (list) return json_incref((json_t *)list);
    const json_t *one = json_object_get(object, "sol1"), *two = json_object_get(object, "sol2");
    return one && two ? json_pack("[O,O]", one, two) : NULL;
}

// A number, the same as text, one of ARC's names, or a letter from A. -1: none of these.
static int label_of(const json_t *object) {
    static const char *const keys[] = {"label", "gold", "answer", "answerKey", NULL};
    const json_t *label = first_of(object, keys), *names = json_object_get(json_object_get(object, "choices"), "label");
    const char *text = json_string_value(label);
    size_t i;
    json_t *name;
    if (json_is_integer(label)) {
        json_int_t number = json_integer_value(label);
        return number >= 0 && number < COMPLETIONS_MAX ? (int)number : -1;
    }
    if (!text || !*text || strlen(text) > 4) return -1;
    json_array_foreach((json_t *)names, i, name) {
        if (json_equal(name, label)) return (int)i;
    }
    if (strspn(text, "0123456789") == strlen(text)) return atoi(text);
    return text[0] >= 'A' && text[0] <= 'Z' && !text[1] ? text[0] - 'A' : -1;
}

static int add_object(Lines *lines, const json_t *object, Error *error) {
    static const char *const keys[] = {"ctx", "context", "query", "question", "goal", "prompt", NULL};
    const json_t *context = first_of(object, keys);
    json_t *completions = completions_of(object), *one;
    int failed = 0, first_row = lines->choices->row_count, label = label_of(object);
    size_t i, count = json_array_size(completions);
    if (!json_is_string(context)) failed = bad_line(lines, "a context (\"ctx\") that is a text", error);
    if (!failed && (count < 1 || count > COMPLETIONS_MAX))
        failed = bad_line(lines, "a list of completions (\"endings\" or \"choices\")", error);
    if (!failed && (label < 0 || (size_t)label >= count))
        failed = bad_line(lines, "a label that is the number of a completion, from 0, or its letter", error);
    ChoiceRow row = {0};
    if (!failed) add_context(lines, &row, context);
    if (!failed) {
        json_array_foreach(completions, i, one) {
            if (!failed) failed = add_completion(lines, &row, one, error);
        }
    }
    json_decref(completions);
    if (!failed) add_example(lines->choices, first_row, label);
    return failed;
}

static int is_blank(const char *text, size_t bytes) {
    size_t i = 0;
    while (i < bytes && strchr(" \t\r", text[i])) i++;
    return i == bytes;
}

static int read_lines(Lines *lines, const FileMap *map, Error *error) {
    const char *text = (const char *)map->data, *end = text ? text + map->size : text;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t bytes = (size_t)((stop ? stop : end) - text);
        json_error_t why;
        lines->line++;
        if (!is_blank(text, bytes)) {
            json_t *object = json_loadb(text, bytes, 0, &why);
            if (!object) return bad_line(lines, "a JSON object", error);
            int failed = add_object(lines, object, error);
            json_decref(object);
            if (failed) return -1;
        }
        text += bytes + 1;
    }
    return 0;
}

static int read_jsonl(Choices *choices, const FileMap *map, const Tokenizer *tokenizer, Error *error) {
    Lines lines = {.choices = choices, .tokenizer = tokenizer};
    if (!tokenizer)
        return error_set(error, "%.700s: text needs the model's vocabulary, found none; give --tokenizer FILE",
                         choices->path);
    int failed = read_lines(&lines, map, error);
    free(lines.tokens);
    return failed;
}

// ---- loading

static int row_length(const ChoiceRow *row) {
    return row->context_count + row->count;
}

static int compare_lengths(const void *left, const void *right, void *context) {
    const ChoiceRow *rows = context;
    int a = *(const int *)left, b = *(const int *)right;
    int difference = row_length(&rows[b]) - row_length(&rows[a]);
    return difference ? difference : a - b;
}

static int finish(Choices *choices, Error *error) {
    if (choices->example_count == 0) return error_set(error, "%.700s: expected examples, found none", choices->path);
    choices->order = memory_allocate((size_t)choices->row_count, sizeof(int), "the order of a set");
    choices->losses = memory_allocate_zeroed((size_t)choices->row_count, sizeof(double), "the losses of a set");
    for (int i = 0; i < choices->row_count; i++) choices->order[i] = i;
    qsort_r(choices->order, (size_t)choices->row_count, sizeof(int), compare_lengths, choices->rows);
    return 0;
}

int choices_load(Choices **choices, const char *path, const Tokenizer *tokenizer, Error *error) {
    FileMap map = {0};
    *choices = NULL;
    if (file_map(&map, path, error)) return -1;
    Choices *set = memory_allocate_zeroed(1, sizeof *set, "a set");
    set->path = memory_copy_string(path);
    int32_t magic = 0;
    if (map.size >= sizeof magic) memcpy(&magic, map.data, sizeof magic);
    int failed = map.size / 2 > ROWS_MAX  ? error_set(error, "%.700s: too large for a set", path)
                 : magic == CHOICES_MAGIC ? read_binary(set, &map, tokenizer, error)
                                          : read_jsonl(set, &map, tokenizer, error);
    failed = failed || finish(set, error);
    file_unmap(&map);
    if (failed) {
        choices_free(set);
        return -1;
    }
    *choices = set;
    return 0;
}

int choices_check(const Choices *choices, int V, Error *error) {
    for (size_t i = 0; i < choices->token_count; i++)
        if (choices->tokens[i] >= V)
            return error_set(error,
                             "%.700s: expected tokens below the model's %d, found %d; it is for another vocabulary",
                             choices->path, V, choices->tokens[i]);
    return 0;
}

void choices_free(Choices *choices) {
    if (!choices) return;
    free(choices->path), free(choices->tokens), free(choices->rows), free(choices->examples);
    free(choices->order), free(choices->losses), free(choices);
}

// ---- batches

// The tokens of a row's input: the last one is only a target.
static int input_length(const ChoiceRow *row, int begins) {
    return row_length(row) + (begins || row->context_count == 0) - 1;
}

int choices_longest(const Choices *choices, int begins) {
    int longest = 1;
    for (int i = 0; i < choices->row_count; i++) longest = max_int(longest, input_length(&choices->rows[i], begins));
    return longest;
}

int choices_cut(const Choices *choices, int begins, int T) {
    int count = 0;
    for (int i = 0; i < choices->row_count; i++) count += input_length(&choices->rows[i], begins) > T;
    return count;
}

// Token number i of a row, counted from its beginning, which is end-of-text if `begins`.
static int token_at(const Choices *choices, const ChoiceRow *row, int i, int begins, int end_of_text) {
    i -= begins;
    if (i < 0) return end_of_text;
    return choices->tokens[i < row->context_count ? row->context + (size_t)i
                                                  : row->completion + (size_t)(i - row->context_count)];
}

// inputs, targets (T): the last T of the row's, then nothing.
static void fill_row(const Choices *choices, const ChoiceRow *row, int *inputs, int *targets, int T, int begins,
                     int end_of_text) {
    begins = begins || row->context_count == 0;
    int length = input_length(row, begins), skipped = max_int(length - T, 0);
    for (int t = 0; t < T; t++) {
        int i = t + skipped, is_there = i < length, is_completion = i + 1 >= begins + row->context_count;
        inputs[t] = is_there ? token_at(choices, row, i, begins, end_of_text) : end_of_text;
        targets[t] = is_there && is_completion ? token_at(choices, row, i + 1, begins, end_of_text) : -1;
    }
}

int choices_batch(const Choices *choices, ChoiceBatch *batch, int first, int most_rows, int most_T, int begins,
                  int end_of_text) {
    int rows = min_int(most_rows, choices->row_count - first);
    batch->T = 1;
    for (int i = 0; i < rows; i++)
        batch->T = max_int(batch->T, input_length(&choices->rows[choices->order[first + i]], begins));
    batch->T = min_int(batch->T, most_T);
    for (int i = 0; i < rows; i++) {
        size_t at = (size_t)i * (size_t)batch->T;
        fill_row(choices, &choices->rows[choices->order[first + i]], batch->inputs + at, batch->targets + at, batch->T,
                 begins, end_of_text);
    }
    return rows;
}

void choices_put(Choices *choices, int first, int rows, const double *losses) {
    for (int i = 0; i < rows; i++) choices->losses[choices->order[first + i]] = losses[i];
}

// ---- the report

// The row with the least loss divided by its length; the first of equals. Lengths of 0 count as 1.
typedef enum { BY_ALL, BY_TOKEN, BY_CHARACTER } Measure;
static int likeliest(const Choices *choices, const ChoiceExample *example, Measure measure) {
    int best = 0;
    double least = INFINITY;
    for (int i = 0; i < example->rows; i++) {
        const ChoiceRow *row = &choices->rows[example->first_row + i];
        int length = measure == BY_TOKEN ? row->count : measure == BY_CHARACTER ? row->characters : 1;
        double loss = choices->losses[example->first_row + i] / max_int(length, 1);
        if (loss < least) least = loss, best = i;
    }
    return best;
}

ChoiceReport choices_report(const Choices *choices) {
    ChoiceReport report = {.examples = choices->example_count};
    int knows_characters = 0;
    double n = report.examples;
    for (int i = 0; i < choices->row_count; i++) knows_characters |= choices->rows[i].characters > 0;
    for (int i = 0; i < choices->example_count; i++) {
        const ChoiceExample *example = &choices->examples[i];
        report.accuracy += likeliest(choices, example, BY_ALL) == example->label;
        report.per_token += likeliest(choices, example, BY_TOKEN) == example->label;
        report.per_character += likeliest(choices, example, BY_CHARACTER) == example->label;
        report.chance += 1.0 / example->rows;
    }
    report.accuracy /= n, report.per_token /= n, report.per_character /= n, report.chance /= n;
    if (!knows_characters) report.per_character = -1;
    report.standard_error = sqrt(report.accuracy * (1 - report.accuracy) / fmax(n - 1, 1));
    return report;
}

const char *choice_report_text(const ChoiceReport *report, char *text, size_t size) {
    char characters[32] = "unknown";
    if (report->per_character >= 0) snprintf(characters, sizeof characters, "%.4f", report->per_character);
    snprintf(text, size, "accuracy %.4f +- %.4f  per token %.4f  per character %s  (%d examples, chance %.4f)",
             report->accuracy, report->standard_error, report->per_token, characters, report->examples, report->chance);
    return text;
}
