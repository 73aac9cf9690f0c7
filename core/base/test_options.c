// The option table: parsing, refusals, suggestions, help, and the saved configuration.
#define _GNU_SOURCE
#include "json.h"
#include "memory.h"
#include "options.h"
#include "test.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    int shuffle, loud, batch, any, kind;
    int64_t steps;
    float rate;
    const char *train;
} Values;

static Values values;
static Options options;
static Error error;
static const char *words[2];
static int word_count;

#define OPTION(name, alias, type, field, least, most, choices, help)                                                   \
    { "group of " #field, name, alias, type, &values.field, least, most, choices, help, 0, "" }

static void reset(void) {
    values = (Values){.shuffle = 1, .batch = 8, .kind = 1, .steps = 1000, .rate = 6e-4f};
    options = (Options){.usage = "usage: test [options]\nA table for tests.", .closing = "the closing"};
    const Option items[] = {
        OPTION("shuffle", 0, OPTION_FLAG, shuffle, 0, 1, NULL, "random order"),
        OPTION("loud", 'q', OPTION_FLAG, loud, 0, 1, NULL, "say more"),
        OPTION("batch", 'b', OPTION_INT, batch, 1, 1024, NULL, "rows per step"),
        OPTION("any", 0, OPTION_INT, any, 0, 0, NULL, "any number"),
        OPTION("steps", 'x', OPTION_LONG, steps, 0, 1e12, NULL, "steps in all"),
        OPTION("rate", 'l', OPTION_FLOAT, rate, 0, 100, NULL, "learning rate"),
        OPTION("train", 'i', OPTION_STRING, train, 0, 0, "SHARDS", "training data"),
        OPTION("kind", 0, OPTION_CHOICE, kind, 0, 0, "cosine|linear|constant", "schedule"),
    };
    options_add(&options, items, sizeof items / sizeof *items);
    error.text[0] = 0;
}

// Parses one command line, given as words with spaces between them, from a fresh table.
static int parse(const char *line) {
    static char copy[512];
    char *argv[32] = {"test"}, *rest;
    int argc = 1;
    reset();
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) argv[argc++] = word;
    return options_parse(&options, argc, argv, words, 2, &word_count, &error);
}

static void check_refused(const char *line, const char *part_of_message) {
    CHECK(parse(line) == -1);
    CHECK_CONTAINS(error.text, part_of_message);
    CHECK(!strchr(error.text, '\n'));
}

// ---- parsing

static void every_type_and_spelling(void) {
    CHECK(parse("--batch 16 --steps=20 -l 0.25 -i data --kind constant --loud --no-shuffle") == 0);
    CHECK(values.batch == 16 && values.steps == 20 && values.rate == 0.25f && values.kind == 2);
    CHECK(!strcmp(values.train, "data") && values.loud == 1 && values.shuffle == 0);
    CHECK(options_find(&options, "batch")->given && !options_find(&options, "any")->given);
    CHECK(parse("-b 3 -q --shuffle=0 --train=a=b") == 0);
    CHECK(values.batch == 3 && values.loud == 1 && values.shuffle == 0 && !strcmp(values.train, "a=b"));
    CHECK(parse("--loud=0 --shuffle=1 --loud") == 0);
    CHECK(values.loud == 1 && values.shuffle == 1); // the last one counts
    CHECK(parse("") == 0);
    CHECK(values.batch == 8 && values.steps == 1000 && values.train == NULL); // the defaults
}

static void numbers(void) {
    CHECK(parse("--steps 10k") == 0 && values.steps == 10000);
    CHECK(parse("--steps 2M") == 0 && values.steps == 2000000);
    CHECK(parse("--steps 1G") == 0 && values.steps == 1000000000);
    CHECK(parse("--steps 1.5k") == 0 && values.steps == 1500);
    CHECK(parse("--steps 1e3") == 0 && values.steps == 1000);
    CHECK(parse("--any -5") == 0 && values.any == -5);
    CHECK(parse("--rate 1e-5") == 0 && values.rate == 1e-5f);
    CHECK(parse("--rate .5") == 0 && values.rate == 0.5f);
    CHECK(parse("--any 2147483647") == 0 && values.any == INT_MAX);
    check_refused("--any 2147483648", "2147483647");
    CHECK(parse("--batch 1") == 0 && parse("--batch 1024") == 0); // the ends of a range belong to it
}

static void numbers_refused(void) {
    check_refused("--batch 0", "--batch: expected a whole number from 1 to 1024, found 0");
    check_refused("--batch -1", "found -1");
    check_refused("--batch 1e9", "found 1e9");
    check_refused("--batch 1025", "from 1 to 1024");
    check_refused("--batch many", "expected a whole number, found \"many\"");
    check_refused("--batch 1.5", "expected a whole number");
    check_refused("--batch 12x", "found \"12x\"");
    check_refused("--batch=", "found \"\"");
    check_refused("--rate nan", "expected a number");
    check_refused("--rate inf", "expected a number");
    check_refused("--rate 1e999", "expected a number");
    check_refused("--rate -0.1", "from 0 to 100");
    check_refused("--steps 1e300", "found 1e300");
    CHECK(values.steps == 1000); // a refused value changes nothing
}

static void other_refusals(void) {
    check_refused("--batch", "--batch: expected a value after it, found nothing");
    check_refused("-b", "expected a value after it");
    check_refused("--train=", "expected a value, found nothing");
    check_refused("--kind quadratic", "expected one of cosine|linear|constant, found \"quadratic\"");
    check_refused("--kind lin", "found \"lin\""); // no abbreviations
    check_refused("--loud=2", "expected one of 0|1");
    check_refused("--no-batch 3", "unknown option --no-batch");
    check_refused("-z", "unknown option -z");
    check_refused("-bq", "unknown option -bq");
    check_refused("one two three", "unexpected word \"three\"");
}

// A digit with a dash is a number, unless the table has an option of that short name.
static void a_digit_as_short_name(void) {
    Option digit = OPTION("null", '0', OPTION_FLAG, loud, 0, 1, NULL, "0 bytes");
    char *argv[] = {"test", "-0", "-1", "-0.5", NULL};
    CHECK(parse("-0") == 0 && word_count == 1 && !strcmp(words[0], "-0"));
    reset();
    options_add(&options, &digit, 1);
    CHECK(options_parse(&options, 4, argv, words, 2, &word_count, &error) == 0);
    CHECK(values.loud == 1 && word_count == 2 && !strcmp(words[0], "-1") && !strcmp(words[1], "-0.5"));
}

static void very_long_words(void) {
    size_t length = 100000;
    char *name = memory_allocate(length + 1, 1, "a long word"), *argv[] = {"test", name, "1"};
    memset(name, 'x', length), name[length] = 0;
    name[0] = name[1] = '-';
    reset();
    CHECK(options_parse(&options, 3, argv, words, 2, &word_count, &error) == -1);
    CHECK_CONTAINS(error.text, "unknown option");
    char *batch[] = {"test", "--batch", name + 2};
    reset();
    CHECK(options_parse(&options, 3, batch, words, 2, &word_count, &error) == -1);
    CHECK(strlen(error.text) < 300);
    char *train[] = {"test", "--train", name + 2};
    reset();
    CHECK(options_parse(&options, 3, train, words, 2, &word_count, &error) == 0);
    CHECK(strlen(values.train) == length - 2);
    free(name);
}

static void positionals(void) {
    CHECK(parse("first --batch 2 second") == 0);
    CHECK(word_count == 2 && !strcmp(words[0], "first") && !strcmp(words[1], "second"));
    CHECK(parse("-- --batch -5") == 0);
    CHECK(word_count == 2 && !strcmp(words[0], "--batch") && values.batch == 8);
    CHECK(parse("-") == 0 && word_count == 1); // a lone dash is a word
}

static void suggestions(void) {
    check_refused("--bacth 3", "did you mean --batch?");
    check_refused("--stpes 3", "did you mean --steps?");
    check_refused("--shufle", "did you mean --shuffle?");
    check_refused("--rte=1", "did you mean --rate?");
    check_refused("--step 1", "did you mean --steps?");
    CHECK(parse("--zzzzzzzz 1") == -1 && !strstr(error.text, "did you mean"));
    CHECK(options_nearest(&options, "trian") && !strcmp(options_nearest(&options, "trian"), "train"));
    CHECK(options_nearest(&options, "") == NULL || options_nearest(&options, "")[0]);
}

static void choices(void) {
    char word[16];
    CHECK(choice_index("a|bc|d", "bc") == 1 && choice_index("a|bc|d", "b") == -1 && choice_index("a|bc|d", "") == -1);
    CHECK(!strcmp(choice_name("a|bc|d", 2, word, sizeof word), "d"));
    CHECK(!strcmp(choice_name("a|bc|d", 3, word, sizeof word), ""));
    CHECK(!strcmp(choice_name("a|bc|d", 0, word, sizeof word), "a"));
}

// ---- help

static char *help_text(const Options *table, HelpFormat format) {
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    options_help(table, format, file);
    fclose(file);
    return text;
}

static void help_lists_everything(void) {
    reset();
    char *text = help_text(&options, HELP_TEXT);
    for (int i = 0; i < options.count; i++) {
        CHECK_CONTAINS(text, options.items[i].name);
        CHECK_CONTAINS(text, options.items[i].help);
        CHECK_CONTAINS(text, options.items[i].group);
    }
    CHECK_CONTAINS(text, "usage: test");
    CHECK_CONTAINS(text, "the closing");
    CHECK_CONTAINS(text, "cosine|linear|constant");
    CHECK_CONTAINS(text, "rows per step (8)");
    CHECK_CONTAINS(text, "(0.0006)");
    CHECK_CONTAINS(text, "schedule (linear)");
    free(text);
}

// What a reader of roff would take for a request or set otherwise is written so that it does not.
static void man_page(void) {
    static const Command commands[] = {{"one", "the first"}, {"two", "it's \\ second"}};
    reset();
    char *text = help_text(&options, HELP_MAN);
    CHECK_CONTAINS(text, ".TH \"test\" 1");
    CHECK_CONTAINS(text, "test \\- a table for tests\n");
    CHECK_CONTAINS(text, ".SH SYNOPSIS\n.nf\ntest [options]\n.fi\n");
    CHECK_CONTAINS(text, "\\fB\\-b\\fR, \\fB\\-\\-batch\\fR \\fIN\\fR\nrows per step (8)\n");
    CHECK_CONTAINS(text, "\\fB\\-\\-kind\\fR \\fIcosine|linear|constant\\fR\nschedule (linear)\n");
    for (int i = 0; i < options.count; i++) CHECK_CONTAINS(text, options.items[i].help);
    free(text);
    Options several = {.usage = "usage: test COMMAND\n.hidden", .commands = commands, .command_count = 2};
    text = help_text(&several, HELP_MAN);
    CHECK_CONTAINS(text, ".SH DESCRIPTION\n\\&.hidden\n");
    CHECK_CONTAINS(text, ".SH COMMANDS\n.TP\n\\fBone\\fR\nthe first; see\n.BR test\\-one (1)\n"
                         ".TP\n\\fBtwo\\fR\nit\\(aqs \\e second; see\n.BR test\\-two (1)\n.SH OPTIONS\n");
    free(text);
}

static const char help_of_man[] =
    ".SS help\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nthe options on the screen\n"
    ".TP\n\\fB\\-\\-help=\\fIman|bash|zsh|fish\\fR\nthis page, or what a shell needs to complete options\n"
    ".SH EXIT STATUS\n0, or 1 after a line on standard error that says what is wrong.\n";

// Whole pages: the name ends with the first sentence, a closing that shows examples is a section of its own.
static void whole_man_pages(void) {
    static const char *const cases[][4] = {
        {"usage: test two WORD\nDoes it. Well.", "the closing", "does it", ".SH NOTES\n.nf\nthe closing\n.fi\n"},
        {"usage: test two WORD\nDoes\nall. ", "example: test two", "does all", ".SH EXAMPLES\n.nf\ntest two\n.fi\n"},
        {"usage: test two WORD\nDoes it: well", "examples\n  one\n  two", "does it",
         ".SH EXAMPLES\n.nf\n  one\n  two\n.fi\n"},
        {"test two WORD\nA thing that has no point", NULL, "a thing that has no point", ""},
        {"test two WORD\nEnds.", NULL, "ends", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char expected[1500];
        Options table = {.usage = cases[i][0], .closing = cases[i][1]};
        const char *what = strchr(cases[i][0], '\n') + 1;
        snprintf(
            expected, sizeof expected,
            ".TH \"test-two\" 1 \"\" \"slay.c\" \"User Commands\"\n.SH NAME\ntest\\-two \\- %s\n.SH SYNOPSIS\n.nf\n"
            "test two WORD\n.fi\n.SH DESCRIPTION\n%s\n.SH OPTIONS\n%s%s",
            cases[i][2], what, help_of_man, cases[i][3]);
        char *text = help_text(&table, HELP_MAN);
        CHECK(strcmp(text, expected) == 0);
        free(text);
    }
}

// A program of several commands: which there are, and where the options of each are found.
static void completion_of_commands(void) {
    static const Command commands[] = {{"one", "the first"}, {"two", "it's \\ second"}};
    Options several = {.usage = "usage: test COMMAND\nwhat", .commands = commands, .command_count = 2};
    char *text = help_text(&several, HELP_ZSH);
    CHECK(strcmp(text,
                 "#compdef test\nif ((CURRENT == 2)); then\n    local -a commands=( 'one:the first'"
                 " 'two:it'\\''s \\\\ second' )\n    _describe command commands\nelse\n    shift words; ((CURRENT--))\n"
                 "    _test_${words[1]}\nfi\n") == 0);
    free(text);
    text = help_text(&several, HELP_FISH);
    CHECK(strcmp(text, "complete -c test -n __fish_use_subcommand -f -a one -d 'the first'\n"
                       "complete -c test -n __fish_use_subcommand -f -a two -d 'it\\'s \\\\ second'\n"
                       "complete -c test -s h -l help -d 'the options on the screen'\n") == 0);
    free(text);
    text = help_text(&several, HELP_BASH);
    CHECK_CONTAINS(text, "_test() {\n    local words='--help one two'\n");
    CHECK_CONTAINS(
        text, "declare -F \"_test_${COMP_WORDS[1]}\" >/dev/null; then\n        \"_test_${COMP_WORDS[1]}\" \"$@\"\n");
    CHECK_CONTAINS(text, "}\ncomplete -F _test test\n");
    free(text);
}

// The table's words and quotes in each shell's own way; scripts/test_install.sh asks the shells themselves.
static void completion(void) {
    static const struct {
        HelpFormat shell;
        const char *kind, *path, *number, *command;
    } cases[] = {
        {HELP_BASH, "    --kind) words='cosine linear constant' ;;", "--train | -i) paths=1",
         "--batch | -b) :", "_test_two() {"},
        {HELP_ZSH, "'--kind=[schedule]:kind:(cosine linear constant)'", "{-i,--train=}'[training data]:SHARDS:_files'",
         "{-b,--batch=}'[rows per step]:N: '", "#autoload\n# of test two"},
        {HELP_FISH, "complete -c test -l kind -x -a 'cosine linear constant' -d 'schedule'", "-l train -s i -r -F",
         "-l batch -s b -x -d", "complete -c test -n '__fish_seen_subcommand_from two' -l flag -d 'it"},
    };
    int flag = 0;
    Option quoted = {"group", "flag", 0, OPTION_FLAG, &flag, 0, 1, NULL, "it's [a] \\ flag", 0, ""};
    Options command = {.usage = "test two [--flag]\nwhat it does"};
    options_add(&command, &quoted, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reset();
        char *text = help_text(&options, cases[i].shell);
        CHECK_CONTAINS(text, cases[i].kind);
        CHECK_CONTAINS(text, cases[i].path);
        CHECK_CONTAINS(text, cases[i].number);
        free(text);
        text = help_text(&command, cases[i].shell);
        CHECK_CONTAINS(text, cases[i].command);
        if (cases[i].shell == HELP_ZSH) CHECK_CONTAINS(text, "'--flag[it'\\''s \\[a\\] \\\\ flag]'");
        if (cases[i].shell == HELP_FISH) CHECK_CONTAINS(text, "'it\\'s [a] \\\\ flag'");
        free(text);
    }
}

static void formats_of_help(void) {
    char *words[] = {"test", "--batch", "3", "--help=zsh", "--", "--help"}, *bad[] = {"test", "--help=csh"};
    CHECK(options_ask_for_help(6, words) == HELP_ZSH && options_ask_for_help(3, words) == HELP_NONE);
    CHECK(options_ask_for_help(2, bad) == HELP_NONE);
    check_refused("--help=csh", "option --help: expected man, bash, zsh or fish, found \"csh\"");
}

// --help prints to standard output and ends with 0, whatever is wrong after it.
static void help_exits(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout)) _exit(9);
        parse("--help --nonsense");
        _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// ---- the saved configuration

static void json_round_trip(void) {
    CHECK(parse("--batch 17 --rate 0.1 --steps 123456789012 --train päth --kind constant --no-shuffle --any -3") == 0);
    Values before = values;
    json_t *saved = options_to_json(&options);
    char *text = json_dumps(saved, JSON_COMPACT | JSON_REAL_PRECISION(17));
    CHECK_CONTAINS(text, "\"steps\":123456789012");
    CHECK_CONTAINS(text, "\"kind\":\"constant\"");
    CHECK_CONTAINS(text, "\"shuffle\":false");
    json_t *loaded = json_loads(text, 0, NULL);
    reset();
    CHECK(options_from_json(&options, loaded, &error) == 0);
    CHECK(values.batch == before.batch && values.rate == before.rate && values.steps == before.steps);
    CHECK(values.kind == before.kind && values.shuffle == 0 && values.any == -3 && !strcmp(values.train, "päth"));
    free((char *)values.train); // a copy, which in a program lives as long as the options do
    free(text), json_decref(saved), json_decref(loaded);
}

// Floats come back bit for bit through their text.
static void json_floats(void) {
    static const float floats[] = {6e-4f, 0.1f, 1.0f / 3, 1e-8f, 99.99999f, 1.17549435e-38f, 0};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        reset();
        values.rate = floats[i];
        json_t *saved = options_to_json(&options);
        char *text = json_dumps(saved, JSON_REAL_PRECISION(9));
        json_t *loaded = json_loads(text, 0, NULL);
        reset();
        CHECK(options_from_json(&options, loaded, &error) == 0 && values.rate == floats[i]);
        free(text), json_decref(saved), json_decref(loaded);
    }
}

static void json_yields_to_the_command_line(void) {
    CHECK(parse("--batch 3") == 0);
    json_t *saved = json_pack("{s:i, s:i, s:s}", "batch", 99, "steps", 5, "unknown", "ignored");
    CHECK(options_from_json(&options, saved, &error) == 0);
    CHECK(values.batch == 3 && values.steps == 5);
    json_decref(saved);
}

static void bad_json(void) {
    static const char *const texts[] = {"{\"batch\": 0}",     "{\"batch\": 1.5}", "{\"batch\": []}",
                                        "{\"kind\": \"no\"}", "{\"steps\": {}}",  "{\"rate\": -1}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *saved = json_loads(texts[i], 0, NULL);
        reset();
        CHECK(options_from_json(&options, saved, &error) == -1 && error.text[0]);
        json_decref(saved);
    }
    reset();
    CHECK(options_from_json(&options, NULL, &error) == 0); // nothing saved, nothing taken over
}

// A path is a string of bytes: one that is not UTF-8 has to come back as it was, any other has to stay readable.
static void json_keeps_any_path(void) {
    static const struct {
        const char *path, *json;
    } cases[] = {
        {"data/%41 \\x41", "\"data/%41 \\\\x41\""},      {"p\xc3\xa4th", "\"p\xc3\xa4th\""},
        {"\xff\xfe", "{\"percent\":\"%FF%FE\"}"},        {"a%/\xc3\x28\n\x7f", "{\"percent\":\"a%25/%C3(%0A%7F\"}"},
        {"\xed\xa0\x80", "{\"percent\":\"%ED%A0%80\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reset();
        values.train = cases[i].path;
        json_t *saved = options_to_json(&options);
        char *text = json_dumps(json_object_get(saved, "train"), JSON_COMPACT | JSON_ENCODE_ANY);
        CHECK(text && !strcmp(text, cases[i].json));
        reset();
        CHECK(options_from_json(&options, saved, &error) == 0);
        CHECK(values.train && !strcmp(values.train, cases[i].path));
        free((char *)values.train), free(text), json_decref(saved);
    }
}

static void bad_saved_paths(void) {
    static const char *const texts[] = {"5",
                                        "[]",
                                        "{}",
                                        "{\"percent\": 5}",
                                        "{\"percent\": \"%\"}",
                                        "{\"percent\": \"%4\"}",
                                        "{\"percent\": \"%zz\"}",
                                        "{\"percent\": \"%00\"}",
                                        "{\"percent\": \"a\", \"more\": 1}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *saved = json_pack("{s:o}", "train", json_loads(texts[i], JSON_DECODE_ANY, NULL));
        reset();
        CHECK(options_from_json(&options, saved, &error) == -1 && !values.train);
        CHECK_CONTAINS(error.text, "saved option train: expected text");
        json_decref(saved);
    }
}

// What JSON cannot express is not silently left out.
static void json_holds_all_or_says_so(void) {
    CHECK(json_is_null(json_number(NAN)) && json_is_null(json_number(-INFINITY)));
    json_t *readable = json_readable("saved \xff/run"), *number = json_number(0.5);
    CHECK(!strcmp(json_string_value(readable), "saved %FF/run") && json_real_value(number) == 0.5);
    json_decref(readable), json_decref(number);
    fflush(stdout);
    for (int kind = 0; kind < 3; kind++) {
        pid_t child = fork();
        if (child == 0) {
            json_t *object = json_object();
            fclose(stderr);
            if (kind == 0) json_put(object, "key", json_string("\xff"));
            if (kind == 1) json_put(object, "\xff", json_true());
            if (kind == 2) json_put_all(object, json_pack("{s:f}", "key", (double)NAN));
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    }
}

int main(void) {
    RUN(every_type_and_spelling);
    RUN(numbers);
    RUN(numbers_refused);
    RUN(other_refusals);
    RUN(a_digit_as_short_name);
    RUN(very_long_words);
    RUN(positionals);
    RUN(suggestions);
    RUN(choices);
    RUN(help_lists_everything);
    RUN(man_page);
    RUN(whole_man_pages);
    RUN(completion);
    RUN(completion_of_commands);
    RUN(formats_of_help);
    RUN(help_exits);
    RUN(json_round_trip);
    RUN(json_floats);
    RUN(json_yields_to_the_command_line);
    RUN(bad_json);
    RUN(json_keeps_any_path);
    RUN(bad_saved_paths);
    RUN(json_holds_all_or_says_so);
    return test_summary();
}
