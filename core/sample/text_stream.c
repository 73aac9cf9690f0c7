#include "text_stream.h"

// The bytes of the character that starts with `byte`; 1 for a byte that starts none.
static int character_bytes(unsigned char byte) {
    return byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
}

void stream_flush(TextStream *stream) {
    fwrite(stream->pending, 1, (size_t)stream->count, stream->out);
    stream->count = 0;
}

void stream_put(TextStream *stream, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int continues = ((unsigned char)bytes[i] & 0xC0) == 0x80;
        if (!continues) stream_flush(stream); // what is pending was not valid: as it is
        stream->pending[stream->count++] = bytes[i];
        if (stream->count >= character_bytes((unsigned char)stream->pending[0])) stream_flush(stream);
    }
    fflush(stream->out);
}
