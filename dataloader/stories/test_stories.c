// Tests of the story grammar: text and choices determine each other, facts hold, the language is right.
#define _GNU_SOURCE
#include "stories_grammar.h"
#include "core/base/memory.h"
#include "core/base/test.h"

#include <ctype.h>
#include <stdlib.h>

enum { CORPUS_BYTES = 2000000, WORD_BYTES = 32 };

static StoryGrammar *grammar;

static int same_choices(const Story *a, const Story *b) {
    return a->n_choices == b->n_choices && !memcmp(a->choices, b->choices, (size_t)a->n_choices * sizeof(*a->choices));
}

// ---------------------------------------------------------------------------------------------------------------------
// Text and choices

static void test_parse_gives_back_the_choices(void) {
    Story story, parsed;
    Error error;
    for (uint64_t i = 0; i < 2000; i++) {
        story_generate(grammar, 1, i, &story);
        int status = story_parse(grammar, story.text, story.bytes, &parsed, &error);
        if (status) printf("    story %d: %s\n", (int)i, error.text);
        CHECK(status == 0 && same_choices(&story, &parsed) && parsed.bits == story.bits);
    }
}

static void test_bits_are_the_sum_of_choices(void) {
    Story story;
    for (uint64_t i = 0; i < 200; i++) {
        story_generate(grammar, 2, i, &story);
        double ways = 0;
        for (int c = 0; c < story.n_choices; c++) {
            CHECK(story.choices[c].of > 1 && story.choices[c].pick < story.choices[c].of);
            ways += log(story.choices[c].of);
        }
        CHECK_CLOSE(story.bits, ways / log(2), 1e-9);
    }
}

// Choices are uniform: the average of a story's picks, each relative to its range, is a half.
static void test_choices_are_uniform(void) {
    Story story;
    double sum = 0, variance = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        story_generate(grammar, 3, i, &story);
        for (int c = 0; c < story.n_choices; c++) {
            double of = story.choices[c].of;
            sum += story.choices[c].pick / (of - 1) - 0.5;
            variance += (of + 1) / (of - 1) / 12;
        }
    }
    CHECK_CLOSE(sum / sqrt(variance), 0, 4);
}

static void test_seed_and_number_determine_the_story(void) {
    Story one, again, other;
    story_generate(grammar, 7, 41, &one);
    story_generate(grammar, 7, 40, &other);
    CHECK(strcmp(one.text, other.text) != 0);
    story_generate(grammar, 8, 41, &other);
    CHECK(strcmp(one.text, other.text) != 0);
    story_generate(grammar, 7, 41 + STORY_VALIDATION_FIRST, &other);
    CHECK(strcmp(one.text, other.text) != 0);
    story_generate(grammar, 7, 41, &again); // on its own, after others
    CHECK(strcmp(one.text, again.text) == 0 && same_choices(&one, &again));
}

static void test_grammar_is_proved_unambiguous(void) {
    Error error = {""};
    int status = story_grammar_prove(grammar, &error);
    if (status) printf("    %s\n", error.text);
    CHECK(status == 0);
    StoryGrammarSize size = story_grammar_size(grammar);
    CHECK(size.sentences >= 150);
    CHECK(size.words >= 600);
}

// Whether the proof goes through for a story with two alternatives.
static int is_unambiguous(const char *first, const char *second) {
    Error error;
    const char *story[] = {first, second, NULL}, *greeting[] = {"Hello {friend}", "Good day {hero}", NULL};
    const StoryRule rules[] = {{"story", story}, {"greeting", greeting}};
    StoryGrammar *small = story_grammar_create_from(rules, 2);
    int status = story_grammar_prove(small, &error);
    story_grammar_free(small);
    return status == 0;
}

static void test_proof_finds_ambiguity(void) {
    CHECK(is_unambiguous("{+hero} ran.", "{+hero} sang."));
    CHECK(is_unambiguous("{hero} ran.", "{friend} ran."));       // two variables of a class are never equal
    CHECK(is_unambiguous("{hero} ran.", "{+friend} ran."));      // nor is a new word
    CHECK(is_unambiguous("{@greeting} ran.", "Howdy. {hero}.")); // all ways to begin a rule are tried
    CHECK(is_unambiguous("It was <red|blue>.", "It was <green|white>."));
    CHECK(!is_unambiguous("{+hero} ran.", "{+hero} ran. {hero} sang."));   // one begins the other
    CHECK(!is_unambiguous("{hero} ran.", "{holder} ran. {holder:=hero}")); // holder may be the hero
    CHECK(!is_unambiguous("{+weekday} came.", "Monday came."));
    CHECK(!is_unambiguous("{@greeting}.", "Hello {friend}."));
    CHECK(!is_unambiguous("It was <red|blue>.", "It was blue."));
    CHECK(!is_unambiguous("<red|reddish>.", "green."));
    CHECK(!is_unambiguous("{+hero}s ran.", "green."));              // where does the name end?
    CHECK(!is_unambiguous("{+spot} it was.", "{+refuge} it was.")); // two classes with common words
}

// ---------------------------------------------------------------------------------------------------------------------
// Wrong text

// Parses story `text` with its first `old` replaced; the story has to contain it.
static int parses_with(const Story *story, const char *old, const char *new) {
    Story parsed;
    Error error;
    char text[2 * STORY_MAX_BYTES];
    const char *at = strstr(story->text, old);
    CHECK(at != NULL);
    if (!at) return 0;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - story->text), story->text, new, at + strlen(old));
    return story_parse(grammar, text, strlen(text), &parsed, &error) == 0;
}

static void find_story(Story *story, const char *title_part) {
    for (uint64_t i = 0;; i++) {
        story_generate(grammar, 1, i, story);
        const char *found = strstr(story->text, title_part);
        if (found && found < strchr(story->text, '\n')) return;
    }
}

static void test_changed_text_is_refused(void) {
    Story story;
    find_story(&story, "The garden of ");
    CHECK(parses_with(&story, "garden", "garden"));
    CHECK(!parses_with(&story, "garden", "gardens"));
    CHECK(!parses_with(&story, "\n\n", "\n"));
    CHECK(!parses_with(&story, ".", ""));
    CHECK(!parses_with(&story, " the ", " a "));
    CHECK(!parses_with(&story, "? ", "! "));
}

// Every single byte matters: a changed one gives no story, or another story with other choices.
static void test_every_byte_matters(void) {
    Story story, parsed;
    Error error;
    story_generate(grammar, 5, 0, &story);
    for (size_t i = 0; i < story.bytes; i++) {
        char text[STORY_MAX_BYTES];
        memcpy(text, story.text, story.bytes);
        text[i] = text[i] == 'e' ? 'a' : 'e';
        int status = story_parse(grammar, text, story.bytes, &parsed, &error);
        CHECK(status != 0 || !same_choices(&story, &parsed));
    }
    CHECK(story_parse(grammar, story.text, 0, &parsed, &error) == -1);
    for (size_t bytes = 1; bytes < story.bytes; bytes++)
        CHECK(story_parse(grammar, story.text, bytes, &parsed, &error) == -1);
}

static void test_wrong_facts_are_refused(void) {
    Story story;
    char old[STORY_MAX_BYTES], wrong[STORY_MAX_BYTES];
    find_story(&story, " counts the ");
    const char *name_end = strstr(story.text, " counts the ");
    // The title names somebody else than the story tells about.
    snprintf(old, sizeof old, "%.*s counts", (int)(name_end - story.text), story.text);
    snprintf(wrong, sizeof wrong, "%s counts", strncmp(story.text, "Ada ", 4) ? "Ada" : "Anna");
    CHECK(!parses_with(&story, old, wrong));
    // Wrong pronouns in the last sentences: he for she.
    static const char *const swaps[][2] = {{"? He ", "? She "}, {"? She ", "? He "}, {"? Yes, ", "? No, "}};
    int tried = 0;
    for (uint64_t i = 0; i < 50; i++) {
        story_generate(grammar, 1, i, &story);
        for (int s = 0; s < 3; s++) {
            if (!strstr(story.text, swaps[s][0])) continue;
            CHECK(!parses_with(&story, swaps[s][0], swaps[s][1]));
            tried++;
        }
    }
    CHECK(tried > 20);
}

static void test_oversized_and_odd_input(void) {
    Story parsed;
    Error error;
    char *text = memory_allocate_zeroed(100000, 1, "a test");
    CHECK(story_parse(grammar, text, 100000, &parsed, &error) == -1);
    CHECK_CONTAINS(error.text, "100000");
    CHECK(story_parse(grammar, text, 100, &parsed, &error) == -1);
    memset(text, '"', 100000);
    StoryCheck check;
    story_check(grammar, text, 1000, &check);
    CHECK(!check.complete && !check.cut_off && check.parsed_bytes == 0);
    story_check(grammar, text, 0, &check);
    CHECK(check.sentences == 0 && !check.complete);
    free(text);
}

// ---------------------------------------------------------------------------------------------------------------------
// The facts, looked at without the grammar

// Copies what stands between `before` and `after`; 0 if it is not there.
static int between(const char *text, const char *before, const char *after, char *out, size_t size) {
    const char *start = strstr(text, before);
    if (!start) return 0;
    start += strlen(before);
    const char *end = strstr(start, after);
    if (!end) return 0;
    snprintf(out, size, "%.*s", (int)(end - start), start);
    return 1;
}

static int number_of(const char *word) {
    static const char *const numbers[] = {"zero",  "one",   "two",  "three", "four",   "five",  "six",
                                          "seven", "eight", "nine", "ten",   "eleven", "twelve"};
    for (int i = 0; i <= 12; i++)
        if (!strcmp(numbers[i], word)) return i;
    return -1;
}

static void test_subtraction_is_right(void) {
    Story story;
    char word[3][64];
    int seen = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        story_generate(grammar, 1, i, &story);
        if (!between(story.text, "\"I had ", ", and now I have ", word[0], 64)) continue;
        CHECK(between(story.text, ", and now I have ", ",\" said", word[1], 64));
        CHECK(between(story.text, "You must have ", ".\"", word[2], 64));
        CHECK(number_of(word[0]) - number_of(word[1]) == number_of(word[2]) && number_of(word[2]) >= 2);
        seen++;
    }
    CHECK(seen > 30);
}

static void test_hidden_things_are_where_they_were_hidden(void) {
    Story story;
    char place[128], answer[256];
    int seen = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        story_generate(grammar, 1, i, &story);
        if (!between(story.text, "keep it safe and hid it ", ".", place, sizeof place)) continue;
        if (!between(story.text, " hide the ", "? ", answer, sizeof answer)) continue;
        CHECK(between(strstr(story.text, " hide the "), " hid it ", ".", answer, sizeof answer));
        CHECK(strcmp(place, answer) == 0);
        seen++;
    }
    CHECK(seen > 10);
}

static void test_names_are_different(void) {
    Story story;
    char hero[64], friend_name[64];
    int seen = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        story_generate(grammar, 1, i, &story);
        if (!between(story.text, "the best friend of ", "?", hero, sizeof hero)) continue;
        CHECK(between(strstr(story.text, "the best friend of "), "It was ", ".", friend_name, sizeof friend_name));
        CHECK(strcmp(hero, friend_name) != 0);
        seen++;
    }
    CHECK(seen > 100);
}

// ---------------------------------------------------------------------------------------------------------------------
// The language

static void test_articles_agree(void) {
    Story story;
    for (uint64_t i = 0; i < 3000; i++) {
        story_generate(grammar, 1, i, &story);
        for (const char *at = story.text; (at = strcasestr(at, "a")); at++) {
            int starts_word = at == story.text || (!isalpha((unsigned char)at[-1]) && at[-1] != '-');
            const char *next = at[1] == ' ' ? at + 2 : at[1] == 'n' && at[2] == ' ' ? at + 3 : NULL;
            if (!starts_word || !next) continue;
            int is_vowel = strchr("aeiouAEIOU", *next) != NULL;
            if (is_vowel != (at[1] == 'n')) printf("    %.30s\n", at);
            CHECK(is_vowel == (at[1] == 'n'));
        }
    }
}

static void test_text_is_tidy(void) {
    Story story;
    for (uint64_t i = 0; i < 3000; i++) {
        story_generate(grammar, 1, i, &story);
        int quotes = 0;
        for (size_t c = 0; c < story.bytes; c++) {
            CHECK(story.text[c] == '\n' || (story.text[c] >= ' ' && story.text[c] <= '~'));
            quotes += story.text[c] == '"';
        }
        CHECK(quotes % 2 == 0);
        CHECK(!strpbrk(story.text, "{}<>|@^+=/"));
        CHECK(!strstr(story.text, "  ") && !strstr(story.text, " \n") && !strstr(story.text, "\n\n\n"));
        CHECK(!strstr(story.text, " .") && !strstr(story.text, " ,") && !strstr(story.text, ".."));
        CHECK(story.text[story.bytes - 1] == '.' && strlen(story.text) == story.bytes);
        for (const char *at = story.text; (at = strpbrk(at, ".?!")); at++) // a sentence starts with a capital
            if (at[1] == ' ') CHECK(isupper((unsigned char)at[2]) || at[2] == '"');
    }
}

static int count_words(const char *text) {
    int count = 0;
    for (; *text; text++) count += !isspace((unsigned char)*text) && (text[1] == 0 || isspace((unsigned char)text[1]));
    return count;
}

static void test_lengths(void) {
    Story story;
    double words = 0;
    int shortest = 1000, longest = 0, most_choices = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        story_generate(grammar, 1, i, &story);
        int count = count_words(story.text);
        words += count / 3000.0;
        if (count < shortest) shortest = count;
        if (count > longest) longest = count;
        if (story.n_choices > most_choices) most_choices = story.n_choices;
    }
    CHECK(shortest >= 90 && longest <= 220);
    CHECK(words >= 120 && words <= 180);
    CHECK(most_choices <= STORY_MAX_CHOICES / 2);
}

static int compare_words(const void *a, const void *b) {
    return strcmp(a, b);
}

static size_t collect_words(const char *text, char (*words)[WORD_BYTES], size_t count) {
    while (*text) {
        size_t length = 0;
        while (isalpha((unsigned char)text[length]) || text[length] == '-' || text[length] == '\'') length++;
        for (size_t i = 0; i < length && i < WORD_BYTES; i++) words[count][i] = (char)tolower((unsigned char)text[i]);
        if (length) words[count++][length < WORD_BYTES ? length : WORD_BYTES - 1] = 0;
        text += length ? length : 1;
    }
    return count;
}

static void test_vocabulary(void) {
    Story story;
    size_t count = 0, bytes = 0, distinct = 0, rarest = CORPUS_BYTES;
    char(*words)[WORD_BYTES] = memory_allocate(CORPUS_BYTES / 2, WORD_BYTES, "words");
    for (uint64_t i = 0; bytes < CORPUS_BYTES; i++) {
        story_generate(grammar, 1, i, &story);
        count = collect_words(story.text, words, count);
        bytes += story.bytes;
    }
    qsort(words, count, WORD_BYTES, compare_words);
    for (size_t i = 0, run = 1; i < count; i++, run++) {
        if (i + 1 < count && !strcmp(words[i], words[i + 1])) continue;
        distinct++;
        if (run < rarest) rarest = run;
        run = 0;
    }
    printf("    %zu distinct words in 2 MB, the rarest %zu times\n", distinct, rarest);
    CHECK(distinct >= 1000);
    CHECK(rarest >= 2);
    free(words);
}

static int compare_hashes(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

// No two of many stories are equal, and no story has so few bits that this would be luck.
static void test_no_story_twice(void) {
    enum { TRAIN = 20000, VALIDATION = 2000 };
    static uint64_t hashes[TRAIN + VALIDATION];
    Story story;
    double fewest = 1e9;
    for (int i = 0; i < TRAIN + VALIDATION; i++) {
        story_generate(grammar, 1, i < TRAIN ? (uint64_t)i : STORY_VALIDATION_FIRST + (uint64_t)(i - TRAIN), &story);
        hashes[i] = 0xcbf29ce484222325u;
        for (size_t c = 0; c < story.bytes; c++)
            hashes[i] = (hashes[i] ^ (unsigned char)story.text[c]) * 0x100000001b3u;
        if (story.bits < fewest) fewest = story.bits;
    }
    qsort(hashes, TRAIN + VALIDATION, sizeof(*hashes), compare_hashes);
    for (int i = 1; i < TRAIN + VALIDATION; i++) CHECK(hashes[i] != hashes[i - 1]);
    CHECK(fewest > 70);
}

// ---------------------------------------------------------------------------------------------------------------------
// Checking a model's text

static void test_check_accepts_true_stories(void) {
    Story story;
    StoryCheck check;
    for (uint64_t i = 0; i < 100; i++) {
        story_generate(grammar, 4, i, &story);
        story_check(grammar, story.text, story.bytes, &check);
        CHECK(check.complete && !check.cut_off && check.parsed_bytes == story.bytes);
        CHECK(check.sentences > 10 && check.grammatical == check.sentences);
        CHECK(check.facts > 10 && check.facts_right == check.facts);
    }
}

static void test_check_counts_faults(void) {
    Story story;
    StoryCheck check, whole;
    find_story(&story, "The garden of ");
    story_check(grammar, story.text, story.bytes, &whole);
    story_check(grammar, story.text, story.bytes / 2, &check);
    CHECK(check.cut_off && !check.complete && check.facts_right == check.facts && check.facts < whole.facts);
    CHECK(check.grammatical == check.sentences && check.sentences < whole.sentences);

    // A wrong name in the title: the rest is in order, but every "hero" in it is now wrong.
    char text[STORY_MAX_BYTES + 64];
    const char *name = story.text + strlen("The garden of "), *rest = strchr(name, '\n');
    snprintf(text, sizeof text, "The garden of %s%s", strncmp(name, "Ada ", 4) ? "Ada" : "Anna", rest);
    story_check(grammar, text, strlen(text), &check);
    CHECK(check.complete && check.facts == whole.facts);
    CHECK(check.facts_right < check.facts && check.facts_right > 0);
    CHECK(check.grammatical == check.sentences);

    // A sentence that no rule makes.
    snprintf(text, sizeof text, "%s The cat sat on the mat.", story.text);
    story_check(grammar, text, strlen(text), &check);
    CHECK(!check.complete && check.sentences == whole.sentences + 1 && check.grammatical == whole.sentences);
    CHECK(check.parsed_bytes == story.bytes && check.facts_right == whole.facts);
}

int main(void) {
    grammar = story_grammar_create();
    RUN(test_parse_gives_back_the_choices);
    RUN(test_bits_are_the_sum_of_choices);
    RUN(test_choices_are_uniform);
    RUN(test_seed_and_number_determine_the_story);
    RUN(test_grammar_is_proved_unambiguous);
    RUN(test_proof_finds_ambiguity);
    RUN(test_changed_text_is_refused);
    RUN(test_every_byte_matters);
    RUN(test_wrong_facts_are_refused);
    RUN(test_oversized_and_odd_input);
    RUN(test_subtraction_is_right);
    RUN(test_hidden_things_are_where_they_were_hidden);
    RUN(test_names_are_different);
    RUN(test_articles_agree);
    RUN(test_text_is_tidy);
    RUN(test_lengths);
    RUN(test_vocabulary);
    RUN(test_no_story_twice);
    RUN(test_check_accepts_true_stories);
    RUN(test_check_counts_faults);
    story_grammar_free(grammar);
    return test_summary();
}
