// Errors, memory, files and random numbers: what everything else rests on.
#define _GNU_SOURCE
#include "error.h"
#include "file.h"
#include "memory.h"
#include "profile.h"
#include "progress.h"
#include "random.h"
#include "test.h"
#include "test_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

// ---- errors

static void die_rudely(void) {
    error_set_program("/usr/local/bin/train_gpt2");
    die("%s: bad\nline\033[31m", "model.bin");
}
static void die_of_error(void) {
    Error error = {""};
    die_if(0, &error);
    die_if(error_set(&error, "%s: expected %d", "x", 3), &error);
}
static void warn_only(void) {
    warn("careful with %s", "that");
}
static void ask_for_too_much(void) {
    memory_allocate(SIZE_MAX / 4, 8, "the moon");
}

static void warn_at_length(void) {
    char text[2000] = "";
    error_set_program("train_gpt2");
    memset(text, 'x', sizeof text - 1);
    warn("%s", text);
}
static void warn_on_ranks(void) {
    error_set_program("test");
    for (int rank = 0; rank < 3; rank++) error_set_rank(rank), warn("of rank %d", rank);
    error_print(&(Error){"an error"});
}

static void test_messages(void) {
    char said[2048];
    CHECK(run_apart(die_rudely, said, sizeof said) == 1);
    CHECK(strcmp(said, "train_gpt2: model.bin: bad?line?[31m\n") == 0); // one line, no terminal codes
    CHECK(run_apart(die_of_error, said, sizeof said) == 1);
    CHECK_CONTAINS(said, ": x: expected 3\n");
    CHECK(run_apart(warn_only, said, sizeof said) == 0);
    CHECK_CONTAINS(said, ": warning: careful with that\n");
    CHECK(run_apart(warn_at_length, said, sizeof said) == 0);
    CHECK(strlen(said) > 1000 && strlen(said) < 1200 && strspn(said + 21, "x") == strlen(said) - 22);
    CHECK(run_apart(warn_on_ranks, said, sizeof said) == 0); // those of other ranks say the same
    CHECK(strcmp(said, "test: warning: of rank 0\ntest: rank 2: an error\n") == 0);
}

static void test_error_text(void) {
    Error error;
    CHECK(error_set(&error, "%s", "inner") == -1 && error_prefix(&error, "file") == -1);
    CHECK(strcmp(error.text, "file: inner") == 0);
    char *long_text = memory_allocate(10001, 1, "a long text");
    memset(long_text, 'x', 10000);
    long_text[10000] = 0;
    CHECK(error_set(&error, "%s", long_text) == -1 && strlen(error.text) == sizeof error.text - 1);
    CHECK(error_prefix(&error, long_text) == -1 && strlen(error.text) < sizeof error.text);
    free(long_text);
}

// ---- where time goes

// The numbers of a kind of work in the table: forward, backward, both and share. 0 when it is not there.
static int find_in_profile(const char *table, const char *name, double numbers[4]) {
    const char *line = strstr(table, name);
    if (!line || line[-1] != '\n') return 0;
    return sscanf(line + strlen(name), "%lf %lf %lf %lf%%", numbers, numbers + 1, numbers + 2, numbers + 3) == 4;
}

static void spend_time(Phase phase, Work work, double seconds) {
    profile_phase(phase);
    profile_work(work);
    for (double start = clock_seconds(); clock_seconds() - start < seconds;)
        ;
}

static char *profile_table(int64_t steps) {
    static char *text;
    static size_t size;
    FILE *file = open_memstream(&text, &size);
    profile_print(file, steps);
    fclose(file);
    return text;
}

static void test_profile(void) {
    double gelu[4] = {0}, head[4] = {0}, saving[4] = {0}, all = 0;
    profile_begin();
    spend_time(PHASE_FORWARD, WORK_DROPOUT, 1e-3);
    profile_phase(PHASE_FORWARD);
    profile_begin(); // what was before does not count
    spend_time(PHASE_FORWARD, WORK_GELU, 2e-3);
    spend_time(PHASE_BACKWARD, WORK_HEAD, 1e-3);
    profile_within(WORK_SAVING);
    spend_time(PHASE_BACKWARD, WORK_GELU, 5e-3); // counts as saving
    profile_within(WORK_OTHER);
    char *table = profile_table(2), *last = strstr(table, "\nin all");
    CHECK(strstr(table, "\nms per step") == table && !strstr(table, "dropout"));
    CHECK(find_in_profile(table, "GELU", gelu) && find_in_profile(table, "head and loss", head) &&
          find_in_profile(table, "saving", saving));
    CHECK(gelu[0] >= 1 && gelu[1] == 0 && head[0] == 0 && head[1] >= 0.5 && saving[0] == 0 && saving[1] >= 2.5);
    CHECK(last && sscanf(last, "\nin all %lf", &all) == 1);
    double other[4] = {0}, parts = gelu[2] + head[2] + saving[2];
    if (find_in_profile(table, "all else", other)) parts += other[2];
    CHECK_CLOSE(parts, all, 0.025); // each is rounded to 0.01
    CHECK_CLOSE(gelu[3] + head[3] + saving[3] + other[3], 100, 0.25);
    int lines = 0;
    for (const char *c = table; *c; c++) lines += *c == '\n';
    CHECK(lines == 6 + (strstr(table, "all else") != NULL)); // an empty one, the titles, the kinds, the sum
    free(table);
}

// ---- memory

static void test_allocation(void) {
    static const size_t sizes[] = {0, 1, 63, 64, 4097, 9 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *block = memory_allocate_zeroed(sizes[i], 1, "a block"), any = 0;
        CHECK((uintptr_t)block % 64 == 0);
        for (size_t k = 0; k < sizes[i]; k++) any |= block[k];
        CHECK(any == 0);
        free(block);
    }
    char *text = memory_copy_string("text");
    text = memory_resize(text, 1000, 1, "text");
    CHECK(strcmp(text, "text") == 0);
    free(text);
    char said[2048];
    CHECK(run_apart(ask_for_too_much, said, sizeof said) == 1);
    CHECK_CONTAINS(said, "out of memory: the moon");
    CHECK(memory_peak_bytes() > 1 << 20);
}

// Within a page, across its edge, over so many whole pages that they go back to the system: zeros inside, everything
// else as it was.
static void test_clearing(void) {
    enum { SIZE = 4 << 20 };
    static const size_t parts[][2] = {{0, 0},       {5, 100},        {4000, 200},    {4096, 4096},
                                      {100, 12000}, {4096, 1 << 20}, {100, 3000000}, {4097, (1 << 20) + 1},
                                      {0, SIZE}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        unsigned char *block = memory_allocate(SIZE, 1, "a block");
        size_t wrong = 0;
        memset(block, 0xA5, SIZE);
        memory_clear(block + parts[i][0], parts[i][1]);
        for (size_t k = 0; k < SIZE; k++)
            wrong += block[k] != (k >= parts[i][0] && k < parts[i][0] + parts[i][1] ? 0 : 0xA5);
        CHECK(wrong == 0);
        free(block);
    }
}

static void test_size_arithmetic(void) {
    uint64_t result = 7;
    CHECK(size_multiply(UINT64_MAX, 2, &result) == -1 && result == 7);
    CHECK(size_multiply((uint64_t)1 << 32, (uint64_t)1 << 32, &result) == -1 && result == 7);
    CHECK(size_add(UINT64_MAX, 1, &result) == -1 && result == 7);
    CHECK(size_add(UINT64_MAX, 0, &result) == 0 && result == UINT64_MAX);
    CHECK(size_multiply((uint64_t)1 << 32, ((uint64_t)1 << 32) - 1, &result) == 0 && result == 0xffffffff00000000u);
}

// ---- files: reading

static void test_reading(void) {
    const char *path = test_path("text"), *empty = test_path("empty"), *fifo = test_path("fifo");
    char *text = NULL;
    size_t size = 0;
    FileMap map;
    Error error = {""};
    test_write(path, "ab\0cd", 5);
    test_write(empty, "", 0);
    CHECK(mkfifo(fifo, 0600) == 0);
    CHECK(file_read(&text, &size, path, 5, &error) == 0 && size == 5 && memcmp(text, "ab\0cd", 6) == 0);
    free(text);
    CHECK(file_read(&text, &size, path, 4, &error) == -1);
    CHECK_CONTAINS(error.text, "larger than the limit of 4 bytes");
    CHECK(file_map(&map, path, &error) == 0 && map.size == 5 && memcmp(map.data, "ab\0cd", 5) == 0);
    file_unmap(&map);
    file_unmap(&map);
    CHECK(file_map(&map, empty, &error) == 0 && map.size == 0 && map.data == NULL);
    CHECK(file_read(&text, &size, empty, 0, &error) == 0 && size == 0 && text[0] == 0);
    free(text);
    const char *const refused[] = {fifo, test_directory, "/dev/zero", test_path("missing"), ""};
    for (int i = 0; i < 5; i++) {
        CHECK(file_map(&map, refused[i], &error) == -1 && map.data == NULL);
        CHECK(strncmp(error.text, refused[i], strlen(refused[i])) == 0);
        CHECK(file_read(&text, &size, refused[i], 100, &error) == -1);
    }
    CHECK(file_exists(fifo) && file_exists(test_directory) && !file_exists(test_path("missing")));
    CHECK(file_is_directory(test_directory) && !file_is_directory(path));
}

static void test_stream(void) {
    const char *path = test_path("stream");
    size_t size = 0, bytes = 300001;
    unsigned char *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 31 >> 3);
    test_write(path, data, bytes);
    char *text = NULL;
    Error error = {""};
    FILE *stream = fopen(path, "rb");
    CHECK(file_read_stream(&text, &size, stream, "input", bytes, &error) == 0);
    CHECK(size == bytes && memcmp(text, data, bytes) == 0);
    free(text);
    rewind(stream);
    CHECK(file_read_stream(&text, &size, stream, "input", bytes - 1, &error) == -1);
    CHECK_CONTAINS(error.text, "input: larger than the limit");
    fclose(stream);
    free(data);
}

// ---- mapped files that change

enum { MAPPED_BYTES = 1 << 16 };

static FileMap map_and_truncate(void) {
    static const char bytes[MAPPED_BYTES];
    const char *path = test_path("mapped\nfile"), *other = test_path("other");
    FileMap map, neighbour;
    Error error = {""};
    test_write(path, bytes, sizeof bytes);
    test_write(other, bytes, sizeof bytes);
    CHECK(file_map(&map, path, &error) == 0 && file_map(&neighbour, other, &error) == 0);
    CHECK(truncate(path, 100) == 0);
    file_unmap(&neighbour);
    return map;
}

static void use_in_place(void) {
    FileMap map = map_and_truncate();
    _exit(map.data[MAPPED_BYTES - 1] ? 3 : 2);
}
static void fault_elsewhere(void) {
    FileMap map = map_and_truncate();
    (void)map;
    raise(SIGBUS);
    _exit(2);
}

// A file that shrinks while its bytes are used ends the program in one line; a copy of them just fails.
static void test_mapped_file_shrinks(void) {
    char said[2048], bytes[8];
    Error error = {""};
    CHECK(run_apart(use_in_place, said, sizeof said) == 1);
    CHECK_CONTAINS(said, "mapped?file: the file shrank or was removed while in use (it had 65536 bytes)");
    CHECK(strchr(said, '\n') == said + strlen(said) - 1);
    CHECK(run_apart(fault_elsewhere, said, sizeof said) != 2); // the signal ends it, as without any mapped file
    CHECK(!strstr(said, "the file shrank"));
    FileMap map = map_and_truncate();
    for (int i = 0; i < 2; i++) { // again: the signal must not stay blocked
        CHECK(file_copy(bytes, &map, 0, 8, &error) == 0);
        CHECK(file_copy(bytes, &map, MAPPED_BYTES - 8, 8, &error) == -1);
        CHECK_CONTAINS(error.text, "the file shrank");
    }
    file_unmap(&map);
}

// ---- files: writing

static int content_is(const char *path, const char *expected) {
    size_t size = 0;
    unsigned char *data = test_read(path, &size);
    int same = size == strlen(expected) && memcmp(data, expected, size) == 0;
    free(data);
    return same;
}

// Until the commit a reader sees the old file; an abort leaves it and nothing else.
static void test_writer_is_atomic(void) {
    const char *path = test_path("target"), *temporary = test_path("target.tmp");
    FileWriter writer;
    Error error = {""};
    CHECK(file_replace(path, "old", 3, &error) == 0 && content_is(path, "old"));
    CHECK(file_writer_open(&writer, path, 3, &error) == 0);
    CHECK(file_write(&writer, "new!", 4, &error) == 0 && file_write(&writer, "", 0, &error) == 0);
    CHECK(writer.written == 4 && content_is(path, "old") && file_exists(temporary));
    file_writer_abort(&writer);
    file_writer_abort(&writer);
    CHECK(content_is(path, "old") && !file_exists(temporary));
    CHECK(file_write(&writer, "x", 1, &error) == -1 && file_writer_commit(&writer, &error) == -1);
    CHECK(file_writer_open(&writer, path, 0, &error) == 0 && file_write(&writer, "0000tail", 8, &error) == 0);
    CHECK(file_write_at(&writer, 1, "12", 2, &error) == 0 && file_write(&writer, ".", 1, &error) == 0);
    CHECK(content_is(path, "old"));
    CHECK(file_writer_commit(&writer, &error) == 0 && content_is(path, "0120tail."));
    CHECK(!file_exists(temporary));
}

static void test_writer_refuses(void) {
    FileWriter writer;
    Error error = {""};
    const char *directory = test_path("taken");
    CHECK(file_writer_open(&writer, test_path("no/such/place"), 0, &error) == -1);
    CHECK_CONTAINS(error.text, "no/such/place: cannot create");
    CHECK(file_writer_open(&writer, test_path("huge"), UINT64_MAX / 2, &error) == -1);
    CHECK_CONTAINS(error.text, "MB are free");
    CHECK(!file_exists(test_path("huge")) && !file_exists(test_path("huge.tmp")));
    CHECK(file_writer_open(&writer, directory, 0, &error) == 0);
    CHECK(directory_create(directory, &error) == 0);
    CHECK(file_writer_commit(&writer, &error) == -1);
    CHECK_CONTAINS(error.text, "cannot rename into place");
    CHECK(file_replace(directory, "x", 1, &error) == -1);
    CHECK_CONTAINS(error.text, "taken: expected a file to write, found a directory");
    CHECK(!file_exists(test_path("taken.tmp")));
    CHECK(file_replace("/dev/full", "data", 4, &error) == -1); // the write or the flush has to notice
    CHECK_CONTAINS(error.text, "No space left");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(test_path("socket")) >= sizeof address.sun_path) return; // no socket can have such a name
    int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, test_path("socket"));
    CHECK(bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(file_replace(address.sun_path, "data", 4, &error) == -1 && file_exists(address.sun_path));
    CHECK_CONTAINS(error.text, "found a socket or disk");
    close(descriptor);
}

// A file that may not grow beyond two bytes stands for a disk that is full.
static void write_into_little_space(void) {
    struct rlimit limit = {2, 2};
    Error error = {""};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    die_if(file_replace(test_path("small"), "data", 4, &error), &error);
}
static void test_writer_notices_a_full_disk(void) {
    char said[2048];
    CHECK(run_apart(write_into_little_space, said, sizeof said) == 1);
    CHECK_CONTAINS(said, "small: cannot write: File too large");
    CHECK(!file_exists(test_path("small")) && !file_exists(test_path("small.tmp")));
}

static mode_t kind_of(const char *path) {
    struct stat status = {0};
    return lstat(path, &status) == 0 ? status.st_mode & S_IFMT : 0;
}

// What a link leads to is replaced, not the link; and a left-over X.tmp is never written through.
static void test_writer_follows_links(void) {
    const char *link = test_path("link"), *target = test_path("folder/target"), *temporary = test_path("link.tmp");
    Error error = {""};
    CHECK(directory_create(test_path("folder"), &error) == 0);
    CHECK(symlink("folder/second", link) == 0 && symlink("target", test_path("folder/second")) == 0);
    for (int i = 0; i < 2; i++) { // at first it leads to nothing
        CHECK(file_replace(link, i ? "again" : "new", i ? 5 : 3, &error) == 0);
        CHECK(kind_of(link) == S_IFLNK && kind_of(test_path("folder/second")) == S_IFLNK);
        CHECK(kind_of(target) == S_IFREG && content_is(link, i ? "again" : "new"));
    }
    test_write(test_path("precious"), "gold", 4);
    CHECK(symlink(test_path("precious"), test_path("plain.tmp")) == 0);
    CHECK(file_replace(test_path("plain"), "x", 1, &error) == 0 && content_is(test_path("precious"), "gold"));
    CHECK(mkfifo(test_path("plain.tmp"), 0600) == 0);
    CHECK(file_replace(test_path("plain"), "y", 1, &error) == 0 && content_is(test_path("plain"), "y"));
    CHECK(!file_exists(temporary) && !file_exists(test_path("plain.tmp")));
}

// A folder where the file is to be written at first stays, with what is in it; the file is written beside it.
static void test_writer_goes_around_folders(void) {
    const char *path = test_path("wanted");
    char name[] = "wanted.tmp1";
    Error error = {""};
    CHECK(directory_create(test_path("wanted.tmp"), &error) == 0);
    test_write(test_path("wanted.tmp/inner"), "mine", 4);
    CHECK(file_replace(path, "new", 3, &error) == 0 && content_is(path, "new"));
    CHECK(content_is(test_path("wanted.tmp/inner"), "mine") && !file_exists(test_path("wanted.tmp2")));
    for (name[10] = '2'; name[10] <= '9'; name[10]++) CHECK(directory_create(test_path(name), &error) == 0);
    CHECK(file_replace(path, "newer", 5, &error) == -1 && content_is(path, "new"));
    CHECK_CONTAINS(error.text, "wanted: expected a free name to write it under at first, found ");
    CHECK_CONTAINS(error.text, "wanted.tmp9 there; remove that");
    CHECK(file_is_directory(test_path("wanted.tmp9")));
}

// Through a link, so that a writer that replaces what it finds would not replace the machine's /dev/null.
static void test_writer_keeps_devices_and_pipes(void) {
    const char *device = test_path("device"), *pipe_path = test_path("pipe");
    Error error = {""};
    CHECK(symlink("/dev/null", device) == 0 && mkfifo(pipe_path, 0600) == 0);
    CHECK(file_replace(device, "data", 4, &error) == 0 && kind_of(device) == S_IFLNK &&
          kind_of("/dev/null") == S_IFCHR);
    CHECK(file_replace(pipe_path, "data", 4, &error) == -1 && kind_of(pipe_path) == S_IFIFO); // instead of waiting
    CHECK_CONTAINS(error.text, "pipe: a pipe or device with nobody at its other end");
    int reader = open(pipe_path, O_RDONLY | O_NONBLOCK);
    char found[8] = "";
    CHECK(file_replace(pipe_path, "data", 4, &error) == 0 && kind_of(pipe_path) == S_IFIFO);
    CHECK(read(reader, found, sizeof found - 1) == 4 && !strcmp(found, "data"));
    FileWriter writer;
    CHECK(file_writer_open(&writer, pipe_path, 0, &error) == 0 && file_write(&writer, "da", 2, &error) == 0);
    CHECK(file_write_at(&writer, 0, "ta", 2, &error) == -1); // a pipe has no beginning to go back to
    CHECK_CONTAINS(error.text, "pipe: cannot write: Illegal seek");
    close(reader);
    CHECK(!file_exists(test_path("device.tmp")) && !file_exists(test_path("pipe.tmp")));
}

static void test_log(void) {
    const char *path = test_path("log"), *fifo = test_path("log_fifo");
    Error error = {""};
    CHECK(mkfifo(fifo, 0600) == 0);
    for (int i = 0; i < 3; i++) { // afresh, after it, afresh
        int log = file_open_log(path, i == 1, &error);
        CHECK(log >= 0);
        if (log >= 0) CHECK(write(log, i == 1 ? "b" : "a", 1) == 1 && close(log) == 0);
        CHECK(content_is(path, i == 1 ? "ab" : "a"));
    }
    const char *const refused[] = {fifo, test_directory, "/dev/null"};
    for (int i = 0; i < 3; i++) {
        CHECK(file_open_log(refused[i], i % 2, &error) == -1);
        CHECK_CONTAINS(error.text, "expected a regular file, found");
    }
    CHECK(file_open_log(test_path("no/such/log"), 0, &error) == -1);
    CHECK_CONTAINS(error.text, "no/such/log: cannot write");
}

static void test_directories(void) {
    Error error = {""};
    char *inner = path_join(test_path("one/two"), "three"), *file = path_join(inner, "file");
    CHECK(strcmp(inner, test_path("one/two/three")) == 0);
    CHECK(directory_create(inner, &error) == 0 && file_is_directory(inner));
    CHECK(directory_create(inner, &error) == 0); // again
    CHECK(directory_create(test_path("one/two//four/"), &error) == 0 && file_is_directory(test_path("one/two/four")));
    CHECK(directory_sync(inner, &error) == 0 && directory_sync(test_path("none"), &error) == -1);
    test_write(file, "x", 1);
    CHECK(directory_create(file, &error) == -1);
    CHECK_CONTAINS(error.text, "cannot create the directory");
    CHECK(directory_remove(test_path("one/two"), &error) == -1 && file_exists(file)); // no deeper than one level
    CHECK(directory_remove(inner, &error) == 0 && !file_exists(inner));
    CHECK(directory_remove(inner, &error) == -1);
    free(inner);
    free(file);
}

// ---- random numbers

// Philox4x32-10 straight from the paper, with all four counter words.
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1,
                            (uint32_t)p0};
        memcpy(c, next, sizeof next);
    }
}

// The known answers published with the Random123 library, then the library's own function against it.
static void test_philox(void) {
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t counter[4];
        memcpy(counter, known[i].counter, sizeof counter);
        philox(counter, known[i].key[0], known[i].key[1]);
        CHECK(memcmp(counter, known[i].answer, sizeof counter) == 0);
    }
    RandomBlock first = random_block(0, 0);
    CHECK(memcmp(first.word, known[0].answer, sizeof first.word) == 0);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t key = i * 0x9E3779B97F4A7C15u, counter = ~i * 0xD1B54A32D192ED03u;
        uint32_t expected[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
        philox(expected, (uint32_t)key, (uint32_t)(key >> 32));
        RandomBlock block = random_block(key, counter);
        CHECK(memcmp(block.word, expected, sizeof expected) == 0);
        CHECK(random_word(key, i) == random_block(key, i / 4).word[i % 4]);
    }
}

static void test_keys(void) {
    uint64_t key = random_key(1, "dropout", 2);
    CHECK(key == random_key(1, "dropout", 2));
    CHECK(key != random_key(2, "dropout", 2) && key != random_key(1, "Dropout", 2) &&
          key != random_key(1, "dropout", 3));
    CHECK(random_key(1, "", 0) != random_key(0, "", 1));
}

static void test_distributions(void) {
    enum { N = 200000 };
    uint64_t key = random_key(42, "test", 0);
    double sum = 0, squares = 0, cubes = 0, fourths = 0, products = 0, previous = 0, uniform = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = random_normal(key, i), u = random_uniform(key, i);
        sum += x, squares += x * x, cubes += x * x * x, fourths += x * x * x * x, products += x * previous;
        uniform += u, previous = x;
        if (!(u >= 0 && u < 1)) CHECK(!"uniform numbers are in [0, 1)");
    }
    // Five standard errors of each moment's estimate.
    double unit = 5 / sqrt(N);
    CHECK_CLOSE(sum / N, 0, unit);
    CHECK_CLOSE(squares / N, 1, unit * sqrt(2));
    CHECK_CLOSE(cubes / N, 0, unit * sqrt(15));
    CHECK_CLOSE(fourths / N, 3, unit * sqrt(96));
    CHECK_CLOSE(products / N, 0, unit);
    CHECK_CLOSE(uniform / N, 0.5, unit * sqrt(1.0 / 12));
}

static void test_below(void) {
    int counts[7] = {0};
    for (uint64_t i = 0; i < 70000; i++) counts[random_below(9, i, 7)]++;
    for (int i = 0; i < 7; i++) CHECK_CLOSE(counts[i], 10000, 5 * sqrt(70000 * (1.0 / 7) * (6.0 / 7)));
    uint64_t huge = UINT64_MAX - 3;
    for (uint64_t i = 0; i < 1000; i++) CHECK(random_below(9, i, huge) < huge && random_below(9, i, 1) == 0);
}

static void test_fill_normal(void) {
    static const size_t counts[] = {0, 1, 2, 511, 512, 513, 5001};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        real *out = memory_allocate(counts[c] + 1, sizeof *out, "numbers");
        out[counts[c]] = 99;
        random_fill_normal(out, counts[c], 77, 0.02);
        for (size_t i = 0; i < counts[c]; i++) CHECK_CLOSE(out[i], 0.02 * random_normal(77, i), 1e-8);
        CHECK(out[counts[c]] == 99);
        free(out);
    }
}

int main(void) {
    test_directory_make();
    RUN(test_messages);
    RUN(test_error_text);
    RUN(test_profile);
    RUN(test_allocation);
    RUN(test_clearing);
    RUN(test_size_arithmetic);
    RUN(test_reading);
    RUN(test_stream);
    RUN(test_mapped_file_shrinks);
    RUN(test_writer_is_atomic);
    RUN(test_writer_refuses);
    RUN(test_writer_notices_a_full_disk);
    RUN(test_writer_follows_links);
    RUN(test_writer_goes_around_folders);
    RUN(test_writer_keeps_devices_and_pipes);
    RUN(test_log);
    RUN(test_directories);
    RUN(test_philox);
    RUN(test_keys);
    RUN(test_distributions);
    RUN(test_below);
    RUN(test_fill_normal);
    return test_summary();
}
