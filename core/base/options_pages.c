// What an option table says of a program to others than its user: a man page, and completion for three shells.
#include "options.h"

#include <ctype.h>
#include <string.h>

// ---- the table's words

// "usage: tokenize encode --out PREFIX ..." -> "tokenize encode", its words joined by `joint`: those before the first
// that is an option or stands for something.
static const char *program_name(const Options *options, char joint, char name[64]) {
    const char *at = options->usage + (strncmp(options->usage, "usage: ", 7) ? 0 : 7);
    size_t used = 0;
    for (size_t length; islower((unsigned char)*at); at += length + (at[length] == ' ')) {
        length = strcspn(at, " \n");
        if (used + length + 2 > 64) break;
        if (used) name[used++] = joint;
        memcpy(name + used, at, length);
        used += length;
    }
    name[used] = 0;
    return name;
}

// Where the usage stops saying how the program is called and says what it does: the first line without its name.
static const char *description(const Options *options) {
    char name[64];
    size_t length = strlen(program_name(options, ' ', name));
    const char *at = options->usage + (strncmp(options->usage, "usage: ", 7) ? 0 : 7);
    while (!strncmp(at, name, length)) {
        at += strcspn(at, "\n");
        while (*at == '\n') at++;
    }
    return at;
}

// What follows an option: nothing, words to choose from, names that `--option list` lists, a path, or anything else.
typedef enum { VALUE_NONE, VALUE_WORDS, VALUE_NAMES, VALUE_PATH, VALUE_OTHER } ValueKind;

static ValueKind value_kind(const Option *option) {
    const char *word = option_value_word(option);
    if (option->type == OPTION_FLAG) return VALUE_NONE;
    if (option->type == OPTION_CHOICE) return VALUE_WORDS;
    if (option->type == OPTION_STRING && !strcmp(word, "NAME")) return VALUE_NAMES;
    return option->type == OPTION_STRING && choice_index("TEXT|IDS|PLACE", word) < 0 ? VALUE_PATH : VALUE_OTHER;
}

// "a|b|c" -> "a b c"
static void put_choices(const char *choices, FILE *out) {
    for (; *choices; choices++) putc(*choices == '|' ? ' ' : *choices, out);
}

// Text within single quotes, with a backslash before each of `special`; `quote` stands for a single quote.
static void put_quoted(const char *text, const char *special, const char *quote, FILE *out) {
    for (; *text; text++) {
        if (strchr(special, *text)) putc('\\', out);
        if (*text == '\'')
            fputs(quote, out);
        else
            putc(*text, out);
    }
}

// ---- the man page

// roff reads a line that begins with a point or a quote as a request, and sets dashes and quotes as a printer would.
static void put_roff(const char *text, size_t length, FILE *out) {
    static const struct {
        char from;
        const char *to;
    } table[] = {{'\\', "\\e"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'^', "\\(ha"}, {'~', "\\(ti"}, {'`', "\\(ga"}};
    for (size_t i = 0; i < length; i++) {
        const char *to = NULL;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++)
            if (text[i] == table[k].from) to = table[k].to;
        if (text[i] == '.' && (i == 0 || text[i - 1] == '\n')) fputs("\\&", out);
        if (to)
            fputs(to, out);
        else
            putc(text[i], out);
    }
}

static void put_roff_text(const char *text, FILE *out) {
    put_roff(text, strlen(text), out);
}

// The first sentence of the description, or its beginning, as the line that apropos shows.
static void man_name(const Options *options, FILE *out) {
    char name[64];
    const char *what = description(options);
    fprintf(out, ".SH NAME\n");
    put_roff_text(program_name(options, '-', name), out);
    fprintf(out, " \\- %c", tolower((unsigned char)what[0]));
    for (size_t i = 1; what[0] && what[i] && !strchr(":;", what[i]) && strncmp(&what[i], ". ", 2); i++) {
        if (what[i] == '.' && (!what[i + 1] || what[i + 1] == '\n')) break;
        put_roff(what[i] == '\n' ? " " : &what[i], 1, out);
    }
    fprintf(out, "\n");
}

static void man_option(const Option *option, FILE *out) {
    const char *word = option_value_word(option);
    fprintf(out, ".TP\n");
    if (option->alias) fprintf(out, "\\fB\\-%c\\fR, ", option->alias);
    fprintf(out, "\\fB\\-\\-");
    put_roff_text(option->name, out);
    fprintf(out, "\\fR%s", *word ? " \\fI" : "");
    put_roff_text(word, out);
    fprintf(out, "%s\n", *word ? "\\fR" : "");
    put_roff_text(option->help, out);
    if (option_has_default(option)) {
        fprintf(out, " (");
        put_roff_text(option->default_text, out);
        fprintf(out, ")");
    }
    fprintf(out, "\n");
}

static void man_commands(const Options *options, FILE *out) {
    char name[64];
    if (!options->command_count) return;
    fprintf(out, ".SH COMMANDS\n");
    for (int i = 0; i < options->command_count; i++) {
        fprintf(out, ".TP\n\\fB%s\\fR\n", options->commands[i].name);
        put_roff_text(options->commands[i].what, out);
        fprintf(out, "; see\n.BR ");
        put_roff_text(program_name(options, '-', name), out);
        fprintf(out, "\\-%s (1)\n", options->commands[i].name);
    }
}

// "examples" and "example:" at its beginning are the section's heading.
static void man_closing(const char *closing, FILE *out) {
    if (!closing) return;
    int shows_examples = !strncmp(closing, "example", 7);
    fprintf(out, ".SH %s\n.nf\n", shows_examples ? "EXAMPLES" : "NOTES");
    if (shows_examples) closing += strcspn(closing, ": \n");
    closing += strspn(closing, ":\n");
    if (shows_examples && *closing == ' ' && closing[1] != ' ') closing++;
    put_roff_text(closing, out);
    fprintf(out, "\n.fi\n");
}

void options_man_page(const Options *options, FILE *out) {
    char name[64];
    const char *group = "", *what = description(options);
    const char *called = options->usage + (strncmp(options->usage, "usage: ", 7) ? 0 : 7);
    fprintf(out, ".TH \"%s\" 1 \"\" \"slay.c\" \"User Commands\"\n", program_name(options, '-', name));
    man_name(options, out);
    fprintf(out, ".SH SYNOPSIS\n.nf\n");
    put_roff(called, (size_t)(what - called), out);
    fprintf(out, ".fi\n.SH DESCRIPTION\n");
    put_roff_text(what, out);
    fprintf(out, "\n");
    man_commands(options, out);
    fprintf(out, ".SH OPTIONS\n");
    if (options->count)
        fprintf(out, "Defaults are in parentheses. \\fB\\-\\-no\\-\\fINAME\\fR turns off what is on.\n");
    for (int i = 0; i < options->count; i++) {
        if (strcmp(group, options->items[i].group)) fprintf(out, ".SS %s\n", group = options->items[i].group);
        man_option(&options->items[i], out);
    }
    fprintf(out, ".SS help\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nthe options on the screen\n"
                 ".TP\n\\fB\\-\\-help=\\fIman|bash|zsh|fish\\fR\nthis page, or what a shell needs to complete options\n"
                 ".SH EXIT STATUS\n0, or 1 after a line on standard error that says what is wrong.\n");
    man_closing(options->closing, out);
}

// ---- bash

static void bash_option(const Option *option, FILE *out) {
    if (value_kind(option) == VALUE_NONE) return;
    fprintf(out, "    --%s", option->name);
    if (option->alias) fprintf(out, " | -%c", option->alias);
    fprintf(out, ") ");
    switch (value_kind(option)) {
    case VALUE_WORDS:
        fprintf(out, "words='");
        put_choices(option->choices, out);
        fprintf(out, "'");
        break;
    case VALUE_NAMES:
        fprintf(out, "words=$(\"$1\" --%s list 2>/dev/null | cut -d ' ' -f 1)", option->name);
        break;
    case VALUE_PATH:
        fprintf(out, "paths=1");
        break;
    default:
        fprintf(out, ":");
    }
    fprintf(out, " ;;\n");
}

// Words after an option with a value are its values; others are options when they begin with a dash, else files.
static void bash_function(const Options *options, const char *function, FILE *out) {
    fprintf(out, "_%s() {\n", function);
    fprintf(out, "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words='' paths=''\n"
                 "    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]} # --name=value comes in three words\n"
                 "    [[ $word == = ]] && word=''\n"
                 "    case $before in\n");
    for (int i = 0; i < options->count; i++) bash_option(&options->items[i], out);
    fprintf(out, "    *) if [[ $word == -* ]]; then words='--help");
    for (int i = 0; i < options->count; i++) {
        fprintf(out, " --%s", options->items[i].name);
        if (options->items[i].type == OPTION_FLAG) fprintf(out, " --no-%s", options->items[i].name);
    }
    fprintf(
        out,
        "'; else paths=1; fi ;;\n    esac\n"
        "    COMPREPLY=()\n"
        "    [[ -n $words ]] && mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
        "    [[ -n $paths ]] && mapfile -t COMPREPLY < <(compgen -f -- \"$word\") && compopt -o filenames 2>/dev/null\n"
        "    return 0\n"
        "}\n");
}

static void bash_commands(const Options *options, const char *function, FILE *out) {
    fprintf(out, "_%s() {\n    local words='--help", function);
    for (int i = 0; i < options->command_count; i++) fprintf(out, " %s", options->commands[i].name);
    fprintf(out,
            "'\n"
            "    COMPREPLY=()\n"
            "    if ((COMP_CWORD == 1)); then\n"
            "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"${COMP_WORDS[1]}\")\n"
            "    elif declare -F \"_%s_${COMP_WORDS[1]}\" >/dev/null; then\n"
            "        \"_%s_${COMP_WORDS[1]}\" \"$@\"\n"
            "    fi\n"
            "}\n",
            function, function);
}

static void bash_completion(const Options *options, FILE *out) {
    char function[64], name[64];
    program_name(options, '_', function);
    if (options->command_count)
        bash_commands(options, function, out);
    else
        bash_function(options, function, out);
    if (!strchr(program_name(options, ' ', name), ' ')) fprintf(out, "complete -F _%s %s\n", function, name);
}

// ---- zsh

static void zsh_option(const Option *option, FILE *out) {
    const char *end = option->type == OPTION_FLAG ? "" : "=", *word = option_value_word(option);
    if (option->alias)
        fprintf(out, " \\\n    '(-%c --%s)'{-%c,--%s%s}'[", option->alias, option->name, option->alias, option->name,
                end);
    else
        fprintf(out, " \\\n    '--%s%s[", option->name, end);
    put_quoted(option->help, "[]\\", "'\\''", out);
    fprintf(out, "]");
    switch (value_kind(option)) {
    case VALUE_NONE:
        fprintf(out, "' \\\n    '--no-%s", option->name);
        break;
    case VALUE_WORDS:
        fprintf(out, ":%s:(", option->name);
        put_choices(option->choices, out);
        fprintf(out, ")");
        break;
    case VALUE_NAMES:
        fprintf(out, ":%s:{compadd -- $(${words[1]} --%s list 2>/dev/null | cut -d \" \" -f 1)}", word, option->name);
        break;
    case VALUE_PATH:
        fprintf(out, ":%s:_files", word);
        break;
    case VALUE_OTHER:
        fprintf(out, ":%s: ", word);
    }
    fprintf(out, "'");
}

// A command's options are a file of their own, which zsh loads by the name of its function.
static void zsh_completion(const Options *options, FILE *out) {
    char name[64], function[64];
    int is_program = !strchr(program_name(options, ' ', name), ' ');
    fprintf(out, is_program ? "#compdef %s\n" : "#autoload\n# of %s\n", name);
    if (!options->command_count) {
        fprintf(out, "_arguments -S '(- *)'{-h,--help}'[the options on the screen]'");
        for (int i = 0; i < options->count; i++) zsh_option(&options->items[i], out);
        fprintf(out, " \\\n    '*:file:_files'\n");
        return;
    }
    fprintf(out, "if ((CURRENT == 2)); then\n    local -a commands=(");
    for (int i = 0; i < options->command_count; i++) {
        fprintf(out, " '%s:", options->commands[i].name);
        put_quoted(options->commands[i].what, "\\", "'\\''", out);
        fprintf(out, "'");
    }
    fprintf(out, " )\n    _describe command commands\nelse\n    shift words; ((CURRENT--))\n    _%s_${words[1]}\nfi\n",
            program_name(options, '_', function));
}

// ---- fish

static void fish_option(const Options *options, const Option *option, FILE *out) {
    char name[64], *command = strchr(program_name(options, ' ', name), ' ');
    if (command) *command++ = 0;
    fprintf(out, "complete -c %s", name);
    if (command) fprintf(out, " -n '__fish_seen_subcommand_from %s'", command);
    fprintf(out, " -l %s", option->name);
    if (option->alias) fprintf(out, " -s %c", option->alias);
    switch (value_kind(option)) {
    case VALUE_NONE:
        break;
    case VALUE_WORDS:
        fprintf(out, " -x -a '");
        put_choices(option->choices, out);
        fprintf(out, "'");
        break;
    case VALUE_NAMES:
        fprintf(out, " -x -a '(%s --%s list 2>/dev/null | string replace -r \" .*\" \"\")'", name, option->name);
        break;
    case VALUE_PATH:
        fprintf(out, " -r -F");
        break;
    case VALUE_OTHER:
        fprintf(out, " -x");
    }
    fprintf(out, " -d '");
    put_quoted(option->help, "\\", "\\'", out);
    fprintf(out, "'\n");
}

static void fish_completion(const Options *options, FILE *out) {
    char name[64];
    program_name(options, ' ', name);
    for (int i = 0; i < options->command_count; i++) {
        fprintf(out, "complete -c %s -n __fish_use_subcommand -f -a %s -d '", name, options->commands[i].name);
        put_quoted(options->commands[i].what, "\\", "\\'", out);
        fprintf(out, "'\n");
    }
    for (int i = 0; i < options->count; i++) fish_option(options, &options->items[i], out);
    if (!strchr(name, ' ')) fprintf(out, "complete -c %s -s h -l help -d 'the options on the screen'\n", name);
}

void options_completion(const Options *options, HelpFormat shell, FILE *out) {
    if (shell == HELP_BASH) bash_completion(options, out);
    if (shell == HELP_ZSH) zsh_completion(options, out);
    if (shell == HELP_FISH) fish_completion(options, out);
}
