// stories: writes small English stories, as many as wanted, from a seed, and says how much information their choices
// hold: the floor for any model's loss. With --check it measures how far given text keeps to the same grammar.
#define _GNU_SOURCE
#include "stories_grammar.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_MAX_BYTES = 1 << 30 };

// Twice as many are still below STORY_VALIDATION_FIRST.
#define MOST_STORIES 5e11

typedef struct {
    int64_t bytes, stories, seed, first, validation_stories;
    const char *out, *validation_out, *floor_out, *check;
} Arguments;

// One part of the corpus: training or validation text.
typedef struct {
    const char *name, *path;              // no path: standard output
    uint64_t first;                       // number of its first story
    int64_t stories_wanted, bytes_wanted; // whichever is not 0
    uint64_t stories, bytes;
    double bits;
} Part;

static Options describe_options(Arguments *arguments) {
    Options options = {
        .usage =
            "stories [--bytes 4M | --stories N] [--out FILE] [--validation-stories N --validation-out FILE]\n"
            "stories --check FILE\n"
            "Writes stories from a grammar, each followed by a line " STORY_SEPARATOR ", and on standard error the\n"
            "information content of their choices: no model's loss can be lower on average.",
        .closing = "examples:\n"
                   "  stories --stories 3\n"
                   "  stories --bytes 20M --out train.txt --validation-stories 500 --validation-out validation.txt\n"
                   "  stories --first 41 --stories 1      story 41 alone, the same as in the middle of a longer text\n",
    };
    const Option items[] = {
        {"size", "bytes", 0, OPTION_LONG, &arguments->bytes, 1, 1e14, NULL,
         "stop after the story that reaches so many bytes", 0, ""},
        {"size", "stories", 0, OPTION_LONG, &arguments->stories, 0, MOST_STORIES, NULL,
         "write exactly so many instead (0: go by --bytes)", 0, ""},
        {"which", "seed", 0, OPTION_LONG, &arguments->seed, 0, 9e15, NULL, "another seed, other stories", 0, ""},
        {"which", "first", 0, OPTION_LONG, &arguments->first, 0, MOST_STORIES, NULL, "number of the first story", 0,
         ""},
        {"files", "out", 'o', OPTION_STRING, &arguments->out, 0, 0, "FILE", "write here instead of standard output", 0,
         ""},
        {"files", "validation-stories", 0, OPTION_LONG, &arguments->validation_stories, 0, MOST_STORIES, NULL,
         "write so many more, of other numbers than any training text's", 0, ""},
        {"files", "validation-out", 0, OPTION_STRING, &arguments->validation_out, 0, 0, "FILE", "their file", 0, ""},
        {"files", "floor-out", 0, OPTION_STRING, &arguments->floor_out, 0, 0, "FILE.json",
         "stories, bytes and bits of both parts", 0, ""},
        {"checking", "check", 0, OPTION_STRING, &arguments->check, 0, 0, "FILE",
         "how well the stories in FILE (- for standard input) keep grammar and facts", 0, ""},
    };
    options_add(&options, items, (int)(sizeof(items) / sizeof(*items)));
    return options;
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

static int is_done(const Part *part) {
    return part->stories_wanted ? part->stories >= (uint64_t)part->stories_wanted
                                : part->bytes >= (uint64_t)part->bytes_wanted;
}

static int write_text(FileWriter *writer, const Part *part, const char *text, size_t bytes, Error *error) {
    if (part->path) return file_write(writer, text, bytes, error);
    if (fwrite(text, 1, bytes, stdout) == bytes) return 0;
    return error_set(error, "standard output: cannot write: %s", strerror(errno));
}

static int write_stories(const StoryGrammar *grammar, uint64_t seed, Part *part, FileWriter *writer, Error *error) {
    static const char separator[] = "\n" STORY_SEPARATOR "\n";
    Story story;
    Progress progress;
    double total = part->stories_wanted ? (double)part->stories_wanted : (double)part->bytes_wanted;
    progress_start(&progress, part->name, total, part->stories_wanted ? 1 : 1e6,
                   part->stories_wanted ? "stories" : "MB");
    while (!is_done(part)) {
        story_generate(grammar, seed, part->first + part->stories, &story);
        if (write_text(writer, part, story.text, story.bytes, error)) return -1;
        if (write_text(writer, part, separator, sizeof separator - 1, error)) return -1;
        part->stories++;
        part->bytes += story.bytes;
        part->bits += story.bits;
        if (part->stories % 1024 == 0)
            progress_update(&progress, (double)(part->stories_wanted ? part->stories : part->bytes));
    }
    progress_end(&progress);
    return 0;
}

static int write_part(const StoryGrammar *grammar, uint64_t seed, Part *part, Error *error) {
    FileWriter writer = {0};
    uint64_t expected = part->stories_wanted ? 0 : (uint64_t)part->bytes_wanted;
    if (part->path && file_writer_open(&writer, part->path, expected, error)) return -1;
    int status = write_stories(grammar, seed, part, &writer, error);
    if (!part->path) {
        if (status == 0 && fflush(stdout))
            status = error_set(error, "standard output: cannot write: %s", strerror(errno));
        return status;
    }
    if (status == 0) return file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return status;
}

static void print_floor(const Part *part) {
    double bits_per_byte = part->bits / (double)part->bytes;
    fprintf(stderr, "%s: %llu stories, %llu bytes, %.1f bits: %.6f bits per byte, %.6f nats per byte\n", part->name,
            (unsigned long long)part->stories, (unsigned long long)part->bytes, part->bits, bits_per_byte,
            bits_per_byte * M_LN2);
}

static json_t *floor_to_json(const Part *part) {
    double bits_per_byte = part->bits / (double)part->bytes;
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "first", (json_int_t)part->first, "stories",
                     (json_int_t)part->stories, "bytes", (json_int_t)part->bytes, "bits", json_number(part->bits),
                     "bits_per_byte", json_number(bits_per_byte), "nats_per_byte", json_number(bits_per_byte * M_LN2));
}

// "floor_bits" is the number for the text a model is judged by: the validation part, or all there is.
static int write_floor(const char *path, int64_t seed, const Part *parts, int count, Error *error) {
    const Part *judged = &parts[count - 1];
    json_t *json =
        json_pack("{s:I, s:f, s:s}", "seed", (json_int_t)seed, "floor_bits", judged->bits, "floor_of", judged->name);
    for (int i = 0; i < count; i++) json_put(json, parts[i].name, floor_to_json(&parts[i]));
    char *text = json_print(json, JSON_INDENT(2));
    int status = file_replace(path, text, strlen(text), error);
    free(text);
    json_decref(json);
    return status;
}

static void write_corpus(const StoryGrammar *grammar, const Arguments *arguments) {
    Error error;
    Part parts[2] = {
        {.name = "train",
         .path = arguments->out,
         .first = (uint64_t)arguments->first,
         .stories_wanted = arguments->stories,
         .bytes_wanted = arguments->bytes},
        {.name = "validation",
         .path = arguments->validation_out,
         .first = STORY_VALIDATION_FIRST,
         .stories_wanted = arguments->validation_stories},
    };
    int count = arguments->validation_stories ? 2 : 1;
    for (int i = 0; i < count; i++) {
        die_if(write_part(grammar, (uint64_t)arguments->seed, &parts[i], &error), &error);
        print_floor(&parts[i]);
    }
    if (arguments->floor_out) die_if(write_floor(arguments->floor_out, arguments->seed, parts, count, &error), &error);
}

// ---------------------------------------------------------------------------------------------------------------------
// Checking

typedef struct {
    int stories, complete, cut_off;
    long sentences, grammatical, facts, facts_right;
} Totals;

static double percent(long part, long whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void check_story(const StoryGrammar *grammar, const char *text, size_t bytes, Totals *totals) {
    StoryCheck check;
    story_check(grammar, text, bytes, &check);
    printf("story %d: %d of %d sentences, %d of %d facts, ", ++totals->stories, check.grammatical, check.sentences,
           check.facts_right, check.facts);
    if (check.complete)
        printf("complete\n");
    else if (check.cut_off)
        printf("in order as far as it goes\n");
    else
        printf("in order for %zu of %zu bytes\n", check.parsed_bytes, bytes);
    totals->complete += check.complete;
    totals->cut_off += check.cut_off;
    totals->sentences += check.sentences, totals->grammatical += check.grammatical;
    totals->facts += check.facts, totals->facts_right += check.facts_right;
}

// A separator counts wherever it stands, for samplers that put no line break before it. White space around a story
// does not belong to it.
static void check_text(const StoryGrammar *grammar, const char *text, size_t bytes, Totals *totals) {
    const char *end = text + bytes;
    while (text < end) {
        const char *next = memmem(text, (size_t)(end - text), STORY_SEPARATOR, strlen(STORY_SEPARATOR));
        const char *stop = next ? next : end;
        while (text < stop && strchr(" \r\n", *text) && *text) text++;
        while (stop > text && strchr(" \r\n", stop[-1]) && stop[-1]) stop--;
        if (stop > text) check_story(grammar, text, (size_t)(stop - text), totals);
        text = next ? next + strlen(STORY_SEPARATOR) : end;
    }
}

static void check_file(const StoryGrammar *grammar, const char *path) {
    Error error;
    char *text;
    size_t bytes;
    Totals totals = {0};
    if (!strcmp(path, "-"))
        die_if(file_read_stream(&text, &bytes, stdin, "standard input", CHECK_MAX_BYTES, &error), &error);
    else
        die_if(file_read(&text, &bytes, path, CHECK_MAX_BYTES, &error), &error);
    check_text(grammar, text, bytes, &totals);
    if (totals.stories == 0)
        die("%s: expected stories, found no text; `stories --stories 3` shows what they look like", path);
    printf("%d stories: %.1f %% complete or cut off in order, %.1f %% of %ld sentences grammatical, %.1f %% of %ld "
           "facts right\n",
           totals.stories, percent(totals.complete + totals.cut_off, totals.stories),
           percent(totals.grammatical, totals.sentences), totals.sentences, percent(totals.facts_right, totals.facts),
           totals.facts);
    free(text);
}

int main(int argc, char **argv) {
    Error error;
    Arguments arguments = {.bytes = 4000000, .seed = 1};
    error_set_program(argv[0]);
    Options options = describe_options(&arguments);
    const char *none[1];
    int n_positionals;
    die_if(options_parse(&options, argc, argv, none, 0, &n_positionals, &error), &error);
    if (!arguments.validation_stories != !arguments.validation_out)
        die("--validation-stories and --validation-out go together: give both or none");
    StoryGrammar *grammar = story_grammar_create();
    if (arguments.check)
        check_file(grammar, arguments.check);
    else
        write_corpus(grammar, &arguments);
    story_grammar_free(grammar);
    return 0;
}
