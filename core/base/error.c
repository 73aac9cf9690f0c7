#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program_name = "slay.c";
static int program_rank = -1, has_failed;

const char *error_program(void) {
    return program_name;
}

void error_set_rank(int rank) {
    program_rank = rank;
}

int error_set(Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return -1;
}

int error_prefix(Error *error, const char *prefix) {
    Error inner = *error;
    return error_set(error, "%.400s: %.600s", prefix, inner.text);
}

// A message is one line whatever is in it: names taken from files may hold line breaks or terminal codes.
static void print_line(const char *kind, const char *text) {
    char line[1200];
    size_t n = 0;
    for (; text[n] && n < sizeof line - 1; n++) line[n] = (unsigned char)text[n] < 32 ? '?' : text[n];
    line[n] = 0;
    char rank[24] = "";
    if (program_rank >= 0 && !kind[0]) snprintf(rank, sizeof rank, "rank %d: ", program_rank);
    fflush(stdout);
    fprintf(stderr, "%s: %s%s%s\n", program_name, rank, kind, line);
}

// A program whose output did not arrive fails, however it ends. The reason is known only while writing keeps failing.
static void finish_output(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return;
    int reason = errno;
    if (!has_failed) {
        char text[200];
        snprintf(text, sizeof text, "standard output: cannot write: %s", reason ? strerror(reason) : "output was lost");
        print_line("", text);
    }
    fflush(NULL);
    _exit(1); // a function that runs at exit cannot change the exit code in any other way
}

void error_set_program(const char *argv0) {
    const char *slash = strrchr(argv0, '/');
    program_name = slash ? slash + 1 : argv0;
    if (atexit(finish_output)) die("not enough memory");
}

void error_print(const Error *error) {
    print_line("", error->text);
}

void die(const char *format, ...) {
    char text[1100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_line("", text);
    has_failed = 1;
    exit(1);
}

void die_if(int status, const Error *error) {
    if (status != 0) die("%s", error->text);
}

void warn(const char *format, ...) {
    if (program_rank > 0) return; // the others would say the same
    char text[1100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_line("warning: ", text);
}
