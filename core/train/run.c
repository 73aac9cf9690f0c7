#define _GNU_SOURCE
#include "run.h"
#include "lock.h"
#include "core/model/checkpoint.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/math/matmul.h"
#include "core/base/memory.h"
#include "core/base/progress.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static const size_t METRICS_BYTES_MAX = (size_t)4 << 30;

// ---- the directory

int run_open(Run *run, const char *directory, Error *error) {
    *run = (Run){.directory = directory, .lock = -1, .metrics = -1, .terminal = isatty(STDOUT_FILENO)};
    if (file_exists(directory) && !file_is_directory(directory))
        return error_set(error, "%.700s: expected a directory for the run, found something else; choose another --out",
                         directory);
    return file_is_directory(directory) ? lock_take(&run->lock, directory, 0, error) : 0;
}

int run_create(Run *run, Error *error) {
    if (run->lock < 0 &&
        (directory_create(run->directory, error) || lock_take(&run->lock, run->directory, O_CREAT, error)))
        return -1;
    lock_sign(run->lock);
    return 0;
}

int run_is_there(const Run *run) {
    struct stat held, named;
    char *path = path_join(run->directory, "lock");
    int same = fstat(run->lock, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
               held.st_ino == named.st_ino;
    free(path);
    return same;
}

int run_is_empty(const char *directory) {
    DIR *opened = opendir(directory);
    if (!opened) return !file_exists(directory);
    int others = 0;
    for (struct dirent *entry; (entry = readdir(opened));)
        others += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "lock");
    closedir(opened);
    return others == 0;
}

int run_is_same(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

char *run_of_checkpoint(const char *path) {
    char *copy = memory_copy_string(path), *slash;
    while ((slash = strrchr(copy, '/')) && !slash[1] && slash > copy) *slash = 0; // RUN/ is RUN
    if (!checkpoint_is(copy)) return copy;
    slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (!strcmp(name, ".") || !strcmp(name, "..")) { // only the system knows the directory's real name
        char *parent = path_join(copy, "..");
        free(copy);
        return parent;
    }
    if (slash) *slash = 0;
    return slash ? copy : strcpy(copy, ".");
}

char *run_free_name(const char *path) {
    size_t size = strlen(path) + 16;
    char *name = memory_resize(NULL, size, 1, "a path");
    snprintf(name, size, "%s", path);
    for (int number = 2; file_exists(name) && number < 10000; number++) snprintf(name, size, "%s_%d", path, number);
    return name;
}

// A copy of the metrics stays with the branch that they tell of.
static int copy_metrics(const char *directory, const char *aside, Error *error) {
    char *from = path_join(directory, "metrics.jsonl"), *to = path_join(aside, "metrics.jsonl"), *text = NULL;
    size_t size = 0;
    int failed = file_exists(from) &&
                 (file_read(&text, &size, from, METRICS_BYTES_MAX, error) || file_replace(to, text, size, error));
    free(from), free(to), free(text);
    return failed ? -1 : 0;
}

int run_set_aside(const char *directory, int64_t step, char *where, size_t size, Error *error) {
    int64_t *steps;
    int count = checkpoint_list(&steps, directory), failed = 0;
    *where = 0;
    if (count && steps[count - 1] > step) {
        char *wanted = path_join(directory, "aside"), *aside = run_free_name(wanted);
        snprintf(where, size, "%s", aside);
        failed = directory_create(aside, error) || copy_metrics(directory, aside, error);
        for (int i = 0; i < count && !failed; i++)
            if (steps[i] > step) failed = checkpoint_move(directory, steps[i], aside, error);
        free(wanted), free(aside);
    }
    free(steps);
    return failed ? -1 : 0;
}

// ---- state.json

static const int64_t STEPS_MAX = 1000000000000;        // of --steps
static const int64_t TOKENS_MAX = 1000000000000000000; // adding what a run can still see does not overflow
static const int64_t RANKS_MAX = 1 << 20, ROLLBACKS_MAX = 1000000;
static const double SECONDS_MAX = 1e12;

// A number that may be missing.
static int read_number(double *number, const json_t *json, const char *key, double least, double most, const char *file,
                       Error *error) {
    const json_t *value = json_object_get(json, key);
    if (!value) return 0;
    *number = json_number_value(value);
    if (json_is_number(value) && *number >= least && *number <= most) return 0;
    return error_set(error, "%.700s: \"%s\": expected a number from %g to %g; the file is damaged", file, key, least,
                     most);
}

int run_state_from_json(RunState *state, const json_t *json, const char *path, Error *error) {
    char *file = path_join(path, "state.json");
    int64_t ranks = 1, rollbacks = 0;
    *state = (RunState){.rate_factor = 1};
    int failed =
        json_read_whole(&state->step, json, "step", 0, STEPS_MAX, file, error) ||
        json_read_whole(&state->tokens, json, "tokens", 0, TOKENS_MAX, file, error) ||
        (json_object_get(json, "ranks") && json_read_whole(&ranks, json, "ranks", 1, RANKS_MAX, file, error)) ||
        (json_object_get(json, "rollbacks") &&
         json_read_whole(&rollbacks, json, "rollbacks", 0, ROLLBACKS_MAX, file, error)) ||
        read_number(&state->rate_factor, json, "rate_factor", 0, 1, file, error) ||
        read_number(&state->seconds, json, "seconds", 0, SECONDS_MAX, file, error);
    state->ranks = (int)ranks, state->rollbacks = (int)rollbacks;
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
    if (file_read(&text, &size, path, METRICS_BYTES_MAX, error)) return -1;
    size_t kept = keep_until_step(text, size, step);
    int result = kept < size ? file_replace(path, text, kept, error) : 0;
    free(text);
    return result;
}

// A line is in the file as a whole or not at all. A failure is reported once; the run goes on without the line.
static void write_line(Run *run, const char *text) {
    if (run->metrics < 0) return;
    size_t length = strlen(text), written = 0;
    errno = 0;
    while (written < length) {
        ssize_t count = write(run->metrics, text + written, length - written);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        written += (size_t)count;
    }
    if (written == length) {
        run->metrics_at += (int64_t)length;
        return;
    }
    int failure = errno ? errno : EIO;
    if (run->lines_lost++ == 0)
        warn("%.700s/metrics.jsonl: cannot write: %s; the run goes on without these lines", run->directory,
             strerror(failure));
    if (ftruncate(run->metrics, (off_t)run->metrics_at) != 0) return; // a broken line stays; readers pass over it
}

static void write_json(Run *run, const json_t *line) {
    char *text = json_print(line, JSON_REAL_PRECISION(9));
    size_t size = strlen(text) + 2;
    text = memory_resize(text, size, 1, "a line of metrics");
    memcpy(text + size - 2, "\n", 2);
    write_line(run, text);
    free(text);
}

static int open_metrics_file(Run *run, int keep, Error *error) {
    char *path = path_join(run->directory, "metrics.jsonl");
    struct stat status = {0};
    run->metrics = file_open_log(path, keep, error);
    run->metrics_at = run->metrics >= 0 && fstat(run->metrics, &status) == 0 ? (int64_t)status.st_size : 0;
    free(path);
    return run->metrics < 0 ? -1 : 0;
}

// ---- llm.c's main.log

// Whether the line was there when so many steps had been done: "s:9 trl:" is the tenth, "s:9 tel:" comes after nine.
static int is_line_until(const char *line, int64_t step) {
    char *end;
    if (strncmp(line, "s:", 2) || !isdigit((unsigned char)line[2])) return 0;
    long long number = strtoll(line + 2, &end, 10);
    return *end == ' ' && number <= step - !strncmp(end + 1, "trl:", 4);
}

static int cut_llmc_log(const Run *run, int64_t step, Error *error) {
    char *path = path_join(run->directory, "main.log"), *text = NULL;
    size_t size = 0, kept = 0, length;
    int failed = file_exists(path) && file_read(&text, &size, path, METRICS_BYTES_MAX, error);
    for (size_t start = 0; !failed && start < size; start += length) {
        const char *end = memchr(text + start, '\n', size - start);
        length = end ? (size_t)(end - (text + start)) + 1 : size - start;
        if (!end || !is_line_until(text + start, step)) continue;
        memmove(text + kept, text + start, length), kept += length;
    }
    if (!failed) failed = file_replace(path, text ? text : "", kept, error);
    free(path), free(text);
    return failed ? -1 : 0;
}

int run_open_llmc_log(Run *run, int64_t step, Error *error) {
    if (cut_llmc_log(run, step, error)) return -1;
    run->llmc_log = 1;
    return 0;
}

// The file is opened for each line, as llm.c does it.
static void write_llmc_line(Run *run, const char *line) {
    Error error;
    if (!run->llmc_log) return;
    char *path = path_join(run->directory, "main.log");
    int file = file_open_log(path, 1, &error);
    if (file < 0 || write(file, line, strlen(line)) != (ssize_t)strlen(line)) {
        warn("%.700s: cannot write; the run goes on without it", path);
        run->llmc_log = 0;
    }
    if (file >= 0) close(file);
    free(path);
}

int run_cut_metrics(Run *run, int64_t step, Error *error) {
    char *path = path_join(run->directory, "metrics.jsonl");
    if (run->metrics >= 0) close(run->metrics), run->metrics = -1;
    int failed = drop_later_steps(path, step, error);
    free(path);
    events_restart(&run->events, step + 1);
    if (run->llmc_log && cut_llmc_log(run, step, error)) return -1;
    return failed || open_metrics_file(run, 1, error) ? -1 : 0;
}

int run_open_metrics(Run *run, const json_t *configuration, int64_t step, Error *error) {
    char *path = path_join(run->directory, "metrics.jsonl");
    int fresh = step == 0 || !file_exists(path);
    int failed = fresh ? open_metrics_file(run, 0, error) : run_cut_metrics(run, step, error);
    free(path);
    if (failed || !fresh) return failed;
    write_json(run, configuration);
    return 0;
}

int run_open_events(Run *run, const json_t *configuration, int64_t step, Error *error) {
    if (events_open(&run->events, run->directory, step ? step + 1 : 0, error)) return -1;
    if (step > 0) return 0; // the run's first session has told it
    char *text = json_print(configuration, JSON_INDENT(4) | JSON_REAL_PRECISION(9));
    events_text(&run->events, 0, "configuration/text_summary", text);
    events_options(&run->events, json_object_get(configuration, "options"));
    free(text);
    return 0;
}

void run_close(Run *run) {
    events_close(&run->events);
    if (run->metrics >= 0) close(run->metrics);
    if (run->lock >= 0) lock_release(run->lock);
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

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The parts of a step line in their order. On a terminal those that matter least are left out until the line fits: one
// that is wider than the terminal cannot be updated in place.
static void print_step(Run *run, const StepReport *r) {
    enum { STEP, LOSS, NORM, RATE, TIME, SPEED, FLOPS, ELAPSED, LEFT, PARTS };
    static const int least_first[] = {FLOPS, TIME, RATE, ELAPSED, NORM, SPEED, LEFT};
    char parts[PARTS][80], rate[16], elapsed[32], remaining[32], line[PARTS * 80];
    int width = snprintf(line, sizeof line, "%lld", (long long)r->steps), dropped = 0;
    snprintf(parts[STEP], 80, "step %*lld/%lld", width, (long long)r->step, (long long)r->steps);
    snprintf(parts[LOSS], 80, "  loss %7.4f", r->loss);
    snprintf(parts[NORM], 80, "  norm %6.3f", r->norm);
    snprintf(parts[RATE], 80, "  lr %.2e", r->rate);
    snprintf(parts[TIME], 80, "  %6.0f ms", 1e3 * r->seconds);
    snprintf(parts[SPEED], 80, "  %6s tok/s", short_number((double)r->batch_tokens / r->seconds, rate));
    snprintf(parts[FLOPS], 80, "  %5.0f GFLOP/s (%2.0f%%)", r->gflops, 100 * r->gflops / r->machine_gflops);
    snprintf(parts[ELAPSED], 80, "  %s,", duration_text(r->elapsed, elapsed));
    snprintf(parts[LEFT], 80, " %s left", duration_text(r->remaining, remaining));
    for (;;) {
        int used = 0;
        for (int i = 0; i < PARTS; i++) used += snprintf(line + used, sizeof line - (size_t)used, "%s", parts[i]);
        if (!run->terminal || used < terminal_columns() || dropped == sizeof least_first / sizeof *least_first) break;
        parts[least_first[dropped++]][0] = 0;
    }
    printf(run->terminal ? "\r%s\033[K" : "%s\n", line);
    run->line_open = run->terminal;
    fflush(stdout);
}

void run_report_step(Run *run, const StepReport *r) {
    char line[1024], floored[48] = "";
    if (!run->quiet) print_step(run, r);
    if (r->floored_rows) snprintf(floored, sizeof floored, ", \"floored_rows\": %lld", (long long)r->floored_rows);
    snprintf(line, sizeof line,
             "{\"type\": \"step\", \"step\": %lld, \"tokens\": %lld, \"loss\": %.6f, \"norm\": %.6f, \"lr\": %.6e, "
             "\"ms\": %.3f, \"tokens_per_second\": %.1f, \"gflops\": %.1f, \"seconds\": %.3f%s}\n",
             (long long)r->step, (long long)r->tokens, r->loss, r->norm, r->rate, 1e3 * r->seconds,
             (double)r->batch_tokens / r->seconds, r->gflops, r->elapsed, floored);
    write_line(run, line);
    const Scalar scalars[] = {{"train/loss", r->loss},
                              {"train/norm", r->norm},
                              {"train/lr", r->rate},
                              {"train/tokens_per_second", (double)r->batch_tokens / r->seconds},
                              {"train/tokens", (double)r->tokens}};
    events_scalars(&run->events, r->step, scalars, sizeof scalars / sizeof *scalars);
    snprintf(line, sizeof line, "s:%lld trl:%.4f lr:%.6f norm:%.2f\n", (long long)r->step - 1, r->loss, r->rate,
             r->norm);
    write_llmc_line(run, line);
}

void run_report_validation(Run *run, const ValidationReport *r) {
    char bits[32] = "", json_bits[48] = "null", line[1024];
    if (r->bits_per_byte > 0) {
        snprintf(bits, sizeof bits, "  bits/byte %.4f", r->bits_per_byte);
        snprintf(json_bits, sizeof json_bits, "%.6f", r->bits_per_byte);
    }
    run_print(run, "validation at step %lld  loss %.4f  perplexity %.2f%s  (%lld tokens)", (long long)r->step, r->loss,
              exp(r->loss), bits, (long long)r->tokens);
    snprintf(line, sizeof line,
             "{\"type\": \"validation\", \"step\": %lld, \"loss\": %.6f, \"perplexity\": %.6f, \"bits_per_byte\": %s, "
             "\"tokens\": %lld}\n",
             (long long)r->step, r->loss, fmin(exp(r->loss), 1e300), json_bits, (long long)r->tokens);
    write_line(run, line);
    const Scalar scalars[] = {{"validation/loss", r->loss},
                              {"validation/perplexity", exp(r->loss)},
                              {"validation/bits_per_byte", r->bits_per_byte}};
    events_scalars(&run->events, r->step, scalars, r->bits_per_byte > 0 ? 3 : 2);
    snprintf(line, sizeof line, "s:%lld tel:%.4f\n", (long long)r->step, r->loss);
    write_llmc_line(run, line);
}

void run_report_sample(Run *run, int64_t step, const char *text) {
    run_print(run, "sample at step %lld: %s", (long long)step, text);
    json_t *line = json_pack("{s:s, s:I, s:s}", "type", "sample", "step", (json_int_t)step, "text", text);
    write_json(run, json_made(line, "a sample"));
    json_decref(line);
    events_text(&run->events, step, "sample/text_summary", text);
}

void run_report_evaluation(Run *run, int64_t step, const char *set, const ChoiceReport *r) {
    char text[256];
    run_print(run, "evaluation at step %lld  %s  %s", (long long)step, set, choice_report_text(r, text, sizeof text));
    json_t *line = json_pack(
        "{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:i}", "type", "evaluation", "step", (json_int_t)step, "set",
        json_readable(set), "accuracy", json_number(r->accuracy), "standard_error", json_number(r->standard_error),
        "accuracy_per_token", json_number(r->per_token), "accuracy_per_character",
        r->per_character < 0 ? json_null() : json_number(r->per_character), "examples", r->examples);
    write_json(run, json_made(line, "an evaluation"));
    json_decref(line);
    const char *slash = strrchr(set, '/'), *name = slash ? slash + 1 : set;
    char tags[3][160];
    snprintf(tags[0], sizeof *tags, "%.100s/accuracy", name);
    snprintf(tags[1], sizeof *tags, "%.100s/accuracy_per_token", name);
    snprintf(tags[2], sizeof *tags, "%.100s/accuracy_per_character", name);
    const Scalar scalars[] = {{tags[0], r->accuracy}, {tags[1], r->per_token}, {tags[2], r->per_character}};
    events_scalars(&run->events, step, scalars, r->per_character < 0 ? 2 : 3);
    snprintf(text, sizeof text, "s:%lld eval:%.4f\n", (long long)step, r->per_token);
    write_llmc_line(run, text);
}

void run_report_event(Run *run, int64_t step, const char *event, const char *text) {
    run_print(run, "%s", text);
    json_t *line = json_pack("{s:s, s:I, s:s, s:o}", "type", "event", "step", (json_int_t)step, "event", event, "text",
                             json_readable(text));
    write_json(run, json_made(line, "an event"));
    json_decref(line);
}

void run_report_done(Run *run, int64_t step, int64_t tokens, double elapsed) {
    char line[256];
    snprintf(line, sizeof line,
             "{\"type\": \"done\", \"step\": %lld, \"tokens\": %lld, \"seconds\": %.3f, \"peak_memory_mb\": %.1f}\n",
             (long long)step, (long long)tokens, elapsed, (double)memory_peak_bytes() / 1e6);
    write_line(run, line);
}

// ---- signals

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    if (caught == SIGINT && number == SIGINT) _exit(128 + SIGINT);
    caught = number == SIGUSR1 ? SIGTERM : number;
}

void run_catch_signals(void) {
    static const int always[] = {SIGINT, SIGTERM, SIGUSR1}, unless_ignored[] = {SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGXFSZ, &ignore, NULL); // a file that may not grow is a failed write, not the end
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) sigaction(always[i], &action, NULL);
    for (size_t i = 0; i < sizeof unless_ignored / sizeof *unless_ignored; i++)
        if (sigaction(unless_ignored[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(unless_ignored[i], &action, NULL);
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
