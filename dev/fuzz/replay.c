// Gives a fuzz target the files of its corpus, without libFuzzer: TARGET FILE...
// An input that ends the process names itself; the last line is that of a test program.
#define _GNU_SOURCE
#include "fuzz.h"

static const char *now;

static void complain(void) {
    if (now) fprintf(stderr, "FAIL %s: it ended the process\n", now);
}

int main(int argc, char **argv) {
    atexit(complain);
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(now = argv[i], "rb");
        if (!file || fseek(file, 0, SEEK_END)) perror(argv[i]), exit(1);
        size_t size = (size_t)ftell(file);
        uint8_t *data = malloc(size + (size == 0)); // exactly as large, so that a read past its end is seen
        rewind(file);
        if (fread(data, 1, size, file) != size) perror(argv[i]), exit(1);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    now = NULL;
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
