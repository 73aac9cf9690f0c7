// metrics.jsonl and main.log of a run that is resumed: whatever stands in them, whole lines of steps until there stay
// as they are and in order, and no others. The input: the step (two bytes), then the metrics and, after "\n%%\n", the
// log.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "core/base/json.h"
#include "core/train/run.h"

#include <xxhash.h>

// Every line of `path` is whole, and was there before, in this order.
static void check_lines(const char *path, Input before, int64_t step, int is_json) {
    size_t size;
    const char *text = (const char *)memory_file_get(path, &size), *old = (const char *)before.data,
               *end = old + before.size;
    for (size_t at = 0; at < size;) {
        const char *newline = memchr(text + at, '\n', size - at);
        EXPECT(newline);
        size_t length = (size_t)(newline - (text + at)) + 1;
        while (old < end) { // the line among those that stood there
            const char *stop = memchr(old, '\n', (size_t)(end - old));
            EXPECT(stop);
            size_t there = (size_t)(stop - old) + 1;
            int is_same = there == length && !memcmp(old, text + at, length);
            old += there;
            if (is_same) break;
            EXPECT(old < end);
        }
        json_t *line = is_json ? json_loadb(text + at, length, 0, NULL) : NULL;
        EXPECT(!is_json || line);
        const json_t *found = json_object_get(line, "step");
        EXPECT(!found || json_integer_value(found) <= step);
        json_decref(line);
        at += length;
    }
}

// The bytes of both files together.
static uint64_t checksum(void) {
    size_t bytes, more;
    const unsigned char *metrics = memory_file_get("run/metrics.jsonl", &bytes),
                        *log = memory_file_get("run/main.log", &more);
    return XXH3_64bits_withSeed(log, more, XXH3_64bits(metrics, bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input input = {data, size};
    Run run = {.directory = "run", .lock = -1, .metrics = -1};
    Error error;
    int64_t step = take_byte(&input) + 256 * take_byte(&input);
    Input metrics = take_part(&input), log = take_part(&input);
    memory_file_put("run/metrics.jsonl", metrics.data, metrics.size);
    memory_file_put("run/main.log", log.data, log.size);
    json_t *configuration = json_object();
    EXPECT(run_open_metrics(&run, configuration, step, &error) == 0);
    if (step > 0) check_lines("run/metrics.jsonl", metrics, step, 1);
    EXPECT(run_open_llmc_log(&run, step, &error) == 0);
    check_lines("run/main.log", log, step, 0);
    uint64_t once = checksum();
    EXPECT(step == 0 || (run_cut_metrics(&run, step, &error) == 0 && checksum() == once));
    run_close(&run);
    json_decref(configuration);
    memory_files_clear();
    return 0;
}
