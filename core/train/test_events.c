// TensorBoard's event files: checksums against published values, the framing and the fields of every record read back
// byte by byte, files of several sessions. scripts/test_tensorboard.sh asks TensorBoard itself.
#define _GNU_SOURCE
#include "events.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

// RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
static void checksums(void) {
    unsigned char bytes[32];
    CHECK(events_crc32c("123456789", 9) == 0xE3069283u);
    CHECK(events_crc32c(memset(bytes, 0, 32), 32) == 0x8A9136AAu);
    CHECK(events_crc32c(memset(bytes, 0xFF, 32), 32) == 0x62A8AB43u);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    CHECK(events_crc32c(bytes, 32) == 0x46DD794Eu);
    CHECK(events_crc32c("", 0) == 0);
    CHECK(events_masked_crc32c("", 0) == 0xA282EAD8u);
}

// ---- a reader that shares nothing with the writer but the checksum

static char *directory;
static char *text;
static size_t size, at;

static uint64_t little_endian(size_t from, int bytes) {
    uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; i--) number = number << 8 | (unsigned char)text[from + (size_t)i];
    return number;
}

// The next record's data and length; 0 at the end. A broken record fails the test.
static size_t next_record(const char **data) {
    if (at == size) return 0;
    CHECK(at + 16 <= size);
    uint64_t length = little_endian(at, 8);
    CHECK(little_endian(at + 8, 4) == events_masked_crc32c(text + at, 8));
    CHECK(length <= size && at + 16 + length <= size);
    *data = text + at + 12;
    CHECK(little_endian(at + 12 + length, 4) == events_masked_crc32c(*data, length));
    at += 16 + length;
    return length;
}

static int file_names(char names[8][256]) {
    DIR *opened = opendir(directory);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(opened));)
        if (!strncmp(entry->d_name, "events.out.tfevents.", 20)) snprintf(names[count++], 256, "%s", entry->d_name);
    closedir(opened);
    return count;
}

static void open_directory(void) {
    static char pattern[64];
    snprintf(pattern, sizeof pattern, "/tmp/test_events_XXXXXX");
    directory = mkdtemp(pattern);
    CHECK(directory != NULL);
}

static void read_file(const char *path) {
    Error error;
    free(text);
    at = 0;
    CHECK(file_read(&text, &size, path, 1 << 20, &error) == 0);
}

static void remove_all(void) {
    Error error;
    free(text), text = NULL;
    CHECK(directory_remove(directory, &error) == 0);
}

// Whether a record holds these bytes.
static int holds(const char *data, size_t length, const char *bytes, size_t count) {
    return memmem(data, length, bytes, count) != NULL;
}
#define HOLDS(bytes) holds(data, length, bytes, sizeof(bytes) - 1)

static void records(void) {
    Events events;
    Error error;
    const char *data;
    const Scalar scalars[] = {{"a", 1.5}, {"b/c", -2}};
    open_directory();
    CHECK(events_open(&events, directory, 0, &error) == 0);
    events_scalars(&events, 300, scalars, 2);
    events_text(&events, 7, "words", "two\nlines");
    char *path = memory_copy_string(events.path);
    events_close(&events);
    read_file(path);
    size_t length = next_record(&data);
    CHECK(length == 9 + 15 && data[0] == 0x09 &&
          HOLDS("\x1a\x0d"
                "brain.Event:2")); // wall_time = 1 is a double; file_version = 3
    length = next_record(&data);
    CHECK(length == 9 + 4 && HOLDS("\x3a\x02\x08\x01")); // session_log = 7: status = 1 is START
    length = next_record(&data);
    CHECK(HOLDS("\x10\xac\x02")); // step = 2: 300 in two bytes
    CHECK(HOLDS("\x0a\x08\x0a\x01"
                "a\x15\x00\x00\xc0\x3f")); // value = 1: tag = 1, simple_value = 2: 1.5
    CHECK(HOLDS("\x0a\x0a\x0a\x03"
                "b/c\x15\x00\x00\x00\xc0"));
    length = next_record(&data);
    CHECK(HOLDS("\x10\x07") && HOLDS("\x0a\x05words") && HOLDS("\x0a\x04text")); // step, tag, plugin_name
    CHECK(HOLDS("\x42\x13\x08\x07\x12\x04\x12\x02\x08\x01\x42\x09two\nlines"));  // tensor = 8: one string
    CHECK(next_record(&data) == 0);
    free(path);
    remove_all();
}

static void options_of_a_run(void) {
    Events events;
    Error error;
    const char *data;
    json_t *options = json_pack("{s:f, s:b, s:s, s:i}", "lr", 0.5, "flag", 1, "name", "slay", "batch", 8);
    open_directory();
    CHECK(events_open(&events, directory, 0, &error) == 0);
    events_options(&events, options);
    read_file(events.path);
    next_record(&data), next_record(&data);
    size_t length = next_record(&data);
    CHECK(HOLDS("_hparams_/session_start_info") && HOLDS("hparams"));
    CHECK(HOLDS("\x0a\x02lr\x12\x09\x11\x00\x00\x00\x00\x00\x00\xe0\x3f")); // number_value = 2
    CHECK(HOLDS("\x0a\x04"
                "flag\x12\x02\x20\x01"));             // bool_value = 4
    CHECK(HOLDS("\x0a\x04name\x12\x06\x1a\x04slay")); // string_value = 3
    json_decref(options);
    events_close(&events);
    remove_all();
}

// Three sessions within a second: their names are in their order, and each says where it begins.
static void sessions(void) {
    char names[8][256], last[256] = "";
    const char *data;
    Error error;
    open_directory();
    for (int session = 0; session < 3; session++) {
        Events events;
        CHECK(events_open(&events, directory, 10 * session, &error) == 0);
        const char *name = strrchr(events.path, '/') + 1;
        CHECK(strcmp(name, last) > 0);
        snprintf(last, sizeof last, "%s", name);
        events_close(&events);
    }
    CHECK(file_names(names) == 3);
    char *path = path_join(directory, last);
    read_file(path);
    next_record(&data);
    size_t length = next_record(&data);
    CHECK(HOLDS("\x10\x14\x3a\x02\x08\x01")); // step 20, START
    free(path);
    remove_all();
}

// A record that does not fit leaves nothing behind, and the next one is whole.
static void full_disk(void) {
    Events events;
    Error error;
    const char *data;
    struct rlimit before, small;
    const Scalar scalar = {"a rather long name that does not fit any more", 1};
    open_directory();
    CHECK(events_open(&events, directory, 0, &error) == 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){(rlim_t)events.size + 20, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    events_scalars(&events, 1, &scalar, 1);
    events_scalars(&events, 2, &scalar, 1);
    dup2(saved, 2), close(saved), close(null);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(events.lost == 2);
    events_scalars(&events, 3, &scalar, 1);
    read_file(events.path);
    int count = 0;
    while (next_record(&data)) count++;
    CHECK(count == 3);
    events_close(&events);
    remove_all();
}

// Nothing is written where there is no file.
static void none(void) {
    Events events = {0};
    Error error;
    events_text(&events, 1, "a", "b");
    events_scalars(&events, 1, NULL, 0);
    events_restart(&events, 1);
    events_close(&events);
    CHECK(events_open(&events, "/nonexistent", 0, &error) == -1);
    CHECK_CONTAINS(error.text, "cannot create");
    CHECK(!events.path);
}

int main(void) {
    RUN(checksums);
    RUN(records);
    RUN(options_of_a_run);
    RUN(sessions);
    RUN(full_disk);
    RUN(none);
    return test_summary();
}
