#define _GNU_SOURCE
#include "run.h"
#include "file.h"
#include "json.h"
#include "matmul.h"
#include "memory.h"
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

int run_open(Run *run, const char *directory, Error *error) {
    *run = (Run){.directory = directory, .lock = -1, .terminal = isatty(STDOUT_FILENO)};
    if (directory_create(directory, error)) return -1;
    char *path = path_join(directory, "lock");
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int failed = run->lock < 0, taken = !failed && flock(run->lock, LOCK_EX | LOCK_NB) != 0;
    if (failed) error_set(error, "%.700s: cannot create: %s; choose another --out", path, strerror(errno));
    if (taken)
        error_set(error, "%.700s: another run is using this directory; wait for it or choose another --out", directory);
    free(path);
    return failed || taken ? -1 : 0;
}

// ---- state.json

static const int64_t STEPS_MAX = 1000000000000;        // of --steps
static const int64_t TOKENS_MAX = 1000000000000000000; // adding what a run can still see does not overflow
static const int64_t RANKS_MAX = 1 << 20;
static const double SECONDS_MAX = 1e12;

int run_state_from_json(RunState *state, const json_t *json, const char *path, Error *error) {
    char *file = path_join(path, "state.json");
    const json_t *seconds = json_object_get(json, "seconds");
    int64_t ranks = 1;
    int failed = json_read_whole(&state->step, json, "step", 0, STEPS_MAX, file, error) ||
                 json_read_whole(&state->tokens, json, "tokens", 0, TOKENS_MAX, file, error) ||
                 (json_object_get(json, "ranks") && json_read_whole(&ranks, json, "ranks", 1, RANKS_MAX, file, error));
    state->seconds = json_number_value(seconds); // 0 when there are none
    state->ranks = (int)ranks;
    if (!failed && seconds && !(json_is_number(seconds) && state->seconds >= 0 && state->seconds <= SECONDS_MAX))
        failed = error_set(error, "%.700s: \"seconds\": expected a number from 0 to %g; the file is damaged", file,
                           SECONDS_MAX);
    free(file);
    return failed ? -1 : 0;
}

// ---- metrics.jsonl

// The text of the old metrics without the lines of steps after `step`; a line cut short by a crash goes too.
static size_t keep_until_step(char *text, size_t size, int64_t step) {
    size_t kept = 0;
    for (size_t start = 0; start < size;) {
        char *end = memchr(text + start, '\n', size - start);
        if (!end) break;
        size_t length = (size_t)(end - (text + start)) + 1;
        json_t *line = json_loadb(text + start, length, 0, NULL);
        const json_t *line_step = json_object_get(line, "step");
        int keep = line && (!line_step || json_integer_value(line_step) <= step);
        json_decref(line);
        if (keep) memmove(text + kept, text + start, length), kept += length;
        start += length;
    }
    return kept;
}

static int drop_later_steps(const char *path, int64_t step, Error *error) {
    char *text;
    size_t size;
    if (!file_exists(path)) return 0;
    if (file_read(&text, &size, path, (size_t)4 << 30, error)) return -1;
    int result = file_replace(path, text, keep_until_step(text, size, step), error);
    free(text);
    return result;
}

int run_open_metrics(Run *run, const json_t *configuration, int64_t step, Error *error) {
    char *path = path_join(run->directory, "metrics.jsonl");
    int failed = step > 0 && drop_later_steps(path, step, error);
    if (!failed) {
        int fresh = step == 0 || !file_exists(path);
        run->metrics = file_open_log(path, !fresh, error);
        failed = run->metrics == NULL;
        char *line = !failed && fresh ? json_print(configuration, JSON_REAL_PRECISION(9)) : NULL;
        if (line) fprintf(run->metrics, "%s\n", line);
        free(line);
    }
    free(path);
    return failed ? -1 : 0;
}

void run_close(Run *run) {
    if (run->metrics) fclose(run->metrics);
    if (run->lock >= 0) close(run->lock);
}

char *run_of_checkpoint(const char *path) {
    char *copy = memory_copy_string(path), *slash;
    while ((slash = strrchr(copy, '/')) && !slash[1] && slash > copy) *slash = 0; // RUN/ is RUN
    slash = strrchr(copy, '/');
    if (strncmp(slash ? slash + 1 : copy, "step_", 5)) return copy;
    if (slash) *slash = 0;
    return slash ? copy : strcpy(copy, ".");
}

// ---- the console

// Ends a step line that stands open on the terminal, so that what follows starts on a line of its own.
static void close_line(Run *run) {
    if (run->line_open) printf("\n");
    run->line_open = 0;
}

void run_print(Run *run, const char *format, ...) {
    if (run->quiet) return;
    close_line(run);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

// 1234567 -> "1.23M": a rate that fits its column.
static const char *short_number(double number, char text[16]) {
    if (number >= 1e6)
        snprintf(text, 16, "%.2fM", number / 1e6);
    else if (number >= 1e4)
        snprintf(text, 16, "%.1fk", number / 1e3);
    else
        snprintf(text, 16, "%.0f", number);
    return text;
}

static void print_step(Run *run, const StepReport *r) {
    char rate[16], elapsed[32], remaining[32], line[256];
    int width = snprintf(line, sizeof line, "%lld", (long long)r->steps);
    snprintf(
        line, sizeof line,
        "step %*lld/%lld  loss %7.4f  norm %6.3f  lr %.2e  %6.0f ms  %6s tok/s  %5.0f GFLOP/s (%2.0f%%)  %s, %s left",
        width, (long long)r->step, (long long)r->steps, r->loss, r->norm, r->rate, 1e3 * r->seconds,
        short_number((double)r->batch_tokens / r->seconds, rate), r->gflops, 100 * r->gflops / r->machine_gflops,
        duration_text(r->elapsed, elapsed), duration_text(r->remaining, remaining));
    printf(run->terminal ? "\r%s\033[K" : "%s\n", line);
    run->line_open = run->terminal;
    fflush(stdout);
}

void run_report_step(Run *run, const StepReport *r) {
    if (!run->quiet) print_step(run, r);
    if (!run->metrics) return;
    fprintf(run->metrics,
            "{\"type\": \"step\", \"step\": %lld, \"tokens\": %lld, \"loss\": %.6f, \"norm\": %.6f, \"lr\": %.6e, "
            "\"ms\": %.3f, \"tokens_per_second\": %.1f, \"gflops\": %.1f, \"seconds\": %.3f",
            (long long)r->step, (long long)r->tokens, r->loss, r->norm, r->rate, 1e3 * r->seconds,
            (double)r->batch_tokens / r->seconds, r->gflops, r->elapsed);
    if (r->floored_rows) fprintf(run->metrics, ", \"floored_rows\": %lld", (long long)r->floored_rows);
    fputs("}\n", run->metrics);
    fflush(run->metrics);
}

void run_report_validation(Run *run, const ValidationReport *r) {
    char bits[32] = "", json_bits[48] = "null";
    if (r->bits_per_byte > 0) {
        snprintf(bits, sizeof bits, "  bits/byte %.4f", r->bits_per_byte);
        snprintf(json_bits, sizeof json_bits, "%.6f", r->bits_per_byte);
    }
    run_print(run, "validation at step %lld  loss %.4f  perplexity %.2f%s  (%lld tokens)", (long long)r->step, r->loss,
              exp(r->loss), bits, (long long)r->tokens);
    if (!run->metrics) return;
    fprintf(run->metrics,
            "{\"type\": \"validation\", \"step\": %lld, \"loss\": %.6f, \"perplexity\": %.6f, \"bits_per_byte\": %s, "
            "\"tokens\": %lld}\n",
            (long long)r->step, r->loss, fmin(exp(r->loss), 1e300), json_bits, (long long)r->tokens);
    fflush(run->metrics);
}

void run_report_event(Run *run, int64_t step, const char *event, const char *text) {
    run_print(run, "%s", text);
    if (!run->metrics) return;
    json_t *line = json_pack("{s:s, s:I, s:s, s:o}", "type", "event", "step", (json_int_t)step, "event", event, "text",
                             json_readable(text));
    char *dumped = json_print(line, 0);
    fprintf(run->metrics, "%s\n", dumped);
    fflush(run->metrics);
    free(dumped);
    json_decref(line);
}

void run_report_done(Run *run, int64_t step, int64_t tokens, double elapsed) {
    if (!run->metrics) return;
    fprintf(run->metrics,
            "{\"type\": \"done\", \"step\": %lld, \"tokens\": %lld, \"seconds\": %.3f, \"peak_memory_mb\": %.1f}\n",
            (long long)step, (long long)tokens, elapsed, (double)memory_peak_bytes() / 1e6);
    fflush(run->metrics);
}

// ---- signals

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    if (caught == SIGINT && number == SIGINT) _exit(128 + SIGINT);
    caught = number == SIGUSR1 ? SIGTERM : number;
}

void run_catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

int run_signal(void) {
    return caught;
}

// ---- the machine

static void processor_name(char *name, size_t size) {
    char text[4096] = ""; // the first core's entry is well within it
    int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, text, sizeof text - 1) < 0) text[0] = 0;
    if (file >= 0) close(file);
    const char *line = strstr(text, "model name"), *colon = line ? strstr(line, ": ") : NULL;
    if (colon)
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    else
        snprintf(name, size, "unknown");
}

json_t *run_machine(void) {
    char processor[128], now[32];
    struct utsname system = {0};
    time_t seconds = time(NULL);
    processor_name(processor, sizeof processor);
    uname(&system);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime(&seconds));
    json_t *machine = json_pack("{s:o, s:i, s:f, s:o, s:s, s:s, s:s, s:s}", "processor", json_readable(processor),
                                "threads", omp_get_max_threads(), "memory_gb",
                                (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9, "system",
                                json_readable(system.release), "blas", matmul_library(), "compiler", __VERSION__,
                                "precision", sizeof(real) == 4 ? "fp32" : "fp64", "started", now);
    return json_made(machine, "the machine");
}
