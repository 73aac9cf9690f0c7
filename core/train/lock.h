// RUN/lock: one run at a time writes into a directory. The file says who holds it, for messages and for file systems
// whose locks do not reach other machines.
#ifndef CORE_LOCK_H
#define CORE_LOCK_H

#include "core/base/error.h"

// Takes the lock of a run directory; `flags` says whether the file may be created. *descriptor is -1 where it is not
// there and may not be. Refuses where another run holds it, or may hold it on another machine; warns where another
// machine would not notice.
int lock_take(int *descriptor, const char *directory, int flags, Error *error);
// Writes down who holds it: a run that begins.
void lock_sign(int descriptor);
void lock_release(int descriptor);

#endif
