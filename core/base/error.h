// Errors. Whatever reads a file or an option returns 0, or -1 with one line of text that names the thing, what was
// expected, what was found and what to do. Programs print that line and leave with exit code 1.
#ifndef CORE_ERROR_H
#define CORE_ERROR_H

#include <stddef.h>

typedef struct {
    char text[1024];
} Error;

#if defined(__GNUC__)
#define PRINTF_LIKE(text, rest) __attribute__((format(printf, text, rest)))
#else
#define PRINTF_LIKE(text, rest)
#endif

// Fills in the text and returns -1, so that a reader can say `return error_set(error, "...", ...)`.
int error_set(Error *error, const char *format, ...) PRINTF_LIKE(2, 3);

// Puts `prefix: ` in front of an error's text; returns -1.
int error_prefix(Error *error, const char *prefix);

// Prints `program: message` on standard error and exits with code 1.
void die(const char *format, ...) __attribute__((noreturn)) PRINTF_LIKE(1, 2);

// Prints `program: message` on standard error.
void error_print(const Error *error);

// Ends the program with the error's text when `status` is not 0.
void die_if(int status, const Error *error);

// Prints `program: warning: message` on standard error.
void warn(const char *format, ...) PRINTF_LIKE(1, 2);

// The name that messages start with; set it once at the top of main from argv[0]. From then on the program ends with
// exit code 1 and a line that says so when standard output could not be written.
void error_set_program(const char *argv0);
const char *error_program(void);
// With many processes: messages name the rank from now on, and only rank 0 warns. A rank below 0 ends that.
void error_set_rank(int rank);

#endif
