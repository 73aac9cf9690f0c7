// Files for tests: a directory that goes away afterwards, files of given bytes, damage of a known kind; and processes
// that may die.
#ifndef CORE_TEST_FILES_H
#define CORE_TEST_FILES_H

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char test_directory[256];   // absolute
static pid_t test_directory_owner; // children that end with exit() leave it alone

static inline int test_remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static inline void test_remove(const char *path) {
    nftw(path, test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void test_directory_remove(void) {
    if (getpid() == test_directory_owner) test_remove(test_directory);
}

// Makes the directory, in memory where there is such a place: tests flush thousands of files. It is removed when the
// process ends.
static inline void test_directory_make(void) {
    const char *parent = getenv("TMPDIR");
    if (!parent && access("/dev/shm", W_OK) == 0) parent = "/dev/shm";
    snprintf(test_directory, sizeof test_directory, "%.200s/slay_test_XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(test_directory)) perror(test_directory), exit(1);
    test_directory_owner = getpid();
    atexit(test_directory_remove);
}

// A path in the test's directory; valid for the next 15 calls.
static inline const char *test_path(const char *name) {
    static char paths[16][512];
    static int turn;
    turn = (turn + 1) % 16;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", test_directory, name);
    return paths[turn];
}

static inline void test_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) perror(path), exit(1);
}

// The whole file in memory; free() it.
static inline unsigned char *test_read(const char *path, size_t *bytes) {
    struct stat status;
    FILE *file = fopen(path, "rb");
    if (!file || stat(path, &status) != 0) perror(path), exit(1);
    unsigned char *data = malloc((size_t)status.st_size + 1);
    *bytes = fread(data, 1, (size_t)status.st_size, file);
    data[*bytes] = 0;
    fclose(file);
    return data;
}

static inline void test_flip_bit(const char *path, size_t byte, int bit) {
    FILE *file = fopen(path, "r+b");
    if (!file || fseek(file, (long)byte, SEEK_SET) != 0) perror(path), exit(1);
    int value = fgetc(file);
    fseek(file, (long)byte, SEEK_SET);
    fputc(value ^ 1 << bit, file);
    fclose(file);
}

// Runs a function in a process of its own; gives its exit code, and what it said on standard error in `said`.
static inline int run_apart(void (*function)(void), char *said, size_t size) {
    int ends[2], status = 0;
    fflush(stdout);
    if (pipe(ends) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        function();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; used < size - 1 && (got = read(ends[0], said + used, size - 1 - used)) > 0;) used += (size_t)got;
    said[used] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
