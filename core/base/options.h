// Options. One table drives everything a program does with its options: parsing, --help, the start-up print-out, the
// configuration saved in checkpoints and metrics. A variable's value before parsing is the option's default.
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include "error.h"

#include <jansson.h>
#include <stdio.h>

typedef enum {
    OPTION_FLAG,   // int, 0 or 1: --name, --name=0, --no-name
    OPTION_INT,    // int
    OPTION_LONG,   // int64_t; 10k, 2M and 1G are understood
    OPTION_FLOAT,  // float
    OPTION_STRING, // const char *, NULL when not given
    OPTION_CHOICE, // int, an index into `choices`
} OptionType;

typedef struct {
    const char *group; // the heading it stands under in --help
    const char *name;  // long name without dashes
    char alias;        // short name or 0
    OptionType type;
    void *value;         // where the value goes; holds the default before parsing
    double least, most;  // range of numbers (inclusive; both 0: any)
    const char *choices; // OPTION_CHOICE: "cosine|linear|constant"; OPTION_STRING: the word for the value in --help
    const char *help;
    int given;              // set by parsing: it was on the command line
    char default_text[128]; // set by options_add: the default, as text
} Option;

enum { OPTIONS_MAX = 128 };

typedef struct { // of a program that has several, each with options of its own
    const char *name, *what;
} Command;

// What --help is answered with: text for the screen; with --help=man a man page, with --help=bash, zsh or fish what
// that shell needs to complete the program's words.
typedef enum { HELP_NONE, HELP_TEXT, HELP_MAN, HELP_BASH, HELP_ZSH, HELP_FISH } HelpFormat;

typedef struct {
    const char *usage;   // first lines of --help: how it is called, lines that begin with its name; then what it does
    const char *closing; // last lines of --help (examples), may be NULL
    const Command *commands;
    int command_count;
    Option items[OPTIONS_MAX];
    int count;
} Options;

void options_add(Options *options, const Option *items, int count);

// Parses the command line. `positionals` receives up to `max_positionals` words that are not options (their number is
// returned through *n_positionals); one more is refused. `--` ends the options. --help prints and exits with 0.
int options_parse(Options *options, int argc, char **argv, const char **positionals, int max_positionals,
                  int *n_positionals, Error *error);

// The format in which --help or -h asks for help, before a --; HELP_NONE when neither is among the words.
HelpFormat options_ask_for_help(int argc, char **argv);

// One value from text, with the same checks; used by parsing and by options_from_json.
int option_set(Option *option, const char *text, Error *error);
void option_print_value(const Option *option, char *text, size_t size);
Option *options_find(Options *options, const char *name);

// The name in the table that is nearest to a mistyped one, or NULL when none is near.
const char *options_nearest(const Options *options, const char *name);
// Index of `word` in "a|b|c", or -1.
int choice_index(const char *choices, const char *word);
// Word number `index` of "a|b|c", copied into `word`.
const char *choice_name(const char *choices, int index, char *word, size_t size);

void options_help(const Options *options, HelpFormat format, FILE *out);
// In options_pages.c: the formats besides text.
void options_man_page(const Options *options, FILE *out);
void options_completion(const Options *options, HelpFormat shell, FILE *out);
// What stands for an option's value: "N", "X", "a|b|c", or its own word; "" for a flag.
const char *option_value_word(const Option *option);
// Whether the default is worth telling.
int option_has_default(const Option *option);
// {"name": value, ...} in the table's order, strings as json_bytes makes them; a new reference.
json_t *options_to_json(const Options *options);
// Takes over the values found in `json` for options that were not on the command line.
int options_from_json(Options *options, const json_t *json, Error *error);

#endif
