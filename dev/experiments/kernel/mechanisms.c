// Every mechanism of the registry with its configuration at the defaults, a line of CSV each: name, time, feature width
// F, numbers that decoding keeps per head (at --T tokens), options as key=value with spaces, what it is.
//
//   build/dev/experiments/kernel/mechanisms [--size d] [--T T]
#include "probe.h"
#include "core/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "R=3 M=16 ...": what stands in checkpoints
static void print_options(const Probe *probe) {
    json_t *all = attention_to_json(probe->attention, &probe->config), *value;
    const char *key, *space = "";
    json_object_foreach(all, key, value) {
        if (!strcmp(key, "name") || !strcmp(key, "seed") || !strcmp(key, "chunk")) continue;
        printf("%s%s=", space, key);
        space = " ";
        if (json_is_string(value))
            printf("%s", json_string_value(value));
        else
            printf("%.3g", json_number_value(value));
    }
    json_decref(all);
}

int main(int argc, char **argv) {
    int size = 64, T = 1024;
    const Option items[] = {{"", "size", 0, OPTION_INT, &size, 1, 4096, NULL, "of the head", 0, ""},
                            {"", "T", 0, OPTION_INT, &T, 1, 1 << 20, NULL, "tokens", 0, ""}};
    probe_parse("usage: mechanisms [options]\nThe registry's mechanisms with their configurations.", items,
                sizeof items / sizeof *items, argc, argv);
    printf("attention,d,T,time,F,state,options,summary\n");
    for (int i = 0; attention_registry[i]; i++) {
        Probe probe = probe_open(attention_registry[i]->name, T, 1, size, 1);
        int width = probe_width(&probe);
        printf("%s,%d,%d,%s,%d,%d,", probe.attention->name, size, T, width ? "T" : "T^2", width,
               width ? width * (size + 1) : 2 * size * T);
        print_options(&probe);
        printf(",\"%s\"\n", probe.attention->summary);
        probe_close(&probe);
    }
    return 0;
}
