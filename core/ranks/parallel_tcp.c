// Ranks over sockets, for machines without MPI: every message goes by way of rank 0, which is good enough for the small
// ones, and a watch notices when a rank goes away.
#define _GNU_SOURCE
#include "core/base/memory.h"
#include "parallel.h"
#include "parallel_transport.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef enum { MESSAGE = 0x736c6179, FAREWELL = 0x62796521 } Kind;

typedef struct {
    uint32_t kind, number; // messages are counted, on every connection in both directions
    uint64_t bytes;
} Header;

static struct {
    Place place;
    int *sockets;              // (ranks) rank 0: to each other rank; others: the first, to rank 0
    uint32_t *sent, *received; // (ranks) messages
    pthread_t watch;
    volatile int ends;
    int is_leaving; // a thread has begun to end the program
} tcp;

// ---- ranks that go away

// The other ranks need not say that this one is gone: it has said why.
static void send_farewells(void) {
    Header farewell = {.kind = FAREWELL};
    for (int r = 0; r < tcp.place.ranks; r++)
        if (tcp.sockets[r] >= 0) send(tcp.sockets[r], &farewell, sizeof farewell, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// What a rank last sent stands at the end of what has not been read yet.
static int has_said_farewell(int socket) {
    static char unread[1 << 16];
    Header last;
    ssize_t bytes = recv(socket, unread, sizeof unread, MSG_PEEK | MSG_DONTWAIT);
    if (bytes < (ssize_t)sizeof last) return 0;
    memcpy(&last, unread + bytes - sizeof last, sizeof last);
    return last.kind == FAREWELL;
}

// The first thread that comes here ends the program; another waits for that.
static void leave_because_of(int rank, int has_told) {
    while (__atomic_exchange_n(&tcp.is_leaving, 1, __ATOMIC_SEQ_CST)) pause();
    if (!has_told) {
        Error error;
        error_set(&error, "rank %d is gone; all ranks end, the last checkpoint is intact", rank);
        error_print(&error);
    }
    send_farewells();
    _exit(1);
}

// Looks after the other ends, ten times a second: a rank that is busy, with a GPU, say, would not notice.
static void *watch_others(void *unused) {
    struct pollfd *ends = memory_allocate((size_t)tcp.place.ranks, sizeof *ends, "the list of ranks");
    for (int r = 0; r < tcp.place.ranks; r++) ends[r] = (struct pollfd){.fd = tcp.sockets[r], .events = POLLRDHUP};
    while (!tcp.ends) {
        if (poll(ends, (nfds_t)tcp.place.ranks, 100) <= 0) continue;
        for (int r = 0; r < tcp.place.ranks && !tcp.ends; r++)
            if (ends[r].revents) leave_because_of(r, has_said_farewell(ends[r].fd));
    }
    free(ends);
    return unused;
}

// Rank 0 has the first word, and its end ends the others.
static int speaks(void) {
    if (tcp.place.rank > 0) sleep(2);
    return 1;
}

// ---- messages

static void check_moved(int status, int rank) {
    char what[64];
    snprintf(what, sizeof what, "a message of rank %d", rank);
    if (status < 0) leave_because_of(rank, has_said_farewell(tcp.sockets[rank]));
    if (status == 0) return;
    parallel_tell_of_wait(what, parallel_timeout());
    exit(1);
}

static void send_to(int rank, const void *data, size_t bytes) {
    Header header = {MESSAGE, tcp.sent[rank]++, bytes};
    check_moved(socket_send(tcp.sockets[rank], &header, sizeof header, parallel_timeout()), rank);
    check_moved(socket_send(tcp.sockets[rank], data, bytes, parallel_timeout()), rank);
}

static void receive_from(int rank, void *data, size_t bytes) {
    Header header;
    check_moved(socket_receive(tcp.sockets[rank], &header, sizeof header, parallel_timeout()), rank);
    if (header.kind == FAREWELL) leave_because_of(rank, 1);
    uint32_t number = tcp.received[rank]++;
    if (header.kind != MESSAGE || header.number != number || header.bytes != bytes)
        die("rank %d sent message %u, of %llu bytes, where message %u, of %llu, was expected: are all ranks of the "
            "same "
            "build?",
            rank, header.number, (unsigned long long)header.bytes, number, (unsigned long long)bytes);
    check_moved(socket_receive(tcp.sockets[rank], data, bytes, parallel_timeout()), rank);
}

static void broadcast(void *data, size_t bytes, int from) {
    if (from > 0 && tcp.place.rank == from) send_to(0, data, bytes);
    if (from > 0 && tcp.place.rank == 0) receive_from(from, data, bytes);
    for (int r = 1; tcp.place.rank == 0 && r < tcp.place.ranks; r++)
        if (r != from) send_to(r, data, bytes);
    if (tcp.place.rank > 0 && tcp.place.rank != from) receive_from(0, data, bytes);
}

static void gather(void *all, const void *mine, size_t bytes) {
    if (tcp.place.rank > 0) {
        send_to(0, mine, bytes);
    } else {
        memcpy(all, mine, bytes);
        for (int r = 1; r < tcp.place.ranks; r++) receive_from(r, (char *)all + (size_t)r * bytes, bytes);
    }
    broadcast(all, (size_t)tcp.place.ranks * bytes, 0);
}

static void collect(void *data, size_t bytes, int from) {
    if (tcp.place.rank == from)
        send_to(0, data, bytes);
    else
        receive_from(from, data, bytes);
}

// ---- start and end

static void end(void) {
    char mine = 0, *all = memory_allocate((size_t)tcp.place.ranks, 1, "the list of ranks");
    tcp.ends = 1;
    pthread_join(tcp.watch, NULL);
    gather(all, &mine, 1); // nobody closes a connection that another still looks after
    for (int r = 0; r < tcp.place.ranks; r++)
        if (tcp.sockets[r] >= 0) close(tcp.sockets[r]), tcp.sockets[r] = -1;
    free(all);
}

// exit() before the common end: with an error, which has been printed, or after --help.
static void on_early_exit(int status, void *unused) {
    (void)unused;
    if (tcp.ends) return;
    if (status == 0) {
        end();
        return;
    }
    tcp.ends = 1;
    send_farewells();
}

typedef struct { // what tells whether two ranks are on one machine, and may use the same cores
    char machine[128];
    cpu_set_t cores;
} Home;

static Home find_home(void) {
    Home home;
    memset(&home, 0, sizeof home);
    gethostname(home.machine, 64);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r"); // machines may have the same name
    if (file && !fgets(home.machine + 64, 64, file)) home.machine[64] = 0;
    if (file) fclose(file);
    sched_getaffinity(0, sizeof home.cores, &home.cores);
    return home;
}

static void find_neighbours(void) {
    Place *place = &tcp.place;
    Home mine = find_home(), *all = memory_allocate((size_t)place->ranks, sizeof mine, "the ranks' machines");
    gather(all, &mine, sizeof mine);
    for (int r = 0; r < place->ranks; r++) {
        if (memcmp(all[r].machine, mine.machine, sizeof mine.machine)) continue;
        place->local_rank += r < place->rank;
        place->local_ranks++;
        place->sharers += CPU_EQUAL(&all[r].cores, &mine.cores) ? 1 : 0;
    }
    free(all);
}

static Place start(const Launch *launch) {
    Error error;
    size_t ranks = (size_t)launch->ranks;
    tcp.place = (Place){.rank = launch->rank, .ranks = launch->ranks};
    tcp.sockets = memory_allocate(ranks, sizeof *tcp.sockets, "the ranks' connections");
    tcp.sent = memory_allocate_zeroed(ranks, sizeof *tcp.sent, "the ranks' connections");
    tcp.received = memory_allocate_zeroed(ranks, sizeof *tcp.received, "the ranks' connections");
    for (size_t r = 0; r < ranks; r++) tcp.sockets[r] = -1;
    if (ranks > 1) error_set_rank(launch->rank), on_exit(on_early_exit, NULL);
    die_if(rendezvous_join(tcp.sockets, launch, &error), &error);
    if (ranks == 1) return (Place){.ranks = 1, .local_ranks = 1, .sharers = 1};
    if (pthread_create(&tcp.watch, NULL, watch_others, NULL)) die("cannot start the thread that watches the ranks");
    find_neighbours();
    return tcp.place;
}

const Transport transport_tcp = {start, end, gather, broadcast, collect, speaks, NULL, NULL};
