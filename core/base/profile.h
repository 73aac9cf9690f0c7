// Where the time of training goes, by kind of layer (--profile). One clock reading per change of work; free when it is
// off. Called from the main thread, between parallel regions.
#ifndef CORE_PROFILE_H
#define CORE_PROFILE_H

#include <stdint.h>
#include <stdio.h>

typedef enum {
    WORK_EMBEDDING, WORK_LAYERNORM, WORK_PRODUCTS, WORK_ATTENTION, WORK_GELU, WORK_DROPOUT, WORK_HEAD, WORK_OPTIMIZER,
    WORK_COMMUNICATION, WORK_DATA, WORK_VALIDATION, WORK_SAVING, WORK_OTHER, WORK_KINDS
} Work;
typedef enum { PHASE_FORWARD, PHASE_BACKWARD, PHASES } Phase;

void profile_begin(void);
// From now on, until the next call, time counts as this kind of work in the current phase.
void profile_work(Work work);
void profile_phase(Phase phase);
// While validating or saving, all time counts as that.
void profile_within(Work work); // WORK_OTHER ends it

// The table of mean times per step, the largest first, with a bar for each share.
void profile_print(FILE *out, int64_t steps);

#endif
