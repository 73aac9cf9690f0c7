// Lines that somebody types: at a terminal with the keys of a shell (emacs) and a history, else as they come. The
// prompt is written to standard error, so that standard output can be piped.
#ifndef CORE_LINE_EDITOR_H
#define CORE_LINE_EDITOR_H

#include <stddef.h>

typedef struct LineEditor LineEditor;

LineEditor *line_editor_open(const char *prompt);
// The next line of standard input without its end; valid until the next call. NULL when there is none, and after
// Ctrl-C, which raises SIGINT as ever.
const char *line_editor_read(LineEditor *editor, size_t *length);
void line_editor_close(LineEditor *editor);

#endif
