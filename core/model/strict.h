// --strict: weights are taken only from files in which checksums vouch for every byte that is used.
#ifndef CORE_STRICT_H
#define CORE_STRICT_H

#include "core/base/error.h"
#include "core/base/options.h"

void strict_add_option(Options *options, const char *group);
// Refuses weights that nothing vouches for, where the option was given; `found` says what the file at `path` has.
int strict_check(int has_checksums, const char *path, const char *found, Error *error);

#endif
