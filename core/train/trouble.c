#include "trouble.h"

#include <stdio.h>

const size_t trouble_widths[LAYER_PLACES] = {3, 1, 1, 4, 1};

void trouble_describe(StepOutcome *outcome, int place, int L, const char *bad_gradient) {
    static const char *const names[LAYER_PLACES] = {"qkv", "attention output", "attention projection", "MLP", "output"};
    static char text[128];
    int in_layers = place - 1;
    outcome->in_forward = place <= L * LAYER_PLACES;
    outcome->trouble = text;
    if (place == 0)
        snprintf(text, sizeof text, "the embeddings");
    else if (outcome->in_forward)
        snprintf(text, sizeof text, "layer %d's %s", in_layers / LAYER_PLACES, names[in_layers % LAYER_PLACES]);
    else if (bad_gradient)
        snprintf(text, sizeof text, "the gradient of %s", bad_gradient);
    else
        snprintf(text, sizeof text, "the head");
}
