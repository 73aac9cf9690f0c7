#define _GNU_SOURCE
#include "text_reader.h"
#include "pieces.h"
#include "core/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 32 << 20,
    BUFFER_BYTES_MAX = 256 << 20, // text without any place to cut is cut here, so that memory stays bounded
    BLOCK_BYTES = 256 << 10,
    SEPARATOR_BYTES_MAX = sizeof "\n" END_OF_TEXT_LINE "\r\n",
};

// ---- opening

static int open_text(const char *path, struct stat *status, Error *error) {
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // never waits for the other end of a fifo
    if (descriptor < 0) return error_set(error, "%.700s: cannot open: %s", path, strerror(errno));
    if (fstat(descriptor, status) == 0 && S_ISREG(status->st_mode)) return descriptor;
    close(descriptor);
    return error_set(error, "%.700s: expected a text file, found %s", path,
                     S_ISDIR(status->st_mode) ? "a directory; name the files in it"
                                              : "a pipe, socket or device; give it as standard input");
}

static int add_file_size(TextReader *reader, const char *path, Error *error) {
    struct stat status = {0};
    int descriptor = open_text(path, &status, error);
    if (descriptor < 0) return -1;
    close(descriptor);
    reader->bytes_total += (uint64_t)status.st_size;
    return 0;
}

int text_reader_open(TextReader *reader, const char *const *paths, int null_separated, Error *error) {
    *reader = (TextReader){.paths = paths, .null_separated = null_separated, .descriptor = -1};
    for (const char *const *path = paths; *path; path++)
        if (add_file_size(reader, *path, error)) return -1;
    if (!*paths) {
        struct stat status;
        reader->descriptor = STDIN_FILENO;
        if (fstat(STDIN_FILENO, &status) == 0 && S_ISREG(status.st_mode))
            reader->bytes_total = (uint64_t)status.st_size;
    }
    reader->capacity = BUFFER_BYTES;
    reader->data = memory_resize(NULL, reader->capacity, 1, "the text");
    return 0;
}

void text_reader_close(TextReader *reader) {
    if (reader->descriptor > STDIN_FILENO) close(reader->descriptor);
    free(reader->data);
    free(reader->blocks);
    *reader = (TextReader){.descriptor = -1};
}

// ---- reading

// The next file: 1, or 0 when there is none. A file begins a new document.
static int open_next(TextReader *reader, Error *error) {
    if (reader->descriptor >= 0) return 1;
    if (!*reader->paths) return 0;
    struct stat status = {0};
    reader->descriptor = open_text(*reader->paths, &status, error);
    reader->file_ended = 0;
    return reader->descriptor < 0 ? -1 : 1;
}

static void close_file(TextReader *reader) {
    if (reader->descriptor > STDIN_FILENO) close(reader->descriptor);
    if (*reader->paths) reader->paths++;
    reader->descriptor = -1;
    reader->used = reader->done = 0;
    reader->documents += reader->in_document;
    reader->in_document = 0;
}

// Fills the buffer after what is left in it; enlarges it when it is full.
static int fill(TextReader *reader, Error *error) {
    memmove(reader->data, reader->data + reader->done, reader->used - reader->done);
    reader->used -= reader->done;
    reader->done = 0;
    if (reader->used == reader->capacity)
        reader->data = memory_resize(reader->data, reader->capacity *= 2, 1, "a long stretch of text without spaces");
    while (reader->used < reader->capacity) {
        ssize_t got = read(reader->descriptor, reader->data + reader->used, reader->capacity - reader->used);
        if (got < 0 && errno == EINTR) continue;
        const char *name = *reader->paths ? *reader->paths : "standard input";
        if (got < 0) return error_set(error, "%.700s: cannot read: %s", name, strerror(errno));
        if (got == 0) {
            reader->file_ended = 1;
            return 0;
        }
        reader->used += (size_t)got;
        reader->bytes_read += (uint64_t)got;
    }
    return 0;
}

// ---- dividing

static void add_block(TextReader *reader, size_t start, size_t end) {
    if (reader->block_count == reader->block_capacity) {
        reader->block_capacity = 2 * reader->block_capacity + 256;
        reader->blocks = memory_resize(reader->blocks, reader->block_capacity, sizeof(TextBlock), "the text");
    }
    reader->blocks[reader->block_count++] = (TextBlock){.text = reader->data + start,
                                                        .bytes = end - start,
                                                        .document = reader->documents,
                                                        .starts_document = !reader->in_document};
    reader->in_document = 1;
}

static void add_blocks(TextReader *reader, size_t start, size_t end) {
    const unsigned char *data = (const unsigned char *)reader->data;
    while (start < end) {
        size_t cut = end - start > BLOCK_BYTES ? start + BLOCK_BYTES : end;
        while (cut < end && !is_safe_cut(data, cut)) cut++;
        add_block(reader, start, cut);
        start = cut;
    }
}

static void end_document(TextReader *reader) {
    if (reader->null_separated && !reader->in_document) add_block(reader, reader->done, reader->done);
    reader->documents += reader->in_document;
    reader->in_document = 0;
}

// The next separator in [from, used): where the document before it ends and where the next begins. 0 if there is none.
static int find_separator(const TextReader *reader, size_t from, size_t *document_end, size_t *next) {
    const char *data = reader->data, *end = data + reader->used, *at = data + from;
    size_t length = strlen(END_OF_TEXT_LINE);
    if (reader->null_separated) {
        const char *zero = memchr(at, 0, (size_t)(end - at));
        if (!zero) return 0;
        *document_end = (size_t)(zero - data);
        *next = *document_end + 1;
        return 1;
    }
    while ((at = memmem(at, (size_t)(end - at), END_OF_TEXT_LINE, length))) {
        const char *after = at + length;
        int has_return = after < end && *after == '\r';
        int line_ends = after + has_return < end ? after[has_return] == '\n' : reader->file_ended;
        int document_starts = at == data + from && !reader->in_document;
        int line_starts = document_starts || (at > data + from && at[-1] == '\n');
        if (line_starts && line_ends) {
            *document_end = (size_t)(at - data) - !document_starts;
            size_t behind = (size_t)(after - data) + (size_t)has_return + 1;
            *next = behind < reader->used ? behind : reader->used;
            return 1;
        }
        at = after;
    }
    return 0;
}

// The last place in (from, used) to cut a document that goes on beyond the buffer; `from` when there is none. It keeps
// away from the end, so that no separator is cut in two.
static size_t find_last_cut(const TextReader *reader, size_t from) {
    const unsigned char *data = (const unsigned char *)reader->data;
    if (reader->used < from + SEPARATOR_BYTES_MAX) return from;
    size_t cut = reader->used - SEPARATOR_BYTES_MAX;
    while (cut > from && !is_safe_cut(data, cut)) cut--;
    if (cut > from || reader->used - from < BUFFER_BYTES_MAX) return cut;
    cut = reader->used - SEPARATOR_BYTES_MAX;
    while (cut > from && is_continuation(data[cut])) cut--;
    return cut;
}

static void divide(TextReader *reader) {
    size_t document_end, next;
    reader->block_count = 0;
    while (find_separator(reader, reader->done, &document_end, &next)) {
        add_blocks(reader, reader->done, document_end);
        reader->done = document_end;
        end_document(reader);
        reader->done = next;
    }
    size_t rest = reader->file_ended ? reader->used : find_last_cut(reader, reader->done);
    add_blocks(reader, reader->done, rest);
    reader->done = rest;
}

int text_reader_next(TextReader *reader, Error *error) {
    reader->block_count = 0;
    while (reader->block_count == 0) {
        if (reader->descriptor >= 0 && reader->file_ended) close_file(reader);
        int opened = open_next(reader, error);
        if (opened <= 0) return opened;
        if (fill(reader, error)) return -1;
        divide(reader);
    }
    return 1;
}
