// Ranks over MPI: starting and ending together, small messages, and a watch that notices when a rank is killed.
#ifdef HAVE_MPI
#define _GNU_SOURCE
#include "parallel_mpi.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "parallel_transport.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Each rank has one of these in memory that all ranks of the machine see.
typedef struct {
    pid_t process;
    int rank;
    int waits;         // for the others
    int has_left;      // by exit(), with a message of its own
    int death_is_told; // by the lowest rank that noticed
    int end_is_told;   // the first slot's: why all ranks end
    cpu_set_t cores;
} Slot;

MPI_Comm mpi_comm_spreading, mpi_comm_gathering;

static struct {
    Place place;
    MPI_Comm machine; // the ranks on this machine
    MPI_Win window;   // of the slots
    Slot **slots;     // (local_ranks)
    pthread_t watch;
    volatile int ends;
} mpi;

static void sleep_microseconds(long microseconds) {
    struct timespec pause = {0, 1000 * microseconds};
    nanosleep(&pause, NULL);
}

void mpi_pause(int tries, const char *what) {
    enum { YIELDS = 2000, LOOKS = 1000 }; // before it sleeps; between looks at the clock
    static double began;
    if (tries < YIELDS) {
        sched_yield();
        return;
    }
    if (tries == YIELDS) began = clock_seconds(), parallel_wait(1);
    sleep_microseconds(50);
    double waited = tries % LOOKS ? 0 : clock_seconds() - began;
    if (parallel_timeout() == 0 || waited <= parallel_timeout()) return;
    parallel_tell_of_wait(what, waited);
    exit(1);
}

void mpi_wait(MPI_Request *request) {
    int done = 0;
    for (int tries = 0; MPI_Test(request, &done, MPI_STATUS_IGNORE), !done; tries++)
        mpi_pause(tries, "a small message");
    parallel_wait(0);
}

// ---- the watch

// The letter that the system has for what a process does; 0: none.
static char state_of(pid_t process) {
    char path[64], line[512], *end;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    line[length] = 0;
    end = strrchr(line, ')'); // the state follows the program's name
    return end && end[1] ? end[2] : 0;
}

// A process that was killed is gone, or a zombie until its parent looks.
static int is_dead(pid_t process) {
    if (kill(process, 0) && errno == ESRCH) return 1;
    char state = state_of(process);
    return state == 'Z' || state == 'X';
}

static void tell_of_death(Slot *slot) {
    if (__atomic_exchange_n(&slot->death_is_told, 1, __ATOMIC_SEQ_CST)) return;
    char message[256];
    int length = snprintf(message, sizeof message,
                          "%s: rank %d (process %d) was killed; all ranks end, the last checkpoint is intact\n",
                          error_program(), slot->rank, (int)slot->process);
    if (write(STDERR_FILENO, message, (size_t)length) < 0) return;
}

static void leave(void) {
    __atomic_store_n(&mpi.slots[mpi.place.local_rank]->has_left, 1, __ATOMIC_SEQ_CST);
    _exit(1);
}

// Not every launcher ends a run when one of its processes is killed, and the others would wait for ever: each rank
// looks after those on its machine, ten times a second.
static void *watch_others(void *unused) {
    for (int left = 0; !mpi.ends; sleep_microseconds(100000)) {
        for (int i = 0; i < mpi.place.local_ranks; i++) {
            Slot *slot = mpi.slots[i];
            if (__atomic_load_n(&slot->has_left, __ATOMIC_SEQ_CST)) {
                if (++left > 50) leave(); // it has said why; the launcher has had its five seconds
            } else if (is_dead(slot->process) && !mpi.ends) {
                tell_of_death(slot);
                leave();
            }
        }
    }
    return unused;
}

// ---- waiting

static void wait_for_others(int begins) {
    __atomic_store_n(&mpi.slots[mpi.place.local_rank]->waits, begins, __ATOMIC_SEQ_CST);
}

// Those of this machine's ranks that are stopped or do something else than waiting. Where all of them wait the missing
// one is elsewhere: its neighbours are given the first word.
static void find_missing(char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < mpi.place.local_ranks; i++) {
        Slot *slot = mpi.slots[i];
        char state = state_of(slot->process);
        int is_stopped = state == 'T' || state == 't';
        if (used >= size || (__atomic_load_n(&slot->waits, __ATOMIC_SEQ_CST) && !is_stopped)) continue;
        used += (size_t)snprintf(text + used, size - used, "%srank %d (process %d%s)", used ? ", " : "", slot->rank,
                                 (int)slot->process, is_stopped ? ", which is stopped" : "");
    }
    if (!used) sleep(2);
}

// The first on this machine that asks.
static int speaks(void) {
    return !__atomic_exchange_n(&mpi.slots[0]->end_is_told, 1, __ATOMIC_SEQ_CST);
}

static void end(void);

// exit() before the common end: with an error, which has been printed, or after --help.
static void on_early_exit(int status, void *unused) {
    (void)unused;
    if (mpi.ends) return;
    if (status == 0) {
        end();
        return;
    }
    __atomic_store_n(&mpi.slots[mpi.place.local_rank]->has_left, 1, __ATOMIC_SEQ_CST);
    mpi.ends = 1;
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, status);
}

// ---- start and end

static void share_slots(void) {
    Place *place = &mpi.place;
    Slot *mine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &mpi.machine);
    MPI_Comm_rank(mpi.machine, &place->local_rank);
    MPI_Comm_size(mpi.machine, &place->local_ranks);
    MPI_Win_allocate_shared(sizeof(Slot), 1, MPI_INFO_NULL, mpi.machine, &mine, &mpi.window);
    *mine = (Slot){.process = getpid(), .rank = place->rank};
    sched_getaffinity(0, sizeof mine->cores, &mine->cores);
    mpi.slots = memory_allocate((size_t)place->local_ranks, sizeof *mpi.slots, "the list of ranks");
    for (int i = 0; i < place->local_ranks; i++) {
        MPI_Aint size;
        int unit;
        MPI_Win_shared_query(mpi.window, i, &size, &unit, &mpi.slots[i]);
    }
    MPI_Barrier(mpi.machine);
    for (int i = 0; i < place->local_ranks; i++)
        place->sharers += CPU_EQUAL(&mpi.slots[i]->cores, &mine->cores) ? 1 : 0;
    MPI_Barrier(mpi.machine);
}

static Place start(const Launch *launch) {
    int provided;
    (void)launch; // MPI knows
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    mpi.place = (Place){0};
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi.place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi.place.ranks);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi_comm_spreading);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi_comm_gathering);
    share_slots();
    on_exit(on_early_exit, NULL);
    if (pthread_create(&mpi.watch, NULL, watch_others, NULL)) die("cannot start the thread that watches the ranks");
    if (mpi.place.ranks == 1) end();
    return mpi.place;
}

static void end(void) {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    mpi_wait(&request);
    mpi.ends = 1;
    pthread_join(mpi.watch, NULL);
    MPI_Win_free(&mpi.window);
    MPI_Comm_free(&mpi.machine), MPI_Comm_free(&mpi_comm_spreading), MPI_Comm_free(&mpi_comm_gathering);
    free(mpi.slots);
    MPI_Finalize();
}

// ---- small messages

int mpi_carries(void) {
    return mpi.place.ranks > 1;
}

static void gather(void *all, const void *mine, size_t bytes) {
    MPI_Request request;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    mpi_wait(&request);
}

static void broadcast(void *data, size_t bytes, int from) {
    MPI_Request request;
    MPI_Ibcast(data, (int)bytes, MPI_BYTE, from, MPI_COMM_WORLD, &request);
    mpi_wait(&request);
}

static void collect(void *data, size_t bytes, int from) {
    enum { AT_ONCE = 1 << 26 }; // MPI counts in int
    for (size_t first = 0; first < bytes; first += AT_ONCE) {
        int n = bytes - first < AT_ONCE ? (int)(bytes - first) : AT_ONCE;
        MPI_Request request;
        if (mpi.place.rank == from)
            MPI_Isend((char *)data + first, n, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
        else
            MPI_Irecv((char *)data + first, n, MPI_BYTE, from, 0, MPI_COMM_WORLD, &request);
        mpi_wait(&request);
    }
}

const Transport transport_mpi = {start, end, gather, broadcast, collect, speaks, wait_for_others, find_missing};
#endif
