// Multiple-choice sets: both formats, what is refused, batches, accuracies by hand.
#define _GNU_SOURCE
#include "choices.h"
#include "core/base/test.h"
#include "core/base/test_files.h"

static Error error;

// The bytes as tokens, and end-of-text: token n is the byte n.
static Tokenizer *bytes_tokenizer(void) {
    static char text[256 * 16];
    size_t used = 0;
    Tokenizer *tokenizer = NULL;
    for (int id = 0; id < 256; id++) {
        char byte = (char)id;
        used += tokenizer_write_line(text + used, &byte, 1, id);
    }
    test_write(test_path("vocabulary"), text, used);
    CHECK(tokenizer_load(&tokenizer, test_path("vocabulary"), 0, &error) == 0);
    return tokenizer;
}

static Choices *load_text(const char *text, const Tokenizer *tokenizer) {
    Choices *choices = NULL;
    test_write(test_path("set.jsonl"), text, strlen(text));
    CHECK(choices_load(&choices, test_path("set.jsonl"), tokenizer, &error) == 0);
    return choices;
}

static void check_text_refused(const char *text, const char *part, const Tokenizer *tokenizer) {
    Choices *choices;
    test_write(test_path("set.jsonl"), text, strlen(text));
    CHECK(choices_load(&choices, test_path("set.jsonl"), tokenizer, &error) == -1 && choices == NULL);
    CHECK_CONTAINS(error.text, part);
}

// llm.c's format with the words of the examples.
static const char *write_words(const uint16_t *words, size_t count, int examples) {
    static unsigned char file[1024 + 2 * 256];
    const int32_t header[4] = {CHOICES_MAGIC, CHOICES_VERSION, examples, 0};
    memset(file, 0, 1024);
    memcpy(file, header, sizeof header);
    memcpy(file + 1024, words, 2 * count);
    test_write(test_path("set.bin"), file, 1024 + 2 * count);
    return test_path("set.bin");
}

static const uint16_t two_examples[] = {
    65535, 26, 0, 1, 2, 2, 10, 11, 2,   ' ', 'a', 1, 'b', // context 10 11; " a" or "b", which is right
    65535, 26, 1, 0, 3, 1, 12, 1,  'c', 1,   'd', 1, 'e',
};

static void test_binary(void) {
    Tokenizer *tokenizer = bytes_tokenizer();
    uint16_t words[26];
    Choices *choices;
    memcpy(words, two_examples, sizeof words);
    CHECK(choices_load(&choices, write_words(words, 26, 2), tokenizer, &error) == 0);
    CHECK(choices->example_count == 2 && choices->row_count == 5);
    CHECK(choices->examples[0].label == 1 && choices->examples[0].rows == 2);
    CHECK(choices->examples[1].label == 0 && choices->examples[1].first_row == 2 && choices->examples[1].rows == 3);
    CHECK(choices->rows[0].count == 2 && choices->rows[0].context_count == 2 && choices->rows[0].characters == 1);
    CHECK(choices->tokens[choices->rows[1].completion] == 'b');
    CHECK(choices_check(choices, 257, &error) == 0 && choices_check(choices, 'd', &error) == -1);
    choices_free(choices);
    CHECK(choices_load(&choices, test_path("set.bin"), NULL, &error) == 0 && choices->rows[0].characters == 0);
    CHECK(choices_report(choices).per_character < 0);
    choices_free(choices);
    tokenizer_free(tokenizer);
}

// Every word of the file changed to something large, and every length of it: refused or read, never worse.
static void test_hostile_binary(void) {
    uint16_t words[26];
    Choices *choices;
    int refused = 0;
    for (int at = 0; at < 26; at++) {
        memcpy(words, two_examples, sizeof words);
        words[at] = 60000;
        if (choices_load(&choices, write_words(words, 26, 2), NULL, &error) == 0)
            choices_free(choices);
        else
            refused++;
    }
    CHECK(refused == 26 - 3 - 6 - 2); // the tokens of contexts and completions, and the numbers, may be anything
    for (size_t count = 0; count < 26; count++) {
        memcpy(words, two_examples, sizeof words);
        CHECK(choices_load(&choices, write_words(words, count, 2), NULL, &error) == -1);
    }
    memcpy(words, two_examples, sizeof words);
    CHECK(choices_load(&choices, write_words(words, 26, 3), NULL, &error) == -1);
    CHECK_CONTAINS(error.text, "the header says 3 examples, found 2");
}

static void test_jsonl(void) {
    Tokenizer *tokenizer = bytes_tokenizer();
    Choices *choices =
        load_text("{\"ctx\": \"A b \", \"endings\": [\"c\", \" d\\u00e9\"], \"label\": 1}\n"
                  "\n"
                  "{\"query\": \"q\", \"choices\": [\"x\", \"yy\", \"z\"], \"gold\": \"2\", \"other\": null}\r\n"
                  "{\"question\": \"q\", \"choices\": {\"text\": [\"x\", \"y\"], \"label\": [\"1\", \"2\"]}, "
                  "\"answerKey\": \"1\"}\n"
                  "{\"question\": \"q\", \"choices\": [\"x\", \"y\"], \"answer\": \"B\"}\n"
                  "{\"goal\": \"\", \"sol1\": \"x\", \"sol2\": \"y\", \"label\": 0}",
                  tokenizer);
    static const int labels[] = {1, 2, 0, 1, 0};
    CHECK(choices->example_count == 5 && choices->row_count == 11);
    for (int i = 0; i < 5; i++) CHECK(choices->examples[i].label == labels[i]);
    const ChoiceRow *row = &choices->rows[1]; // "A b", then " d" and two bytes of one character
    CHECK(row->context_count == 3 && row->count == 4 && row->characters == 2);
    CHECK(choices->tokens[row->completion] == ' ' && choices->tokens[row->completion + 1] == 'd');
    CHECK(choices->rows[0].count == 2 && choices->rows[9].context_count == 0);
    choices_free(choices);
    check_text_refused("", "expected examples, found none", tokenizer);
    check_text_refused("[1]\n", "line 1: expected a context", tokenizer);
    check_text_refused("\n{\"ctx\": 3}", "line 2: expected a context", tokenizer);
    check_text_refused("{\"ctx\": \"a\"", "line 1: expected a JSON object", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": []}", "a list of completions", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\", 3], \"label\": 0}", "completions that are texts",
                       tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 1}", "expected a label", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": \"\"}", "expected a label", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": -1}", "expected a label", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 4294967296}", "expected a label", tokenizer);
    check_text_refused("{\"ctx\": \"a\", \"endings\": [\"b\"]}", "expected a label", tokenizer);
    check_text_refused("{}", "vocabulary", NULL);
    tokenizer_free(tokenizer);
}

// Rows by length, the longest first; what is too long loses its beginning; targets are the completion's.
static void test_batches(void) {
    Tokenizer *tokenizer = bytes_tokenizer();
    Choices *choices = load_text("{\"ctx\": \"pq\", \"endings\": [\"x\", \"yyy\"], \"label\": 0}\n"
                                 "{\"ctx\": \"\", \"endings\": [\"u\"], \"label\": 0}",
                                 tokenizer);
    int inputs[30], targets[30];
    ChoiceBatch batch = {.inputs = inputs, .targets = targets};
    CHECK(choices_longest(choices, 0) == 5 && choices_longest(choices, 1) == 6);
    CHECK(choices_batch(choices, &batch, 0, 5, 100, 0, 256) == 3 && batch.T == 5);
    static const int expected_inputs[] = {'p', 'q', ' ', 'y', 'y', 'p', 'q', ' ', 256, 256, 256, ' ', 256, 256, 256};
    static const int expected_targets[] = {-1, ' ', 'y', 'y', 'y', -1, ' ', 'x', -1, -1, ' ', 'u', -1, -1, -1};
    CHECK(!memcmp(inputs, expected_inputs, sizeof expected_inputs));
    CHECK(!memcmp(targets, expected_targets, sizeof expected_targets));
    CHECK(choices_batch(choices, &batch, 1, 1, 100, 1, 256) == 1 && batch.T == 4);
    static const int begun[] = {256, 'p', 'q', ' '}, begun_targets[] = {-1, -1, ' ', 'x'};
    CHECK(!memcmp(inputs, begun, sizeof begun) && !memcmp(targets, begun_targets, sizeof begun_targets));
    CHECK(choices_cut(choices, 0, 3) == 1 && choices_batch(choices, &batch, 0, 1, 3, 0, 256) == 1 && batch.T == 3);
    CHECK(inputs[0] == ' ' && targets[0] == 'y' && inputs[2] == 'y' && targets[2] == 'y');
    choices_free(choices);
    tokenizer_free(tokenizer);
}

// Three measures that disagree: 6 nats in 2 tokens and 1 character, 7 in 4 and 3; 10 in 2 and 1, 9 in 2 and 1.
static void test_report(void) {
    Tokenizer *tokenizer = bytes_tokenizer();
    Choices *choices = load_text("{\"ctx\": \"pq\", \"endings\": [\"x\", \"yyy\"], \"label\": 1}\n"
                                 "{\"ctx\": \"pq\", \"endings\": [\"x\", \"y\"], \"label\": 1}",
                                 tokenizer);
    const double losses[] = {7, 6, 10, 9}; // in the order of the batches: the longest row comes first
    char text[256];
    choices_put(choices, 0, 4, losses);
    ChoiceReport report = choices_report(choices);
    CHECK(report.accuracy == 0.5 && report.per_token == 1 && report.per_character == 1 && report.examples == 2);
    CHECK_CLOSE(report.standard_error, 0.5, 1e-12);
    CHECK_CLOSE(report.chance, 0.5, 1e-12);
    CHECK_CONTAINS(choice_report_text(&report, text, sizeof text), "accuracy 0.5000 +- 0.5000  per token 1.0000");
    choices_free(choices);
    tokenizer_free(tokenizer);
}

int main(void) {
    test_directory_make();
    RUN(test_binary);
    RUN(test_hostile_binary);
    RUN(test_jsonl);
    RUN(test_batches);
    RUN(test_report);
    return test_summary();
}
