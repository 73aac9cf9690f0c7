// How threads wait for each other.
#ifndef CORE_THREADS_H
#define CORE_THREADS_H

// Call first in main. OpenMP's threads spin while they wait, which costs nothing on a machine of one's own; where another
// process wants the same cores, each wait lasts until the scheduler has been round, and a training step can take forty
// times as long. Sleeping instead costs as much as a thread takes to wake up, up to a tenth of a millisecond per parallel
// loop on a virtual machine: a good part of a small model's step, half of a token's time in int8. So threads sleep at once
// where other processes are running when the program starts, and else after spinning for 40 microseconds, longer than most
// gaps between loops. The OpenMP runtime reads its settings from the environment before main begins, so the program sets
// them and starts itself once more, unless the user has chosen (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
void threads_restart_with_wait_policy(char **argv);

// Uses `count` threads (0: as many as there are cores) and returns their number.
int threads_use(int count);

#endif
