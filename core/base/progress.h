// Progress of long work, on standard error: one line that updates on a terminal, a line now and then in a pipe.
#ifndef CORE_PROGRESS_H
#define CORE_PROGRESS_H

#include <stdint.h>

typedef struct {
    const char *what, *unit; // "encode", "MB"
    double total, scale;     // amounts are divided by `scale` for printing
    double start, last_shown;
    int terminal, shown;
} Progress;

// Nothing is printed until two seconds have passed: short work stays silent.
void progress_start(Progress *progress, const char *what, double total, double scale, const char *unit);
void progress_update(Progress *progress, double done);
void progress_end(Progress *progress);

double clock_seconds(void); // monotonic
// "7 s", "3 min 20 s", "2 h 05 min"
const char *duration_text(double seconds, char text[32]);

#endif
