// Token shards, with targets of their own or without, through the loader. No token and no target out of range gets out.
// The input: a byte of switches, T, the vocabulary (two bytes), then the shard and, after "\n%%\n", its targets.
#define _GNU_SOURCE
#include "fuzz.h"
#include "memory_files.h"
#include "dataloader/dataloader.h"

enum { BATCH = 2, READS = 3, T_MAX = 64 };

static void read_rows(DataLoader *loader, int T, int vocab) {
    int32_t inputs[BATCH * T_MAX], targets[BATCH * T_MAX];
    Error error;
    for (int i = 0; i < READS; i++) {
        EXPECT(dataloader_counted(loader, BATCH) >= 1);
        if (dataloader_rows_at(loader, 0, BATCH, inputs, targets, &error)) return;
        for (int j = 0; j < BATCH * T; j++) {
            EXPECT(inputs[j] >= 0 && inputs[j] < vocab);
            EXPECT(targets[j] >= -1 && targets[j] < vocab);
        }
        dataloader_advance(loader, BATCH);
    }
}

static void go_on_elsewhere(DataLoader *loader) {
    Error error;
    int64_t position = dataloader_position(loader);
    json_t *json = dataloader_to_json(loader);
    dataloader_seek(loader, 0);
    EXPECT(dataloader_from_json(loader, json, 0, &error) == 0 && dataloader_position(loader) == position);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input input = {data, size};
    DataLoader *loader;
    Error error;
    unsigned switches = take_byte(&input), T = 1 + take_byte(&input) % T_MAX, low = take_byte(&input);
    int vocab = (int)(low + 256 * take_byte(&input)) + 1;
    DataLoaderConfig config = {.pattern = "a.bin",
                               .T = (int)T,
                               .vocab = vocab,
                               .whole = switches & 1,
                               .shuffle = (switches & 3) == 2,
                               .documents = switches >> 2 & 1,
                               .limit = switches >> 3 & 1 ? 100 : 0,
                               .seed = switches};
    Input shard = take_part(&input), own = take_part(&input);
    memory_file_put("a.bin", shard.data, shard.size);
    if (own.size) memory_file_put("a.targets", own.data, own.size);
    if (dataloader_open(&loader, &config, &error) == 0) {
        if (dataloader_rows(loader) > 0) read_rows(loader, (int)T, vocab), go_on_elsewhere(loader);
        dataloader_close(loader);
    }
    memory_files_clear();
    return 0;
}
