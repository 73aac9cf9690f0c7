// TensorBoard's event files (--tensorboard): a run's numbers, samples and options, as its own writer would have them. A
// file is a sequence of records (length, its checksum, data, its checksum), each an Event of Protocol Buffers.
//
// Every session of a run has a file of its own, and says first at which step it begins: what earlier files have of that
// step and later ones counts no longer. So a resumed run has every step once.
#ifndef CORE_EVENTS_H
#define CORE_EVENTS_H

#include "core/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *path;   // NULL: there is none
    int file;     // its descriptor
    int64_t size; // whole records
    int64_t lost; // records that could not be written
} Events;

typedef struct {
    const char *tag;
    double value;
} Scalar;

// A new file in the run's directory, for the steps from `step` on.
int events_open(Events *events, const char *directory, int64_t step, Error *error);
void events_close(Events *events);
// From here on the run goes on from an earlier step: what there is of `step` and later ones counts no longer.
void events_restart(Events *events, int64_t step);
// Of one step. A record that cannot be written is reported once; the run goes on without it.
void events_scalars(Events *events, int64_t step, const Scalar *scalars, int count);
void events_text(Events *events, int64_t step, const char *tag, const char *text);
// The run's options, for the table that compares runs. `options` is an object of plain values.
void events_options(Events *events, const json_t *options);

// The Castagnoli checksum that records carry, masked so that a checksum of checksums stays sound.
uint32_t events_crc32c(const void *data, size_t bytes);
uint32_t events_masked_crc32c(const void *data, size_t bytes);

#endif
