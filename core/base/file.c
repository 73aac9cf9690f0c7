#define _GNU_SOURCE
#include "file.h"
#include "memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// ---- reading

static int refuse_special(const char *path, const struct stat *status, Error *error) {
    const char *found = S_ISDIR(status->st_mode) ? "a directory" : "a pipe, socket or device";
    return error_set(error, "%.700s: expected a regular file, found %s", path, found);
}

// Opens a regular file. O_NONBLOCK keeps open() from waiting for the other end of a fifo.
static int open_regular(const char *path, struct stat *status, Error *error) {
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return error_set(error, "%.700s: cannot open: %s", path, strerror(errno));
    if (fstat(descriptor, status) == 0 && S_ISREG(status->st_mode)) return descriptor;
    close(descriptor);
    return refuse_special(path, status, error);
}

// ---- mapped files

struct MappedFile {
    const unsigned char *data;
    size_t size;
    MappedFile *next, *previous;
    char path[];
};

static MappedFile *mapped_files;
static pthread_mutex_t mapped_files_lock = PTHREAD_MUTEX_INITIALIZER;

static MappedFile *add_mapped_file(const unsigned char *data, size_t size, const char *path) {
    MappedFile *file = memory_resize(NULL, sizeof *file + strlen(path) + 1, 1, "a mapped file");
    strcpy(file->path, path);
    pthread_mutex_lock(&mapped_files_lock);
    file->data = data, file->size = size;
    file->next = mapped_files, file->previous = NULL;
    if (mapped_files) mapped_files->previous = file;
    mapped_files = file;
    pthread_mutex_unlock(&mapped_files_lock);
    return file;
}

static void remove_mapped_file(MappedFile *file) {
    pthread_mutex_lock(&mapped_files_lock);
    if (file->previous)
        file->previous->next = file->next;
    else
        mapped_files = file->next;
    if (file->next) file->next->previous = file->previous;
    pthread_mutex_unlock(&mapped_files_lock);
    free(file);
}

static const MappedFile *find_mapped_file(const unsigned char *address) {
    pthread_mutex_lock(&mapped_files_lock);
    const MappedFile *file = mapped_files;
    while (file && !(address >= file->data && address - file->data < (ptrdiff_t)file->size)) file = file->next;
    pthread_mutex_unlock(&mapped_files_lock);
    return file;
}

static int page_is_gone(const MappedFile *file, Error *error) {
    struct stat status;
    if (stat(file->path, &status) == 0 && (uint64_t)status.st_size >= file->size)
        return error_set(error, "%.700s: the disk failed to read it, or it was cut short and replaced while in use",
                         file->path);
    return error_set(error,
                     "%.700s: the file shrank or was removed while in use (it had %zu bytes); put it back, then start "
                     "or resume again",
                     file->path, file->size);
}

// A mapped page that the file no longer has raises SIGBUS. While this thread is in file_copy, `escape` leads back out
// of it. Elsewhere a mapped file's bytes are used in place, by threads and libraries that cannot recover: the program
// ends with the message. The fault is this thread's own and not within the list's functions or stdio's, so that they
// may be called. A SIGBUS of any other origin goes to whoever handled it before.
static _Thread_local sigjmp_buf *volatile escape;
static struct sigaction previous_action;

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    if (escape) siglongjmp(*escape, 1);
    const MappedFile *file = info->si_code > 0 ? find_mapped_file(info->si_addr) : NULL; // 0 and below: sent by kill()
    if (file) {
        Error error;
        page_is_gone(file, &error);
        error_print(&error);
        _exit(1);
    }
    sigaction(signal_number, &previous_action, NULL); // the access is repeated and faults again, there
    if (info->si_code <= 0) raise(signal_number);
}

static void install_handler(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
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
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handler);
    map->data = data;
    if (data) map->file = add_mapped_file(data, map->size, path);
    return 0;
}

int file_copy(void *to, const FileMap *map, size_t offset, size_t bytes, Error *error) {
    sigjmp_buf here;
    if (sigsetjmp(here, 0) != 0) { // SA_NODEFER: the signal is not blocked, so no mask has to be restored
        escape = NULL;
        return page_is_gone(map->file, error);
    }
    escape = &here;
    atomic_signal_fence(memory_order_seq_cst); // the compiler must not move the copy out of here
    memcpy(to, map->data + offset, bytes);
    atomic_signal_fence(memory_order_seq_cst);
    escape = NULL;
    return 0;
}

void file_unmap(FileMap *map) {
    if (map->file) remove_mapped_file(map->file);
    if (map->data) munmap((void *)map->data, map->size);
    *map = (FileMap){0};
}

// ---- whole files

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
        if (used > limit)
            return error_set(error, "%.700s: larger than the limit of %zu bytes; is it the right file?", name, limit);
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

int32_t file_magic(const char *path) {
    FileMap map;
    Error ignored;
    int32_t magic = 0;
    if (file_map(&map, path, &ignored)) return 0;
    if (map.size >= sizeof magic) memcpy(&magic, map.data, sizeof magic);
    file_unmap(&map);
    return magic;
}

int file_look(const char *path) {
    struct stat status;
    if (lstat(path, &status) == 0) return 1;
    return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ENAMETOOLONG ? 0 : -1;
}

int file_exists(const char *path) {
    return file_look(path) != 0;
}

int file_is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

// ---- writing

static int write_failed(FileWriter *writer, const char *action, Error *error) {
    int failure = errno ? errno : EIO;
    error_set(error, "%.700s: cannot %s: %s; free some space or choose another place%s", writer->path, action,
              strerror(failure), writer->temporary ? "; nothing was changed" : "");
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

// The name of the file that `path` leads to through symbolic links, whether it exists or not; free() it.
static char *follow_links(const char *path) {
    enum { LINKS_MAX = 40 }; // as many as Linux follows
    char *target = memory_copy_string(path), link[PATH_MAX];
    for (int i = 0; i < LINKS_MAX; i++) {
        ssize_t length = readlink(target, link, sizeof link - 1);
        if (length < 0) break;
        link[length] = 0;
        char *parent = parent_of(target), *next = link[0] == '/' ? memory_copy_string(link) : path_join(parent, link);
        free(parent), free(target);
        target = next;
    }
    return target;
}

// A terminal, /dev/null, a pipe that somebody reads: what is written goes there directly.
static int open_directly(FileWriter *writer, const char *path, Error *error) {
    writer->path = memory_copy_string(path);
    errno = 0;
    int descriptor = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); // a pipe without a reader: ENXIO
    int flags = descriptor < 0 ? -1 : fcntl(descriptor, F_GETFL);
    if (flags >= 0 && fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) == 0) writer->stream = fdopen(descriptor, "wb");
    if (writer->stream) return 0;
    int failure = errno;
    if (descriptor >= 0) close(descriptor);
    file_writer_abort(writer);
    if (failure == ENXIO)
        return error_set(error, "%.700s: a pipe or device with nobody at its other end; start its reader first", path);
    return error_set(error, "%.700s: cannot open: %s", path, strerror(failure));
}

// X.tmp, or X.tmp2 and so on where something stands there that cannot be removed: somebody's folder.
static int open_temporary(FileWriter *writer, Error *error) {
    size_t size = strlen(writer->path) + sizeof ".tmp9";
    writer->temporary = memory_resize(NULL, size, 1, "a path");
    for (int number = 1; number <= 9; number++) {
        snprintf(writer->temporary, size, "%s.tmp%.*s", writer->path, number > 1, &"123456789"[number - 1]);
        unlink(writer->temporary); // left by an interrupted program, whatever it is; x: nothing is written through it
        errno = 0;
        writer->stream = fopen(writer->temporary, "wbx");
        if (writer->stream) return 0;
        if (errno != EEXIST) return write_failed(writer, "create", error);
    }
    error_set(error, "%.700s: expected a free name to write it under at first, found %.700s there; remove that",
              writer->path, writer->temporary);
    free(writer->temporary), writer->temporary = NULL; // it is not ours
    file_writer_abort(writer);
    return -1;
}

int file_writer_open(FileWriter *writer, const char *path, uint64_t expected_bytes, Error *error) {
    struct stat status;
    *writer = (FileWriter){0};
    if (stat(path, &status) == 0) {
        if (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)) return open_directly(writer, path, error);
        if (S_ISDIR(status.st_mode))
            return error_set(error, "%.700s: expected a file to write, found a directory; choose another name", path);
        if (!S_ISREG(status.st_mode))
            return error_set(error, "%.700s: expected a file to write, found a socket or disk; choose another name",
                             path);
    }
    if (file_check_space(path, expected_bytes, error)) return -1;
    writer->path = follow_links(path);
    return open_temporary(writer, error);
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
    if (fflush(writer->stream) != 0 || (writer->temporary && fsync(fileno(writer->stream)) != 0))
        return write_failed(writer, "write", error);
    FILE *stream = writer->stream;
    writer->stream = NULL;
    if (fclose(stream) != 0) return write_failed(writer, "close", error);
    if (!writer->temporary) return file_writer_abort(writer), 0; // already written; only memory is left to free
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

int file_open_log(const char *path, int keep, Error *error) {
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) return refuse_special(path, &status, error);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | (keep ? 0 : O_TRUNC), 0666);
    return descriptor < 0 ? error_set(error, "%.700s: cannot write: %s", path, strerror(errno)) : descriptor;
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
