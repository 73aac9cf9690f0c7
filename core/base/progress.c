#define _GNU_SOURCE
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *duration_text(double seconds, char text[32]) {
    long s = seconds > 0 && seconds < 1e9 ? (long)(seconds + 0.5) : 0;
    if (s < 60)
        snprintf(text, 32, "%ld s", s);
    else if (s < 3600)
        snprintf(text, 32, "%ld min %02ld s", s / 60, s % 60);
    else
        snprintf(text, 32, "%ld h %02ld min", s / 3600, s / 60 % 60);
    return text;
}

void progress_start(Progress *progress, const char *what, double total, double scale, const char *unit) {
    double now = clock_seconds();
    *progress = (Progress){what, unit, total, scale, now, now, isatty(STDERR_FILENO), 0};
}

void progress_update(Progress *progress, double done) {
    double now = clock_seconds(), elapsed = now - progress->start;
    double pause = progress->terminal ? 0.2 : 10.0;
    if (elapsed < 2.0 || now - progress->last_shown < pause || done <= 0) return;
    char remaining[32];
    duration_text(elapsed * (progress->total - done) / done, remaining);
    fprintf(stderr, "%s%s %5.1f%%  %.1f of %.1f %s  %.1f %s/s  %s left%s", progress->terminal ? "\r" : "",
            progress->what, 100.0 * done / progress->total, done / progress->scale, progress->total / progress->scale,
            progress->unit, done / progress->scale / elapsed, progress->unit, remaining,
            progress->terminal ? "\033[K" : "\n");
    progress->last_shown = now;
    progress->shown = 1;
}

void progress_end(Progress *progress) {
    if (progress->shown && progress->terminal) fprintf(stderr, "\r\033[K");
}
