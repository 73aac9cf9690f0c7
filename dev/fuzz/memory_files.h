// The files of core/base/file.h, kept in memory: memory_files.c has that header's functions and stands in the place
// of core/base/file.c, so that a fuzzer reaches every reader and writer without a system call. A file is a block of
// exactly its size, so that a read past its end is seen.
#ifndef FUZZ_MEMORY_FILES_H
#define FUZZ_MEMORY_FILES_H

#include <stddef.h>

void memory_file_put(const char *path, const void *data, size_t size); // a copy
// NULL when there is none of that name.
const unsigned char *memory_file_get(const char *path, size_t *size);
// Forgets them all. A map or a writer that was left open, or JSON that was not given back, ends the process.
void memory_files_clear(void);

#endif
