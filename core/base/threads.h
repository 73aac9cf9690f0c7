// How threads wait for each other.
#ifndef CORE_THREADS_H
#define CORE_THREADS_H

// Chooses how OpenMP's threads wait for each other, and starts the program again with that choice; call it first in
// main. Threads that spin while they wait cost nothing on idle cores. Where another process wants the same cores, each
// wait lasts until the scheduler comes round, and a training step can take forty times as long. Threads that sleep
// take up to a tenth of a millisecond to wake up for each parallel loop: a good part of a small model's step, half of a
// token's time in int8. So threads sleep at once if other processes are running when the program starts; if not, they
// first spin for 40 microseconds, longer than most gaps between loops. The OpenMP runtime reads its settings from the
// environment before main begins: hence the restart. Nothing happens if the user has chosen (OMP_WAIT_POLICY,
// GOMP_SPINCOUNT).
void threads_restart_with_wait_policy(char **argv);

// Uses `count` threads (0: as many as there are cores) and returns their number.
int threads_use(int count);

#endif
