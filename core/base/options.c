#define _GNU_SOURCE
#include "options.h"
#include "json.h"
#include "memory.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void options_add(Options *options, const Option *items, int count) {
    for (int i = 0; i < count; i++) {
        if (options->count == OPTIONS_MAX) die("more than %d options in a table", OPTIONS_MAX);
        Option *option = &options->items[options->count++];
        *option = items[i];
        option_print_value(option, option->default_text, sizeof option->default_text);
    }
}

Option *options_find(Options *options, const char *name) {
    for (int i = 0; i < options->count; i++)
        if (!strcmp(options->items[i].name, name)) return &options->items[i];
    return NULL;
}

// ---- words and choices

const char *choice_name(const char *choices, int index, char *word, size_t size) {
    for (; index > 0 && choices; index--) {
        choices = strchr(choices, '|');
        if (choices) choices++;
    }
    int length = choices ? (int)strcspn(choices, "|") : 0;
    snprintf(word, size, "%.*s", length, choices ? choices : "");
    return word;
}

int choice_index(const char *choices, const char *word) {
    char name[64];
    for (int i = 0; choice_name(choices, i, name, sizeof name)[0]; i++)
        if (!strcmp(name, word)) return i;
    return -1;
}

// Edits (insert, remove, replace, swap neighbours) from a to b; words of more than 40 letters are never close to
// anything.
static int edit_distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b), rows[3][42];
    if (n > 40 || m > 40) return 99;
    int *before = rows[0], *previous = rows[1], *current = rows[2];
    for (int j = 0; j <= m; j++) previous[j] = before[j] = j;
    for (int i = 1; i <= n; i++) {
        current[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = previous[j - 1] + (a[i - 1] != b[j - 1]);
            if (previous[j] + 1 < best) best = previous[j] + 1;
            if (current[j - 1] + 1 < best) best = current[j - 1] + 1;
            int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            current[j] = best;
        }
        int *oldest = before;
        before = previous, previous = current, current = oldest;
    }
    return previous[m];
}

const char *options_nearest(const Options *options, const char *name) {
    const char *nearest = NULL;
    int best = 1 + (int)strlen(name) / 3; // a third of the letters may be wrong
    for (int i = 0; i < options->count; i++) {
        const char *candidate = options->items[i].name;
        int distance = edit_distance(name, candidate);
        int is_part = strlen(name) >= 3 && strstr(candidate, name) != NULL;
        if (is_part && distance > best) distance = best;
        if (distance <= best && (!nearest || distance < best)) best = distance, nearest = candidate;
    }
    return nearest;
}

// ---- values

// A number, perhaps with k, M or G after it. Only the whole text counts: "12x" is not a number.
static int parse_number(const char *text, double *number) {
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    if (end == text || errno == ERANGE || !isfinite(*number)) return -1;
    if (*end == 'k' || *end == 'K')
        *number *= 1e3, end++;
    else if (*end == 'M')
        *number *= 1e6, end++;
    else if (*end == 'G')
        *number *= 1e9, end++;
    return *end ? -1 : 0;
}

static int set_number(Option *option, const char *text, Error *error) {
    double number;
    int whole = option->type != OPTION_FLOAT;
    if (parse_number(text, &number) || (whole && number != floor(number)))
        return error_set(error, "option --%s: expected a %s, found \"%.100s\"", option->name,
                         whole ? "whole number" : "number", text);
    double least = option->least, most = option->most;
    if (least == 0 && most == 0) least = -9e15, most = 9e15;
    if (option->type == OPTION_INT) least = fmax(least, INT_MIN), most = fmin(most, INT_MAX);
    if (!(number >= least && number <= most))
        return error_set(error, "option --%s: expected %s from %.10g to %.10g, found %.100s", option->name,
                         whole ? "a whole number" : "a number", least, most, text);
    if (option->type == OPTION_INT)
        *(int *)option->value = (int)number;
    else if (option->type == OPTION_LONG)
        *(int64_t *)option->value = (int64_t)number;
    else
        *(float *)option->value = (float)number;
    return 0;
}

static int set_choice(Option *option, const char *choices, const char *text, Error *error) {
    int index = choice_index(choices, text);
    if (index < 0)
        return error_set(error, "option --%s: expected one of %.200s, found \"%.100s\"", option->name, choices, text);
    *(int *)option->value = index;
    return 0;
}

int option_set(Option *option, const char *text, Error *error) {
    switch (option->type) {
    case OPTION_FLAG:
        return set_choice(option, "0|1", text, error);
    case OPTION_CHOICE:
        return set_choice(option, option->choices, text, error);
    case OPTION_STRING:
        if (!*text) return error_set(error, "option --%s: expected a value, found nothing", option->name);
        *(const char **)option->value = text;
        return 0;
    default:
        return set_number(option, text, error);
    }
}

// The shortest text that reads back as the same float.
static void print_float(float value, char *text, size_t size) {
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtof(text, NULL) == value) return;
    }
}

void option_print_value(const Option *option, char *text, size_t size) {
    const char *string = option->type == OPTION_STRING ? *(const char **)option->value : NULL;
    switch (option->type) {
    case OPTION_FLAG:
        snprintf(text, size, "%s", *(int *)option->value ? "yes" : "no");
        break;
    case OPTION_INT:
        snprintf(text, size, "%d", *(int *)option->value);
        break;
    case OPTION_LONG:
        snprintf(text, size, "%lld", (long long)*(int64_t *)option->value);
        break;
    case OPTION_FLOAT:
        print_float(*(float *)option->value, text, size);
        break;
    case OPTION_STRING:
        snprintf(text, size, "%s", string ? string : "");
        break;
    case OPTION_CHOICE:
        choice_name(option->choices, *(int *)option->value, text, size);
        break;
    }
}

// ---- the command line

static int unknown_option(const Options *options, const char *word, Error *error) {
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    if (!strcmp(name, "help"))
        return error_set(error, "option --help: expected man, bash, zsh or fish, found \"%.100s\"", word + 5);
    const char *nearest = options_nearest(options, name);
    if (nearest) return error_set(error, "unknown option --%s; did you mean --%s? (--help lists all)", name, nearest);
    return error_set(error, "unknown option --%s; --help lists all", name);
}

static Option *find_alias(Options *options, char alias) {
    for (int i = 0; i < options->count; i++)
        if (options->items[i].alias == alias) return &options->items[i];
    return NULL;
}

// --name, --name=value, --name value, --no-flag, -n value. Moves *at past what it used.
static int parse_option(Options *options, int argc, char **argv, int *at, Error *error) {
    const char *word = argv[(*at)++];
    int is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    char name[128];
    if (is_long) snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word - 2) : 127, word + 2);
    Option *option = is_long ? options_find(options, name) : (word[2] ? NULL : find_alias(options, word[1]));
    if (!option && is_long && !strncmp(name, "no-", 3)) {
        option = options_find(options, name + 3);
        if (option && option->type == OPTION_FLAG && !equals)
            equals = "=0";
        else
            option = NULL;
    }
    if (!option && !is_long) return error_set(error, "unknown option %.20s; --help lists all", word);
    if (!option) return unknown_option(options, word + 2, error);
    option->given = 1;
    if (equals) return option_set(option, equals + 1, error);
    if (option->type == OPTION_FLAG) return option_set(option, "1", error);
    if (*at == argc) return error_set(error, "option --%s: expected a value after it, found nothing", option->name);
    return option_set(option, argv[(*at)++], error);
}

// A word that starts with a dash and a digit or point is a negative number, unless the digit is an option's short name.
static int is_option_word(Options *options, const char *word) {
    if (word[0] != '-' || !word[1]) return 0;
    if (!isdigit((unsigned char)word[1]) && word[1] != '.') return 1;
    return !word[2] && find_alias(options, word[1]);
}

// Of one word; an unknown format is no question for help but an error.
static HelpFormat help_format(const char *word) {
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) return HELP_TEXT;
    int index = strncmp(word, "--help=", 7) ? -1 : choice_index("man|bash|zsh|fish", word + 7);
    return index < 0 ? HELP_NONE : (HelpFormat)(HELP_MAN + index);
}

HelpFormat options_ask_for_help(int argc, char **argv) {
    for (int at = 1; at < argc && strcmp(argv[at], "--"); at++)
        if (help_format(argv[at])) return help_format(argv[at]);
    return HELP_NONE;
}

int options_parse(Options *options, int argc, char **argv, const char **positionals, int max_positionals,
                  int *n_positionals, Error *error) {
    int count = 0, only_positionals = 0;
    for (int at = 1; at < argc;) {
        if (!only_positionals && help_format(argv[at])) {
            options_help(options, help_format(argv[at]), stdout);
            exit(0);
        }
        if (!only_positionals && !strcmp(argv[at], "--")) {
            only_positionals = 1, at++;
        } else if (!only_positionals && is_option_word(options, argv[at])) {
            if (parse_option(options, argc, argv, &at, error)) return -1;
        } else if (count < max_positionals) {
            positionals[count++] = argv[at++];
        } else {
            return error_set(error, "unexpected word \"%.200s\"; options start with --, see --help", argv[at]);
        }
    }
    if (n_positionals) *n_positionals = count;
    return 0;
}

// ---- help

const char *option_value_word(const Option *option) {
    switch (option->type) {
    case OPTION_FLAG:
        return "";
    case OPTION_INT:
    case OPTION_LONG:
        return "N";
    case OPTION_FLOAT:
        return "X";
    case OPTION_CHOICE:
        return option->choices;
    default:
        return option->choices ? option->choices : "TEXT";
    }
}

int option_has_default(const Option *option) {
    if (option->type == OPTION_FLAG) return !strcmp(option->default_text, "yes");
    return option->default_text[0] != 0;
}

static void help_line(const Option *option, FILE *out) {
    char left[160], alias[8] = "    ";
    if (option->alias) snprintf(alias, sizeof alias, "-%c, ", option->alias);
    int wide = snprintf(left, sizeof left, "  %s--%s %s", alias, option->name, option_value_word(option));
    if (wide <= 34)
        fprintf(out, "%-35s", left);
    else
        fprintf(out, "%s\n%35s", left, "");
    if (option_has_default(option))
        fprintf(out, "%s (%s)\n", option->help, option->default_text);
    else
        fprintf(out, "%s\n", option->help);
}

static void help_text(const Options *options, FILE *out) {
    fprintf(out, "%s\n", options->usage);
    const char *group = "";
    if (options->command_count) fprintf(out, "\ncommands\n");
    for (int i = 0; i < options->command_count; i++)
        fprintf(out, "  %-32s %s\n", options->commands[i].name, options->commands[i].what);
    for (int i = 0; i < options->count; i++) {
        if (strcmp(group, options->items[i].group)) fprintf(out, "\n%s\n", group = options->items[i].group);
        help_line(&options->items[i], out);
    }
    fprintf(out, "\n%s\n%-35s%s\n", "help", "  -h, --help", "this text; defaults are in parentheses");
    fprintf(out, "%-35s%s\n", "      --help=man|bash|zsh|fish",
            "a man page, or what a shell needs to complete options");
    if (options->closing) fprintf(out, "\n%s\n", options->closing);
}

void options_help(const Options *options, HelpFormat format, FILE *out) {
    if (format == HELP_TEXT)
        help_text(options, out);
    else if (format == HELP_MAN)
        options_man_page(options, out);
    else
        options_completion(options, format, out);
}

// ---- the saved configuration

json_t *options_to_json(const Options *options) {
    json_t *object = json_object();
    for (int i = 0; i < options->count; i++) {
        const Option *option = &options->items[i];
        char text[128];
        json_t *value;
        switch (option->type) {
        case OPTION_FLAG:
            value = json_boolean(*(int *)option->value);
            break;
        case OPTION_INT:
            value = json_integer(*(int *)option->value);
            break;
        case OPTION_LONG:
            value = json_integer(*(int64_t *)option->value);
            break;
        case OPTION_FLOAT: // through its shortest text, so that 6e-4f is saved as 0.0006
            option_print_value(option, text, sizeof text);
            value = json_real(strtod(text, NULL));
            break;
        case OPTION_CHOICE:
            value = json_string(choice_name(option->choices, *(int *)option->value, text, 128));
            break;
        default:
            value = *(char **)option->value ? json_bytes(*(char **)option->value) : json_null();
        }
        json_put(object, option->name, value);
    }
    return object;
}

// A string's value is a copy that lives as long as the options do.
static int string_from_json(Option *option, const json_t *value, Error *error) {
    char *text = json_bytes_value(value);
    if (!text) return error_set(error, "saved option %s: expected text, found something else", option->name);
    *(const char **)option->value = text;
    return 0;
}

static int option_from_json(Option *option, const json_t *value, Error *error) {
    char number[64];
    const char *text = number;
    if (option->type == OPTION_STRING) return string_from_json(option, value, error);
    if (json_is_string(value))
        text = json_string_value(value);
    else if (json_is_boolean(value))
        snprintf(number, sizeof number, "%d", json_is_true(value));
    else if (json_is_number(value))
        snprintf(number, sizeof number, "%.17g", json_number_value(value));
    else
        return error_set(error, "saved option %s: expected a plain value, found an object or list", option->name);
    return option_set(option, text, error);
}

int options_from_json(Options *options, const json_t *json, Error *error) {
    for (int i = 0; i < options->count; i++) {
        Option *option = &options->items[i];
        const json_t *value = json_object_get(json, option->name);
        if (option->given || !value || json_is_null(value)) continue;
        if (option_from_json(option, value, error)) return -1;
    }
    return 0;
}
