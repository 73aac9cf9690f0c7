// Text on the screen as it comes, but in whole UTF-8 characters: a token may end in the middle of one.
#ifndef CORE_TEXT_STREAM_H
#define CORE_TEXT_STREAM_H

#include <stdio.h>

typedef struct {
    FILE *out;
    char pending[4]; // the start of a character whose end has not come yet
    int count;
} TextStream;

void stream_put(TextStream *stream, const char *bytes, size_t count);
void stream_flush(TextStream *stream);

#endif
