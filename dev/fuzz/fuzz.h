// A fuzz target is one function that takes any bytes. libFuzzer calls it with inputs of its own making; replay.c, in
// `make test`, with those in corpus/. A reader may refuse what it gets, but not end the process, and what it accepts
// must keep the promises that the target checks with EXPECT.
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv); // in json_memory.c
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition), abort();             \
    } while (0)

// ---- taking an input apart

typedef struct {
    const uint8_t *data;
    size_t size;
} Input;

// The next number; 0 after the end.
static inline unsigned take_byte(Input *input) {
    if (!input->size) return 0;
    input->size--;
    return *input->data++;
}

// What stands before the next "\n%%\n", which is passed over; without one, all that is left.
static inline Input take_part(Input *input) {
    const uint8_t *mark = input->size ? memmem(input->data, input->size, "\n%%\n", 4) : NULL;
    Input part = {input->data, mark ? (size_t)(mark - input->data) : input->size};
    size_t used = mark ? part.size + 4 : part.size;
    input->data += used, input->size -= used;
    return part;
}

#endif
