// The floating-point operations of each attention's forward pass per token and its decode state, as the programs count
// them: for dev/cuda/report.py.
//   build/attention_flops C NH T
#include "../attention/attention.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    if (argc != 4) die("usage: attention_flops C NH T");
    for (int i = 0; attention_registry[i]; i++) {
        const Attention *attention = attention_registry[i];
        Error error;
        AttentionConfig config = {.B = 1, .C = atoi(argv[1]), .NH = atoi(argv[2]), .T = atoi(argv[3])};
        config.max_T = config.T;
        die_if(attention_configure(attention, &config, NULL, &error), &error);
        printf("%s %.0f %d %d %d\n", attention->name, attention->flops(&config), config.R, config.M, config.P);
    }
    return 0;
}
