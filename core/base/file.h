// Files: mapped for reading, written so that a reader sees the old file or the whole new one, never a part.
#ifndef CORE_FILE_H
#define CORE_FILE_H

#include "error.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// ---- reading

typedef struct MappedFile MappedFile;

typedef struct {
    const unsigned char *data; // NULL for an empty file
    size_t size;
    MappedFile *file; // what messages say about it
} FileMap;

// Maps a regular file for reading; refuses directories, fifos and devices instead of hanging on them. When the file
// shrinks, or its disk fails, while `data` is used in place, the program ends with one line that names it and exit code
// 1.
int file_map(FileMap *map, const char *path, Error *error);
// Copies bytes that lie within the map; the same trouble is an ordinary error here.
int file_copy(void *to, const FileMap *map, size_t offset, size_t bytes, Error *error);
void file_unmap(FileMap *map);

// Reads a whole regular file of at most `limit` bytes into memory, followed by a 0 byte; free() the result.
int file_read(char **text, size_t *size, const char *path, size_t limit, Error *error);

// Reads a stream (standard input, a pipe) to its end, at most `limit` bytes; `name` is for messages.
int file_read_stream(char **text, size_t *size, FILE *stream, const char *name, size_t limit, Error *error);

// The first 32 bits of a file, little-endian: what llm.c's formats are known by. 0 when it cannot be read.
int32_t file_magic(const char *path);

// 1: something of that name is there; 0: nothing; -1: the system cannot tell, and errno says why.
int file_look(const char *path);
// Anything at all with that name, or something that the disk fails to tell of: who then opens it learns why.
int file_exists(const char *path);
int file_is_directory(const char *path);

// ---- writing: X.tmp, every write checked, flushed to the disk, renamed, directory flushed
//
// Only a regular file is replaced. A symbolic link stays: the file that it leads to is replaced, or made. A character
// device (/dev/null, a terminal) and a pipe with a reader (/dev/stdout, a fifo) are written to as they are; a pipe
// without one, a directory, a socket and a disk are refused.

typedef struct {
    FILE *stream;
    char *path, *temporary; // the latter is NULL for what is written directly
    uint64_t written;
} FileWriter;

// Refuses when the file system that `path` would be on has less free space.
int file_check_space(const char *path, uint64_t expected_bytes, Error *error);

// `expected_bytes` (0 if unknown) is compared with the free space first. On failure nothing is left behind.
int file_writer_open(FileWriter *writer, const char *path, uint64_t expected_bytes, Error *error);
int file_write(FileWriter *writer, const void *data, size_t bytes, Error *error);
// Overwrites `bytes` at `offset` (a header that is known only at the end), then returns to the end of the file.
int file_write_at(FileWriter *writer, uint64_t offset, const void *data, size_t bytes, Error *error);
int file_writer_commit(FileWriter *writer, Error *error); // the file appears under its name
void file_writer_abort(FileWriter *writer);               // the temporary file is removed; safe to call twice

// The whole protocol for a text that is in memory.
int file_replace(const char *path, const void *data, size_t bytes, Error *error);

typedef struct { // a file that is kept in memory until its directory is written
    const char *name;
    char *text; // free() it
    size_t bytes;
} MemoryFile;

// A descriptor that appends to the file, or with `keep` 0 writes it anew. Whatever is not a regular file is refused: a
// fifo would hang. -1 on failure.
int file_open_log(const char *path, int keep, Error *error);

// ---- directories

int directory_create(const char *path, Error *error); // with its parents; existing ones are fine
int directory_sync(const char *path, Error *error);   // makes renames inside it durable
int directory_remove(const char *path, Error *error); // with the plain files in it; no deeper

// "dir/name" in fresh memory.
char *path_join(const char *directory, const char *name);

#endif
