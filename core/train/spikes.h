// Spikes: losses and gradient norms far above those of the steps before. A detector keeps the last accepted ones and
// says what the next may be at most; a step above that is treated like one that is not finite.
#ifndef CORE_SPIKES_H
#define CORE_SPIKES_H

#include "core/base/error.h"

#include <jansson.h>

enum { SPIKE_WINDOW_MAX = 4096, SPIKE_LEAST = 16 }; // fewer values than that tell nothing

typedef struct {
    double z;     // standard deviations above the mean that are one too many; 0: no detector
    int window;   // values that are kept
    int count;    // values kept so far, at most `window`
    int next;     // where the next one goes
    double *loss; // (window)
    double *norm; // (window)
} SpikeDetector;

void spikes_create(SpikeDetector *detector, double z, int window);
void spikes_free(SpikeDetector *detector);
void spikes_add(SpikeDetector *detector, double loss, double norm); // of a step that was taken
// The largest loss and norm that are no spike; infinity as long as too little is known.
void spikes_limits(const SpikeDetector *detector, double *most_loss, double *most_norm);
void spikes_clear(SpikeDetector *detector);

json_t *spikes_to_json(const SpikeDetector *detector); // the values, oldest first; a new reference
int spikes_from_json(SpikeDetector *detector, const json_t *json, Error *error);

#endif
