// Schedules: learning rate and batch size as pure functions of the step.
#ifndef CORE_SCHEDULE_H
#define CORE_SCHEDULE_H

#include <stdint.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
#define SCHEDULE_CHOICES "cosine|linear|constant|wsd"

typedef struct {
    int kind;            // ScheduleKind
    float peak;          // learning rate after the warm-up
    float final_share;   // cosine, linear, wsd: the rate at the end as a share of the peak
    int64_t warmup;      // steps
    int64_t total;       // steps
    float decay_share;   // wsd: share of all steps spent in the decay at the end
} Schedule;

// The learning rate of step 0, 1, ... The warm-up is linear and reaches the peak at step `warmup`. wsd stays at the
// peak and then goes down linearly.
double schedule_rate(const Schedule *schedule, int64_t step);

// Rows (sequences) in the batch of a step: from `start` to `full`, linearly over `ramp` steps.
int schedule_batch(int start, int full, int64_t ramp, int64_t step);

typedef struct { // what the rest of a timed run costs, in seconds
    double step, validation, save;
    int64_t val_every, save_every; // steps between them; 0: only at the end
} StepCosts;

// How many more steps fit into so many seconds, when one validation and one save come after the last of them.
int64_t schedule_steps_that_fit(double seconds, const StepCosts *costs);

#endif
