#include "schedule.h"

#include <math.h>

// From 1 down to `final_share` as x goes from 0 to 1.
static double linear_decay(double x, double final_share) {
    return 1 - (1 - final_share) * x;
}

static double cosine_decay(double x, double final_share) {
    return final_share + (1 - final_share) * 0.5 * (1 + cos(3.14159265358979 * x));
}

double schedule_rate(const Schedule *schedule, int64_t step) {
    double peak = schedule->peak, final_share = schedule->final_share;
    if (step < schedule->warmup) return peak * (double)(step + 1) / (double)(schedule->warmup + 1);
    int64_t decay_start = schedule->warmup;
    if (schedule->kind == SCHEDULE_WSD) {
        decay_start = schedule->total - (int64_t)(schedule->decay_share * (double)schedule->total);
        if (decay_start < schedule->warmup) decay_start = schedule->warmup;
    }
    if (schedule->kind == SCHEDULE_CONSTANT || step <= decay_start) return peak;
    // The last step, total - 1, lies one step before the schedule's end, so that no step is wasted on a rate of 0.
    double x = step >= schedule->total ? 1 : (double)(step - decay_start) / (double)(schedule->total - decay_start);
    return peak * (schedule->kind == SCHEDULE_COSINE ? cosine_decay(x, final_share) : linear_decay(x, final_share));
}

int schedule_batch(int start, int full, int64_t ramp, int64_t step) {
    if (start <= 0 || step >= ramp) return full;
    return start + (int)((int64_t)(full - start) * step / ramp);
}

int64_t schedule_steps_that_fit(double seconds, const StepCosts *costs) {
    double per_step = costs->step, left = seconds - costs->validation - costs->save;
    if (costs->val_every > 0) per_step += costs->validation / (double)costs->val_every;
    if (costs->save_every > 0) per_step += costs->save / (double)costs->save_every;
    if (!(left > 0) || !(per_step > 0)) return 0;
    return (int64_t)fmin(floor(left / per_step), 1e12);
}
