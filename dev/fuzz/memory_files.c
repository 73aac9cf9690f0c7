#define _GNU_SOURCE
#include "memory_files.h"
#include "fuzz.h"
#include "json_memory.h"
#include "core/base/file.h"

#include <fcntl.h>

enum { FILES_MAX = 16 };
typedef struct {
    char *path;
    unsigned char *data; // never NULL
    size_t size;
} MemoryEntry;

static MemoryEntry files[FILES_MAX];
static int file_count, open_maps, open_writers;

static MemoryEntry *find(const char *path) {
    for (int i = 0; i < file_count; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}

void memory_file_put(const char *path, const void *data, size_t size) {
    MemoryEntry *entry = find(path);
    if (!entry) {
        EXPECT(file_count < FILES_MAX);
        entry = &files[file_count++];
        *entry = (MemoryEntry){.path = strdup(path)};
    }
    unsigned char *copy = malloc(size + (size == 0));
    if (size) memcpy(copy, data, size);
    free(entry->data);
    entry->data = copy, entry->size = size;
}

const unsigned char *memory_file_get(const char *path, size_t *size) {
    const MemoryEntry *entry = find(path);
    *size = entry ? entry->size : 0;
    return entry ? entry->data : NULL;
}

void memory_files_clear(void) {
    EXPECT(open_maps == 0 && open_writers == 0);
    json_memory_check();
    for (int i = 0; i < file_count; i++) free(files[i].path), free(files[i].data);
    file_count = 0;
}

// ---- reading

static const MemoryEntry *find_or_say(const char *path, Error *error) {
    const MemoryEntry *entry = find(path);
    if (!entry) error_set(error, "%.700s: cannot open: no such file", path);
    return entry;
}

int file_map(FileMap *map, const char *path, Error *error) {
    const MemoryEntry *entry = find_or_say(path, error);
    *map = (FileMap){0};
    if (!entry) return -1;
    if (!entry->size) return 0;
    *map = (FileMap){.data = entry->data, .size = entry->size};
    open_maps++;
    return 0;
}

int file_copy(void *to, const FileMap *map, size_t offset, size_t bytes, Error *error) {
    (void)error;
    memcpy(to, map->data + offset, bytes);
    return 0;
}

void file_unmap(FileMap *map) {
    open_maps -= map->data != NULL;
    *map = (FileMap){0};
}

int file_read(char **text, size_t *size, const char *path, size_t limit, Error *error) {
    const MemoryEntry *entry = find_or_say(path, error);
    if (!entry) return -1;
    if (entry->size > limit) return error_set(error, "%.700s: larger than the limit of %zu bytes", path, limit);
    *text = malloc(entry->size + 1);
    memcpy(*text, entry->data, entry->size);
    *size = entry->size;
    (*text)[*size] = 0;
    return 0;
}

int file_read_stream(char **text, size_t *size, FILE *stream, const char *name, size_t limit, Error *error) {
    (void)stream;
    return file_read(text, size, name, limit, error);
}

int32_t file_magic(const char *path) {
    const MemoryEntry *entry = find(path);
    int32_t magic = 0;
    if (entry && entry->size >= sizeof magic) memcpy(&magic, entry->data, sizeof magic);
    return magic;
}

int file_look(const char *path) {
    return find(path) != NULL;
}

int file_exists(const char *path) {
    return file_look(path);
}

// What a file's path begins with is a directory.
int file_is_directory(const char *path) {
    size_t length = strlen(path);
    for (int i = 0; i < file_count; i++)
        if (!strncmp(files[i].path, path, length) && files[i].path[length] == '/') return 1;
    return 0;
}

// ---- writing: what is written so far is in `temporary`

int file_check_space(const char *path, uint64_t expected_bytes, Error *error) {
    (void)path, (void)expected_bytes, (void)error;
    return 0;
}

// The room for so many bytes: it doubles, for files are written in many small pieces.
static size_t room_for(size_t bytes) {
    size_t room = 1024;
    while (room < bytes) room *= 2;
    return room;
}

int file_writer_open(FileWriter *writer, const char *path, uint64_t expected_bytes, Error *error) {
    (void)expected_bytes, (void)error;
    *writer = (FileWriter){.path = strdup(path), .temporary = malloc(room_for(0))};
    open_writers++;
    return 0;
}

int file_write(FileWriter *writer, const void *data, size_t bytes, Error *error) {
    (void)error;
    size_t room = room_for(writer->written + bytes);
    if (room > room_for(writer->written)) writer->temporary = realloc(writer->temporary, room);
    if (bytes) memcpy(writer->temporary + writer->written, data, bytes);
    writer->written += bytes;
    return 0;
}

int file_write_at(FileWriter *writer, uint64_t offset, const void *data, size_t bytes, Error *error) {
    (void)error;
    EXPECT(offset + bytes <= writer->written);
    memcpy(writer->temporary + offset, data, bytes);
    return 0;
}

int file_writer_commit(FileWriter *writer, Error *error) {
    (void)error;
    memory_file_put(writer->path, writer->temporary, writer->written);
    file_writer_abort(writer);
    return 0;
}

void file_writer_abort(FileWriter *writer) {
    open_writers -= writer->path != NULL;
    free(writer->path), free(writer->temporary);
    *writer = (FileWriter){0};
}

int file_replace(const char *path, const void *data, size_t bytes, Error *error) {
    (void)error;
    memory_file_put(path, data, bytes);
    return 0;
}

// What is appended to a log is not looked at. A copy of one descriptor is had sooner than a file is opened.
int file_open_log(const char *path, int keep, Error *error) {
    (void)error;
    if (!keep) memory_file_put(path, "", 0);
    static int nowhere = -1;
    if (nowhere < 0) nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return fcntl(nowhere, F_DUPFD_CLOEXEC, 0);
}

// ---- directories need not be made

int directory_create(const char *path, Error *error) {
    (void)path, (void)error;
    return 0;
}

int directory_sync(const char *path, Error *error) {
    (void)path, (void)error;
    return 0;
}

int directory_remove(const char *path, Error *error) {
    (void)path, (void)error;
    return 0;
}

char *path_join(const char *directory, const char *name) {
    size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    snprintf(path, size, "%s/%s", directory, name);
    return path;
}
