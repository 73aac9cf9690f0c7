// The spike detector: what counts as one, that nothing is known too early, that its memory survives a checkpoint.
#include "spikes.h"
#include "core/base/test.h"

static void nothing_is_known_at_first(void) {
    SpikeDetector detector;
    double loss, norm;
    spikes_create(&detector, 3, 32);
    for (int i = 0; i < SPIKE_LEAST - 1; i++) spikes_add(&detector, 2 + 0.1 * (i % 2), 1);
    spikes_limits(&detector, &loss, &norm);
    CHECK(isinf(loss) && isinf(norm));
    spikes_add(&detector, 2, 1);
    spikes_limits(&detector, &loss, &norm);
    CHECK(isfinite(loss) && isfinite(norm));
    spikes_free(&detector);
    spikes_create(&detector, 0, 32); // no detector
    for (int i = 0; i < 100; i++) spikes_add(&detector, 2, 1);
    spikes_limits(&detector, &loss, &norm);
    CHECK(isinf(loss) && isinf(norm));
    spikes_free(&detector);
}

static void limits_are_mean_and_deviation(void) {
    SpikeDetector detector;
    double loss, norm;
    spikes_create(&detector, 4, 16);
    for (int i = 0; i < 100; i++) spikes_add(&detector, 50, 50); // forgotten by the window
    for (int i = 0; i < 16; i++) spikes_add(&detector, i % 2 ? 3 : 1, 7);
    spikes_limits(&detector, &loss, &norm);
    CHECK_CLOSE(loss, 2 + 4 * 1, 1e-12);     // mean 2, deviation 1
    CHECK_CLOSE(norm, 7 + 4 * 0.007, 1e-12); // no deviation: a thousandth of the mean
    spikes_free(&detector);
}

static void memory_is_saved(void) {
    SpikeDetector detector, again;
    double expected[2], found[2];
    Error error;
    spikes_create(&detector, 4, 16), spikes_create(&again, 4, 16);
    for (int i = 0; i < 23; i++) spikes_add(&detector, 1.0 / (i + 3), i * 0.1);
    json_t *json = spikes_to_json(&detector);
    CHECK(spikes_from_json(&again, json, &error) == 0);
    for (int i = 0; i < 5; i++) { // the window moves on alike
        spikes_limits(&detector, &expected[0], &expected[1]), spikes_limits(&again, &found[0], &found[1]);
        CHECK(found[0] == expected[0] && found[1] == expected[1]);
        spikes_add(&detector, i, 2 * i), spikes_add(&again, i, 2 * i);
    }
    json_decref(json);
    json = json_loads("[[1, 2], [3]]", 0, NULL);
    CHECK(spikes_from_json(&again, json, &error) == -1);
    CHECK_CONTAINS(error.text, "expected pairs of numbers");
    CHECK(spikes_from_json(&again, NULL, &error) == 0 && again.count == 0); // a state of a run without a detector
    json_decref(json);
    spikes_free(&detector), spikes_free(&again);
}

int main(void) {
    RUN(nothing_is_known_at_first);
    RUN(limits_are_mean_and_deviation);
    RUN(memory_is_saved);
    return test_summary();
}
