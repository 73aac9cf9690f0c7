#define _GNU_SOURCE
#include "line_editor.h"
#include "core/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_LIBEDIT
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#endif

struct LineEditor {
    const char *prompt;
    char *line; // getline's
    size_t capacity;
#ifdef HAVE_LIBEDIT
    EditLine *terminal; // NULL where there is none: then getline reads
    History *history;
#endif
};

static const char *read_plain_line(LineEditor *editor, size_t *length) {
    fprintf(stderr, "%s", editor->prompt);
    ssize_t count = getline(&editor->line, &editor->capacity, stdin);
    if (count < 0) return NULL;
    *length = (size_t)count - (count > 0 && editor->line[count - 1] == '\n');
    return editor->line;
}

#ifdef HAVE_LIBEDIT

static char *prompt_of(EditLine *terminal) {
    LineEditor *editor = NULL;
    el_get(terminal, EL_CLIENTDATA, &editor);
    return (char *)editor->prompt;
}

static unsigned char on_control_c(EditLine *terminal, int key) {
    (void)terminal, (void)key;
    raise(SIGINT);
    return CC_EOF;
}

// At the prompt Ctrl-C is a key: a signal would leave the terminal as editing wants it, or be lost in the reading.
static void make_control_c_a_key(EditLine *terminal) {
    el_set(terminal, EL_SETTY, "-d", "intr=", NULL);
    el_set(terminal, EL_ADDFN, "interrupt", "raises SIGINT", on_control_c);
    el_set(terminal, EL_BIND, "^C", "interrupt", NULL);
}

// The keys for libedit's own commands: some versions crash on a command that is empty.
static void forget_commands(EditLine *terminal) {
    el_set(terminal, EL_BIND, "^[x", "ed-unassigned", NULL);
    el_set(terminal, EL_BIND, "^[X", "ed-unassigned", NULL);
    el_set(terminal, EL_BIND, "-a", ":", "ed-unassigned", NULL);
}

static void add_history(LineEditor *editor) {
    enum { LINES = 1000 };
    HistEvent event;
    editor->history = history_init();
    if (!editor->history) return;
    history(editor->history, &event, H_SETSIZE, LINES);
    history(editor->history, &event, H_SETUNIQUE, 1);
    el_set(editor->terminal, EL_HIST, history, editor->history);
}

static void open_terminal(LineEditor *editor) {
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) return;
    // Keys are characters to libedit: UTF-8, unless the locale has another of many bytes.
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    editor->terminal = el_init("slay.c", stdin, stderr, stderr);
    if (!editor->terminal) return;
    el_set(editor->terminal, EL_CLIENTDATA, editor);
    el_set(editor->terminal, EL_EDITOR, "emacs"); // keys as in a shell
    el_set(editor->terminal, EL_PROMPT, prompt_of);
    el_set(editor->terminal, EL_SIGNAL, 1); // other signals find the terminal restored
    add_history(editor);
    el_source(editor->terminal, NULL); // what the user has in ~/.editrc
    make_control_c_a_key(editor->terminal);
    forget_commands(editor->terminal);
}

// libedit takes a new size of the window over within the signal's handler, whatever it was doing to its memory: the
// signal waits until the line is there.
static const char *read_line_in_peace(EditLine *terminal, int *count) {
    sigset_t resized, before;
    sigemptyset(&resized);
    sigaddset(&resized, SIGWINCH);
    el_resize(terminal);
    pthread_sigmask(SIG_BLOCK, &resized, &before);
    const char *line = el_gets(terminal, count);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return line;
}

static const char *read_edited_line(LineEditor *editor, size_t *length) {
    HistEvent event;
    int count = 0;
    const char *line = read_line_in_peace(editor->terminal, &count);
    if (!line || count <= 0) {
        fputc('\n', stderr); // the cursor is still on the prompt's line
        return NULL;
    }
    if (editor->history && count > 1) history(editor->history, &event, H_ENTER, line);
    *length = (size_t)count - (line[count - 1] == '\n');
    return line;
}

#endif

LineEditor *line_editor_open(const char *prompt) {
    LineEditor *editor = memory_allocate_zeroed(1, sizeof *editor, "the line editor");
    editor->prompt = prompt;
#ifdef HAVE_LIBEDIT
    open_terminal(editor);
#endif
    return editor;
}

const char *line_editor_read(LineEditor *editor, size_t *length) {
#ifdef HAVE_LIBEDIT
    if (editor->terminal) return read_edited_line(editor, length);
#endif
    return read_plain_line(editor, length);
}

void line_editor_close(LineEditor *editor) {
#ifdef HAVE_LIBEDIT
    if (editor->terminal) el_end(editor->terminal);
    if (editor->history) history_end(editor->history);
#endif
    free(editor->line);
    free(editor);
}
