// Text of any size, in blocks that can be encoded apart and in parallel: files or standard input, read with a bounded
// buffer, divided into documents, and long documents cut where the splitting rule cuts them anyway.
//
// A line that is exactly `<|endoftext|>` stands between two documents; it and the line break before it belong to
// neither. A file ends a document too. Documents without any text are passed over.
#ifndef DATALOADER_TEXT_READER_H
#define DATALOADER_TEXT_READER_H

#include "core/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define END_OF_TEXT_LINE "<|endoftext|>"

typedef struct { // a part of one document
    const char *text;
    size_t bytes;
    int64_t document;    // counts from 0 over all files
    int starts_document; // this is its first part
} TextBlock;

typedef struct {
    TextBlock *blocks; // of the last text_reader_next; they point into `data`
    size_t block_count;
    uint64_t bytes_read, bytes_total; // total is 0 when it is not known (standard input from a pipe)

    const char *const *paths; // NULL after the last; none at all: standard input
    int null_separated;       // documents end at a 0 byte instead, and empty ones count
    int descriptor, file_ended;
    char *data;
    size_t used, done, capacity; // bytes in `data`, those already in blocks, and the room
    size_t block_capacity;
    int64_t documents;
    int in_document; // the present document has had a block
} TextReader;

// `paths` ends with NULL and must outlive the reader. Every file is looked at first, so that a missing one is reported
// before any work is done.
int text_reader_open(TextReader *reader, const char *const *paths, int null_separated, Error *error);
// Reads on and fills `blocks`: 1, or 0 when everything has been read, or -1.
int text_reader_next(TextReader *reader, Error *error);
void text_reader_close(TextReader *reader);

#endif
