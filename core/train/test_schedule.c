// Learning rates and batch sizes are pure functions of the step: their values at every corner.
#include "schedule.h"
#include "core/base/test.h"

static const Schedule base = {
    .kind = SCHEDULE_COSINE, .peak = 0.5f, .final_share = 0.1f, .warmup = 4, .total = 24, .decay_share = 0.25f};

static Schedule schedule_of(ScheduleKind kind) {
    Schedule schedule = base;
    schedule.kind = kind;
    return schedule;
}

// Rises by equal steps, never from 0, and reaches the peak at step `warmup`; the same for every kind.
static void warmup(void) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        Schedule schedule = schedule_of((ScheduleKind)kind);
        for (int step = 0; step <= 4; step++) CHECK_CLOSE(schedule_rate(&schedule, step), 0.1 * (step + 1), 1e-9);
        schedule.warmup = 0;
        CHECK(schedule_rate(&schedule, 0) == 0.5);
    }
}

static void cosine(void) {
    Schedule schedule = schedule_of(SCHEDULE_COSINE);
    CHECK_CLOSE(schedule_rate(&schedule, 14), 0.5 * (0.1 + 0.9 * 0.5), 1e-8);                             // half-way
    CHECK_CLOSE(schedule_rate(&schedule, 9), 0.5 * (0.1 + 0.9 * 0.5 * (1 + cos(0.25 * acos(-1)))), 1e-8); // a quarter
    CHECK_CLOSE(schedule_rate(&schedule, 24), 0.05, 1e-8);
}

static void linear(void) {
    Schedule schedule = schedule_of(SCHEDULE_LINEAR);
    CHECK_CLOSE(schedule_rate(&schedule, 14), 0.5 * 0.55, 1e-8);
    CHECK_CLOSE(schedule_rate(&schedule, 19), 0.5 * (1 - 0.9 * 0.75), 1e-8);
    CHECK_CLOSE(schedule_rate(&schedule, 24), 0.05, 1e-8);
}

static void constant(void) {
    Schedule schedule = schedule_of(SCHEDULE_CONSTANT);
    for (int step = 4; step < 40; step++) CHECK(schedule_rate(&schedule, step) == 0.5);
}

// Stable until the last quarter, then down.
static void warmup_stable_decay(void) {
    Schedule schedule = schedule_of(SCHEDULE_WSD);
    for (int step = 4; step <= 18; step++) CHECK(schedule_rate(&schedule, step) == 0.5);
    CHECK_CLOSE(schedule_rate(&schedule, 21), 0.5 * 0.55, 1e-8);
    CHECK_CLOSE(schedule_rate(&schedule, 24), 0.05, 1e-8);
    schedule.decay_share = 1; // more than is left after the warm-up
    CHECK(schedule_rate(&schedule, 4) == 0.5);
    CHECK(schedule_rate(&schedule, 5) < 0.5);
    schedule.decay_share = 0;
    CHECK(schedule_rate(&schedule, 23) == 0.5);
}

// From the peak on no schedule rises, none falls below its end, and the last step that is taken still learns.
static void decay_is_monotonic(void) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        Schedule schedule = schedule_of((ScheduleKind)kind);
        schedule.final_share = 0;
        for (int step = 5; step < 24; step++) {
            CHECK(schedule_rate(&schedule, step) <= schedule_rate(&schedule, step - 1));
            CHECK(schedule_rate(&schedule, step) > 0);
        }
    }
}

// Steps after the end, runs without steps, warm-ups longer than the run: rates stay in range.
static void odd_lengths(void) {
    static const int64_t warmups[] = {0, 1, 5, 100}, totals[] = {0, 1, 5, 6};
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        for (int i = 0; i < 16; i++) {
            Schedule schedule = schedule_of((ScheduleKind)kind);
            schedule.warmup = warmups[i / 4], schedule.total = totals[i % 4];
            for (int64_t step = 0; step < 200; step += step < 12 ? 1 : 60) {
                double rate = schedule_rate(&schedule, step);
                CHECK(rate >= 0 && rate <= 0.5);
            }
        }
    }
}

static void batch_ramp(void) {
    CHECK(schedule_batch(0, 32, 10, 0) == 32); // no ramp asked for
    CHECK(schedule_batch(8, 32, 0, 0) == 32);  // a ramp of no steps
    CHECK(schedule_batch(8, 32, 10, 0) == 8);
    CHECK(schedule_batch(8, 32, 10, 5) == 20);
    CHECK(schedule_batch(8, 32, 10, 10) == 32);
    CHECK(schedule_batch(8, 32, 10, 1000000000000) == 32);
    CHECK(schedule_batch(32, 32, 10, 5) == 32);
    for (int64_t step = 1; step < 12; step++)
        CHECK(schedule_batch(3, 7, 11, step) >= schedule_batch(3, 7, 11, step - 1));
    CHECK(schedule_batch(1, 1 << 20, 1000000000, 999999999) == (1 << 20) - 1); // the product needs 64 bits
}

// A timed run: the last validation and the last save take their time too, and so do those in between.
static void steps_that_fit(void) {
    StepCosts costs = {.step = 0.5};
    CHECK(schedule_steps_that_fit(10, &costs) == 20 && schedule_steps_that_fit(10.4, &costs) == 20);
    costs.validation = 3, costs.save = 2;
    CHECK(schedule_steps_that_fit(10, &costs) == 10 && schedule_steps_that_fit(5, &costs) == 0);
    costs.val_every = 6, costs.save_every = 4; // half a second more per step for each
    CHECK(schedule_steps_that_fit(20, &costs) == 10);
    CHECK(schedule_steps_that_fit(-1, &costs) == 0);
    CHECK(schedule_steps_that_fit(1e300, &costs) == 1000000000000);
    costs = (StepCosts){0}; // nothing is known
    CHECK(schedule_steps_that_fit(10, &costs) == 0);
    costs.step = INFINITY;
    CHECK(schedule_steps_that_fit(10, &costs) == 0);
}

int main(void) {
    RUN(warmup);
    RUN(cosine);
    RUN(linear);
    RUN(constant);
    RUN(warmup_stable_decay);
    RUN(decay_is_monotonic);
    RUN(odd_lengths);
    RUN(batch_ramp);
    RUN(steps_that_fit);
    return test_summary();
}
