#define _GNU_SOURCE
#include "file.h"
#include "memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// ---- reading

// Opens a regular file. O_NONBLOCK keeps open() from waiting for the other end of a fifo.
static int open_regular(const char *path, struct stat *status, Error *error) {
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return error_set(error, "%.700s: cannot open: %s", path, strerror(errno));
    if (fstat(descriptor, status) == 0 && S_ISREG(status->st_mode)) return descriptor;
    close(descriptor);
    const char *found = S_ISDIR(status->st_mode) ? "a directory" : "a pipe, socket or device";
    return error_set(error, "%.700s: expected a regular file, found %s", path, found);
}

int file_map(FileMap *map, const char *path, Error *error) {
    struct stat status = {0};
    *map = (FileMap){0};
    int descriptor = open_regular(path, &status, error);
    if (descriptor < 0) return -1;
    map->size = (size_t)status.st_size;
    void *data = map->size ? mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, descriptor, 0) : NULL;
    int failure = errno;
    close(descriptor);
    if (data == MAP_FAILED) return error_set(error, "%.700s: cannot map: %s", path, strerror(failure));
    map->data = data;
    return 0;
}

void file_unmap(FileMap *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (FileMap){0};
}

int file_read_stream(char **text, size_t *size, FILE *stream, const char *name, size_t limit, Error *error) {
    size_t capacity = 1 << 16, used = 0;
    char *buffer = memory_resize(NULL, capacity, 1, name);
    for (;;) {
        size_t got = fread(buffer + used, 1, capacity - used - 1, stream);
        used += got;
        if (got == 0) break;
        if (used > limit) break;
        if (capacity - used < 2) buffer = memory_resize(buffer, capacity *= 2, 1, name);
    }
    if (ferror(stream) || used > limit) {
        free(buffer);
        if (used > limit) return error_set(error, "%.700s: larger than the limit of %zu bytes", name, limit);
        return error_set(error, "%.700s: cannot read: %s", name, strerror(errno));
    }
    buffer[used] = 0;
    *text = buffer;
    *size = used;
    return 0;
}

int file_read(char **text, size_t *size, const char *path, size_t limit, Error *error) {
    struct stat status = {0};
    int descriptor = open_regular(path, &status, error);
    if (descriptor < 0) return -1;
    FILE *stream = fdopen(descriptor, "rb");
    if (!stream) {
        close(descriptor);
        return error_set(error, "%.700s: cannot open: %s", path, strerror(errno));
    }
    int result = file_read_stream(text, size, stream, path, limit, error);
    fclose(stream);
    return result;
}

int file_exists(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

int file_is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

// ---- writing

static int write_failed(FileWriter *writer, const char *action, Error *error) {
    int failure = errno ? errno : EIO;
    error_set(error, "%.700s: cannot %s: %s; free some space or choose another place; nothing was changed",
              writer->path, action, strerror(failure));
    file_writer_abort(writer);
    return -1;
}

// The directory that holds `path`; free() the result.
static char *parent_of(const char *path) {
    char *copy = memory_copy_string(path), *parent = memory_copy_string(dirname(copy));
    free(copy);
    return parent;
}

int file_check_space(const char *path, uint64_t expected_bytes, Error *error) {
    struct statvfs space;
    char *parent = parent_of(path);
    int known = statvfs(parent, &space) == 0;
    free(parent);
    uint64_t available = known ? (uint64_t)space.f_bavail * space.f_frsize : UINT64_MAX;
    if (available >= expected_bytes) return 0;
    return error_set(error, "%.700s: needs %.1f MB, only %.1f MB are free there; free some space", path,
                     (double)expected_bytes / 1e6, (double)available / 1e6);
}

int file_writer_open(FileWriter *writer, const char *path, uint64_t expected_bytes, Error *error) {
    *writer = (FileWriter){0};
    if (file_check_space(path, expected_bytes, error)) return -1;
    size_t size = strlen(path) + sizeof ".tmp";
    writer->path = memory_copy_string(path);
    writer->temporary = memory_resize(NULL, size, 1, "a path");
    snprintf(writer->temporary, size, "%s.tmp", path);
    errno = 0;
    writer->stream = fopen(writer->temporary, "wb");
    return writer->stream ? 0 : write_failed(writer, "create", error);
}

int file_write(FileWriter *writer, const void *data, size_t bytes, Error *error) {
    if (!writer->stream) return error_set(error, "a file writer was used after it failed");
    errno = 0;
    if (bytes && fwrite(data, 1, bytes, writer->stream) != bytes) return write_failed(writer, "write", error);
    writer->written += bytes;
    return 0;
}

int file_write_at(FileWriter *writer, uint64_t offset, const void *data, size_t bytes, Error *error) {
    if (!writer->stream) return error_set(error, "a file writer was used after it failed");
    errno = 0;
    int failed = fseeko(writer->stream, (off_t)offset, SEEK_SET) != 0 ||
                 fwrite(data, 1, bytes, writer->stream) != bytes || fseeko(writer->stream, 0, SEEK_END) != 0;
    return failed ? write_failed(writer, "write", error) : 0;
}

int file_writer_commit(FileWriter *writer, Error *error) {
    if (!writer->stream) return error_set(error, "a file writer was used after it failed");
    errno = 0;
    if (fflush(writer->stream) != 0 || fsync(fileno(writer->stream)) != 0) return write_failed(writer, "write", error);
    FILE *stream = writer->stream;
    writer->stream = NULL;
    if (fclose(stream) != 0) return write_failed(writer, "close", error);
    if (rename(writer->temporary, writer->path) != 0) return write_failed(writer, "rename into place", error);
    char *parent = parent_of(writer->path);
    int result = directory_sync(parent, error);
    free(parent);
    free(writer->temporary);
    free(writer->path);
    *writer = (FileWriter){0};
    return result;
}

void file_writer_abort(FileWriter *writer) {
    if (writer->stream) fclose(writer->stream);
    if (writer->temporary) unlink(writer->temporary);
    free(writer->temporary);
    free(writer->path);
    *writer = (FileWriter){0};
}

int file_replace(const char *path, const void *data, size_t bytes, Error *error) {
    FileWriter writer;
    if (file_writer_open(&writer, path, bytes, error)) return -1;
    if (file_write(&writer, data, bytes, error)) return -1;
    return file_writer_commit(&writer, error);
}

// ---- directories

int directory_create(const char *path, Error *error) {
    char *partial = memory_copy_string(path);
    int result = 0;
    for (char *end = partial + 1; result == 0 && *partial; end++) {
        if (*end != '/' && *end != 0) continue;
        char saved = *end;
        *end = 0;
        if (mkdir(partial, 0777) != 0 && !(errno == EEXIST && file_is_directory(partial)))
            result = error_set(error, "%.700s: cannot create the directory: %s", partial, strerror(errno));
        *end = saved;
        if (saved == 0) break;
    }
    free(partial);
    return result;
}

int directory_sync(const char *path, Error *error) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return error_set(error, "%.700s: cannot open the directory: %s", path, strerror(errno));
    int failed = fsync(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP; // some file systems cannot
    int failure = errno;
    close(descriptor);
    return failed ? error_set(error, "%.700s: cannot flush the directory: %s", path, strerror(failure)) : 0;
}

int directory_remove(const char *path, Error *error) {
    DIR *directory = opendir(path);
    if (!directory) return error_set(error, "%.700s: cannot open the directory: %s", path, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    return rmdir(path) == 0 ? 0 : error_set(error, "%.700s: cannot remove: %s", path, strerror(errno));
}

char *path_join(const char *directory, const char *name) {
    size_t size = strlen(directory) + strlen(name) + 2;
    char *path = memory_resize(NULL, size, 1, "a path");
    snprintf(path, size, "%s/%s", directory, name);
    return path;
}
