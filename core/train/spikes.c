#include "spikes.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>

void spikes_create(SpikeDetector *detector, double z, int window) {
    *detector = (SpikeDetector){.z = z, .window = window};
    if (z <= 0) return;
    detector->loss = memory_allocate((size_t)window, sizeof(double), "the losses before");
    detector->norm = memory_allocate((size_t)window, sizeof(double), "the norms before");
}

void spikes_free(SpikeDetector *detector) {
    free(detector->loss), free(detector->norm);
    *detector = (SpikeDetector){0};
}

void spikes_clear(SpikeDetector *detector) {
    detector->count = detector->next = 0;
}

void spikes_add(SpikeDetector *detector, double loss, double norm) {
    if (detector->z <= 0) return;
    detector->loss[detector->next] = loss, detector->norm[detector->next] = norm;
    detector->next = (detector->next + 1) % detector->window;
    if (detector->count < detector->window) detector->count++;
}

// Where value number i, from the oldest, stands.
static int place(const SpikeDetector *detector, int i) {
    int oldest = detector->count < detector->window ? 0 : detector->next;
    return (oldest + i) % detector->window;
}

// mean + z standard deviations, summed from the oldest on, so that a resumed run comes to the same bits. Values that
// hardly differ make any next one look far away: a thousandth of the mean is the least deviation.
static double most(const SpikeDetector *detector, const double *values) {
    double sum = 0, squares = 0;
    for (int i = 0; i < detector->count; i++) sum += values[place(detector, i)];
    double mean = sum / detector->count;
    for (int i = 0; i < detector->count; i++) squares += pow(values[place(detector, i)] - mean, 2);
    return mean + detector->z * fmax(sqrt(squares / detector->count), 1e-3 * fabs(mean));
}

void spikes_limits(const SpikeDetector *detector, double *most_loss, double *most_norm) {
    int knows = detector->z > 0 && detector->count >= SPIKE_LEAST;
    *most_loss = knows ? most(detector, detector->loss) : INFINITY;
    *most_norm = knows ? most(detector, detector->norm) : INFINITY;
}

json_t *spikes_to_json(const SpikeDetector *detector) {
    json_t *list = json_made(json_array(), "the list of losses");
    for (int i = 0; i < detector->count; i++) {
        int at = place(detector, i);
        json_t *pair = json_made(json_pack("[f, f]", detector->loss[at], detector->norm[at]), "a loss and a norm");
        if (json_array_append_new(list, pair) != 0) die("a loss cannot be saved");
    }
    return list;
}

int spikes_from_json(SpikeDetector *detector, const json_t *json, Error *error) {
    spikes_clear(detector);
    size_t count = json_array_size(json), first = 0; // 0 for what is no array
    if (count > (size_t)detector->window) first = count - (size_t)detector->window;
    for (size_t i = first; detector->z > 0 && i < count; i++) {
        const json_t *pair = json_array_get(json, i);
        const json_t *loss = json_array_get(pair, 0), *norm = json_array_get(pair, 1);
        if (!json_is_number(loss) || !json_is_number(norm))
            return error_set(error, "\"spikes\": expected pairs of numbers, found something else");
        spikes_add(detector, json_number_value(loss), json_number_value(norm));
    }
    return 0;
}
