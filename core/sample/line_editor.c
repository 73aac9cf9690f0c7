#define _GNU_SOURCE
#include "line_editor.h"
#include "core/base/memory.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000, KEY_BYTES = 16 };
typedef enum { EDITING, ENTERED, ENDED, INTERRUPTED, SUSPENDED } Outcome;

struct LineEditor {
    const char *prompt;
    int is_terminal;
    char *line;                    // getline's, or the one that is edited; no end is kept
    size_t capacity, length;       // in bytes
    size_t cursor, first;          // where keys go in, and where the part that is shown begins
    char key[KEY_BYTES + 1];       // the bytes of a key that has several, as far as they have come
    char **history;                // lines entered before
    int history_count, place;      // `place`: of the line that is shown; history_count: the new one
    char *draft;                   // the new one, while an older is shown
    unsigned char input[4096];     // what was read from the terminal
    ssize_t input_count, input_at; // and how much of it has been looked at
};

// ---- characters: UTF-8; a byte that belongs to none stands for itself

static size_t next_character(const LineEditor *editor, size_t at) {
    size_t end = at + (at < editor->length);
    if (end > at && (unsigned char)editor->line[at] >= 0xc0)
        while (end < editor->length && end < at + 4 && (editor->line[end] & 0xc0) == 0x80) end++;
    return end;
}

static size_t previous_character(const LineEditor *editor, size_t at) {
    for (size_t back = 4; back > 1; back--)
        if (at >= back && next_character(editor, at - back) == at) return at - back;
    return at - (at > 0);
}

// The columns that the character at `at` takes; `shown` is what stands for it: one that cannot be printed is a '?'.
static int columns_of(const LineEditor *editor, size_t at, const char **shown, size_t *bytes) {
    mbstate_t state = {0};
    wchar_t character;
    *shown = editor->line + at, *bytes = next_character(editor, at) - at;
    int is_whole = mbrtowc(&character, *shown, *bytes, &state) == *bytes;
    int columns = is_whole ? wcwidth(character) : -1;
    if (columns >= 0) return columns;
    *shown = editor->line[at] == '\t' ? " " : "?", *bytes = 1;
    return 1;
}

static int columns_between(const LineEditor *editor, size_t from, size_t to) {
    const char *shown;
    size_t bytes;
    int columns = 0;
    for (; from < to; from = next_character(editor, from)) columns += columns_of(editor, from, &shown, &bytes);
    return columns;
}

// ---- what keys do

static void put_bytes(LineEditor *editor, const char *bytes, size_t count) {
    if (editor->length + count > editor->capacity) {
        editor->capacity = 2 * (editor->length + count);
        editor->line = memory_resize(editor->line, editor->capacity, 1, "a line");
    }
    char *at = editor->line + editor->cursor;
    memmove(at + count, at, editor->length - editor->cursor);
    memcpy(at, bytes, count);
    editor->cursor += count, editor->length += count;
}

// Takes out what is between two places; the cursor is then there.
static void cut(LineEditor *editor, size_t from, size_t to) {
    if (from == to) return;
    memmove(editor->line + from, editor->line + to, editor->length - to);
    editor->length -= to - from;
    editor->cursor = from;
}

static int is_letter(const LineEditor *editor, size_t at) {
    return !strchr(" \t.,;:!?\"'()", editor->line[at]);
}

static size_t word_before(const LineEditor *editor) {
    size_t at = editor->cursor;
    while (at > 0 && !is_letter(editor, at - 1)) at--;
    while (at > 0 && is_letter(editor, at - 1)) at--;
    return at;
}

static size_t word_behind(const LineEditor *editor) {
    size_t at = editor->cursor;
    while (at < editor->length && !is_letter(editor, at)) at++;
    while (at < editor->length && is_letter(editor, at)) at++;
    return at;
}

static char *copy_line(const LineEditor *editor) {
    char *copy = memory_allocate(editor->length + 1, 1, "a line");
    if (editor->length) memcpy(copy, editor->line, editor->length);
    copy[editor->length] = 0;
    return copy;
}

static void show_line(LineEditor *editor, int place) {
    if (place < 0 || place > editor->history_count) return;
    if (editor->place == editor->history_count) free(editor->draft), editor->draft = copy_line(editor);
    editor->place = place;
    const char *text = place < editor->history_count ? editor->history[place] : editor->draft;
    editor->length = editor->cursor = 0;
    put_bytes(editor, text, strlen(text));
}

static void to_start(LineEditor *editor) {
    editor->cursor = 0;
}
static void to_end(LineEditor *editor) {
    editor->cursor = editor->length;
}
static void to_left(LineEditor *editor) {
    editor->cursor = previous_character(editor, editor->cursor);
}
static void to_right(LineEditor *editor) {
    editor->cursor = next_character(editor, editor->cursor);
}
static void word_left(LineEditor *editor) {
    editor->cursor = word_before(editor);
}
static void word_right(LineEditor *editor) {
    editor->cursor = word_behind(editor);
}
static void cut_before(LineEditor *editor) {
    cut(editor, previous_character(editor, editor->cursor), editor->cursor);
}
static void cut_here(LineEditor *editor) {
    cut(editor, editor->cursor, next_character(editor, editor->cursor));
}
static void cut_word_before(LineEditor *editor) {
    cut(editor, word_before(editor), editor->cursor);
}
static void cut_word(LineEditor *editor) {
    cut(editor, editor->cursor, word_behind(editor));
}
static void cut_rest(LineEditor *editor) {
    cut(editor, editor->cursor, editor->length);
}
static void cut_start(LineEditor *editor) {
    cut(editor, 0, editor->cursor);
}
static void older(LineEditor *editor) {
    show_line(editor, editor->place - 1);
}
static void newer(LineEditor *editor) {
    show_line(editor, editor->place + 1);
}
static void clear_screen(LineEditor *editor) {
    (void)editor;
    fputs("\033[H\033[2J", stderr);
}

static const struct {
    const char *bytes;
    void (*command)(LineEditor *);
} keys[] = {
    {"\x01", to_start},     {"\033[H", to_start},      {"\033OH", to_start}, {"\033[1~", to_start},
    {"\x05", to_end},       {"\033[F", to_end},        {"\033OF", to_end},   {"\033[4~", to_end},
    {"\x02", to_left},      {"\033[D", to_left},       {"\033OD", to_left},  {"\x06", to_right},
    {"\033[C", to_right},   {"\033OC", to_right},      {"\033b", word_left}, {"\033[1;5D", word_left},
    {"\033f", word_right},  {"\033[1;5C", word_right}, {"\x08", cut_before}, {"\x7f", cut_before},
    {"\033[3~", cut_here},  {"\x17", cut_word_before}, {"\033d", cut_word},  {"\033\x7f", cut_word_before},
    {"\x0b", cut_rest},     {"\x15", cut_start},       {"\x10", older},      {"\033[A", older},
    {"\033OA", older},      {"\x0e", newer},           {"\033[B", newer},    {"\033OB", newer},
    {"\x0c", clear_screen},
};

// Escape and one more byte, or escape, '[' or 'O', parameters and a byte that ends them.
static int is_unfinished(const char *key) {
    size_t length = strlen(key);
    if (key[0] != '\033' || length >= KEY_BYTES) return 0;
    if (length == 1) return 1;
    return (key[1] == '[' || key[1] == 'O') && (length == 2 || key[length - 1] < 0x40);
}

static void press(LineEditor *editor) {
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i].bytes, editor->key)) keys[i].command(editor);
}

// One byte that was typed.
static Outcome take_key(LineEditor *editor, unsigned char byte) {
    size_t length = strlen(editor->key);
    if (length == 0) {
        if (byte == '\n' || byte == '\r') return ENTERED;
        if (byte == 'C' - '@') return INTERRUPTED;
        if (byte == 'Z' - '@') return SUSPENDED;
        if (byte == 'D' - '@' && editor->length == 0) return ENDED;
        if (byte == 'D' - '@') return cut_here(editor), EDITING;
        if (byte == '\t' || (byte >= ' ' && byte != 0x7f)) return put_bytes(editor, (char *)&byte, 1), EDITING;
    }
    editor->key[length] = (char)byte, editor->key[length + 1] = 0;
    if (is_unfinished(editor->key)) return EDITING;
    press(editor);
    editor->key[0] = 0;
    return EDITING;
}

// ---- the screen: one row, which shows a part of the line when it is longer

// Moves the part that is shown, `width` columns, to where the cursor is.
static void follow_cursor(LineEditor *editor, int width) {
    size_t *first = &editor->first, cursor = editor->cursor, other;
    int columns = *first < cursor ? columns_between(editor, *first, cursor) : 0;
    if (*first >= cursor) *first = cursor;
    for (; *first > 0 && columns < width / 2; *first = other) {
        other = previous_character(editor, *first);
        columns += columns_between(editor, other, *first);
    }
    for (; columns > width; *first = other) {
        other = next_character(editor, *first);
        columns -= columns_between(editor, *first, other);
    }
    if (*first > cursor) *first = cursor; // it is among bytes that have come to be one character
}

static void draw(LineEditor *editor, FILE *screen, int columns) {
    int width = columns - (int)strlen(editor->prompt) - 1, used = 0;
    if (width < 1) width = 1;
    follow_cursor(editor, width);
    int column = (int)strlen(editor->prompt) + columns_between(editor, editor->first, editor->cursor);
    fprintf(screen, "\r%s", editor->prompt);
    for (size_t at = editor->first, bytes; at < editor->length; at = next_character(editor, at)) {
        const char *shown;
        used += columns_of(editor, at, &shown, &bytes);
        if (used > width) break;
        fwrite(shown, 1, bytes, screen);
    }
    fprintf(screen, "\033[K\r\033[%dC", column);
}

// In one write, so that nothing flickers.
static void redraw(LineEditor *editor) {
    struct winsize size = {0};
    char *text = NULL;
    size_t bytes;
    FILE *screen = open_memstream(&text, &bytes);
    if (!screen) return;
    draw(editor, screen, ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80);
    if (fclose(screen) == 0) fwrite(text, 1, bytes, stderr);
    free(text);
}

// ---- the terminal: every key is read as it is typed, but only while a line is edited

static struct termios terminal_before;
static volatile sig_atomic_t is_taken;

static void give_terminal_back(void) {
    if (is_taken) tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal_before);
    is_taken = 0;
}

static void on_ending(int number) {
    give_terminal_back();
    raise(number); // its own action has been restored
}

static void take_terminal(void) {
    static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = on_ending, .sa_flags = SA_RESETHAND | SA_NODEFER}, before;
    if (tcgetattr(STDIN_FILENO, &terminal_before)) return;
    struct termios raw = terminal_before;
    raw.c_iflag &= ~(tcflag_t)IXON;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1, raw.c_cc[VTIME] = 0;
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(ending[i], &action, NULL);
    is_taken = 1;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

static void open_terminal(LineEditor *editor) {
    const char *kind = getenv("TERM");
    editor->is_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && kind && *kind && strcmp(kind, "dumb");
    if (!editor->is_terminal) return;
    // Characters are UTF-8, unless the locale has another of many bytes.
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    atexit(give_terminal_back);
}

// ---- lines

static void add_history(LineEditor *editor) {
    char *line = copy_line(editor);
    int count = editor->history_count;
    if (!*line || (count && !strcmp(editor->history[count - 1], line))) {
        free(line);
        return;
    }
    if (count == HISTORY_LINES) {
        free(editor->history[0]);
        memmove(editor->history, editor->history + 1, (HISTORY_LINES - 1) * sizeof *editor->history);
        editor->history_count = --count;
    }
    editor->history = memory_resize(editor->history, (size_t)count + 1, sizeof *editor->history, "the lines before");
    editor->history[editor->history_count++] = line;
}

static void begin_line(LineEditor *editor) {
    editor->length = editor->cursor = editor->first = 0;
    editor->key[0] = 0;
    editor->place = editor->history_count;
}

static Outcome edit_line(LineEditor *editor) {
    for (;;) {
        while (editor->input_at < editor->input_count) {
            Outcome outcome = take_key(editor, editor->input[editor->input_at++]);
            if (outcome != EDITING) return outcome;
        }
        redraw(editor);
        editor->input_at = 0;
        editor->input_count = read(STDIN_FILENO, editor->input, sizeof editor->input);
        if (editor->input_count <= 0) return editor->input_count < 0 && errno == EINTR ? INTERRUPTED : ENDED;
    }
}

static const char *read_edited_line(LineEditor *editor, size_t *length) {
    Outcome outcome;
    begin_line(editor);
    do {
        take_terminal();
        outcome = edit_line(editor);
        redraw(editor);
        give_terminal_back();
        if (outcome == SUSPENDED) raise(SIGTSTP);
    } while (outcome == SUSPENDED);
    fputc('\n', stderr);
    if (outcome != ENTERED) editor->input_count = editor->input_at = 0;
    if (outcome == INTERRUPTED) raise(SIGINT);
    if (outcome != ENTERED) return NULL;
    add_history(editor);
    *length = editor->length;
    return editor->line ? editor->line : "";
}

static const char *read_plain_line(LineEditor *editor, size_t *length) {
    fprintf(stderr, "%s", editor->prompt);
    ssize_t count = getline(&editor->line, &editor->capacity, stdin);
    if (count < 0) return NULL;
    *length = (size_t)count - (count > 0 && editor->line[count - 1] == '\n');
    return editor->line;
}

LineEditor *line_editor_open(const char *prompt) {
    LineEditor *editor = memory_allocate_zeroed(1, sizeof *editor, "the line editor");
    editor->prompt = prompt;
    open_terminal(editor);
    return editor;
}

const char *line_editor_read(LineEditor *editor, size_t *length) {
    return editor->is_terminal ? read_edited_line(editor, length) : read_plain_line(editor, length);
}

void line_editor_close(LineEditor *editor) {
    for (int i = 0; i < editor->history_count; i++) free(editor->history[i]);
    free(editor->history), free(editor->draft);
    free(editor->line);
    free(editor);
}
