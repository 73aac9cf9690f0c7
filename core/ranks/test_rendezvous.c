// Ranks that come together without MPI: the options, addresses, who is let in, messages. Strangers and real processes:
// scripts/test_rendezvous.sh.
#define _GNU_SOURCE
#include "core/base/test.h"
#include "core/base/test_files.h"
#include "rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { RANKS = 3 };

static Error error;

// ---- options

static int launch_with(Launch *launch, const char *line) {
    static char copy[256];
    char *argv[16] = {"test"}, *rest;
    int argc = 1;
    error.text[0] = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) argv[argc++] = word;
    return launch_from_words(launch, argc, argv, &error);
}

static void options_belong_together(void) {
    Launch launch;
    CHECK(launch_with(&launch, "--steps 3 --rank-timeout 7") == 0); // alone it is the options' own affair
    CHECK(launch.ranks == 0 && launch.rank == -1 && !launch.rendezvous && launch.timeout == RANK_TIMEOUT);
    CHECK(launch_with(&launch, "--ranks 4 --rank=3 --rendezvous tcp:a:1 --rank-timeout 7") == 0);
    CHECK(launch.ranks == 4 && launch.rank == 3 && !strcmp(launch.rendezvous, "tcp:a:1") && launch.timeout == 7);
    CHECK(launch_with(&launch, "--ranks 1 --rank 0 --rendezvous=x -- --rank 5") == 0 && launch.rank == 0);
    static const char *const refused[][2] = {
        {"--rank 0 --rendezvous x", "--ranks is missing"},
        {"--ranks 2 --rendezvous x", "--rank is missing"},
        {"--ranks 2 --rank 1", "--rendezvous is missing"},
        {"--rendezvous x", "is missing"},
        {"--ranks 2 --rank 2 --rendezvous x", "option --rank: expected 0 to 1, because --ranks is 2; found 2"},
        {"--ranks 0 --rank 0 --rendezvous x", "option --ranks"},
        {"--ranks 2 --rank -1 --rendezvous x", "option --rank"},
        {"--ranks 2 --rank", "option --rank"},
        {"--ranks 2 --rank 1 --rendezvous x --rank-timeout soon", "option --rank-timeout"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        CHECK(launch_with(&launch, refused[i][0]) == -1);
        CHECK_CONTAINS(error.text, refused[i][1]);
    }
}

// One rank has nobody to look for: only its address is read.
static int is_address(const char *text) {
    int socket = -1;
    return rendezvous_join(&socket, &(Launch){.ranks = 1, .rendezvous = text, .timeout = 1}, &error) == 0;
}

static void addresses(void) {
    static const char *const good[] = {"tcp:host:1", "tcp:host:65535", "tcp:[::1]:80",    "tcp:h:1",
                                       "file:a",     "file:/tmp/a@b",  "file:host@/tmp/a"};
    static const char *const bad[] = {"",          "nothing",    "tcp:",           "tcp:host",    "tcp::1",
                                      "tcp:host:", "tcp:host:0", "tcp:host:65536", "tcp:host:-1", "tcp:host:1x",
                                      "file:",     "file:host@", "udp:host:1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) CHECK(is_address(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!is_address(bad[i]));
        CHECK_CONTAINS(error.text, "expected tcp:HOST:PORT or file:PATH, found \"");
    }
    for (int length = 250; length < 260; length++) { // a host's name has at most 254 letters
        char text[300] = "tcp:";
        memset(text + 4, 'h', (size_t)length);
        snprintf(text + 4 + length, 4, ":1");
        CHECK(is_address(text) == (length < 255));
    }
    for (int length = 1020; length < 1027; length++) { // and a path 1023
        char text[1100] = "file:";
        memset(text + 5, 'p', (size_t)length);
        CHECK(is_address(text) == (length < 1024));
    }
}

// ---- messages

static void make_pair(int ends[2]) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
}

static void messages_arrive_whole(void) {
    enum { BYTES = 3 << 20 };
    static char sent[BYTES], received[BYTES];
    int ends[2], status = 0;
    make_pair(ends);
    for (int i = 0; i < BYTES; i++) sent[i] = (char)(i * 7 + i / 251);
    pid_t child = fork();
    if (child == 0) {
        usleep(200000); // patience 0 waits for it
        _exit(socket_send(ends[1], sent, BYTES, 20) != 0);
    }
    CHECK(socket_receive(ends[0], received, BYTES, 0) == 0 && !memcmp(sent, received, BYTES));
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(socket_receive(ends[0], received, 1, 0.05) == 1); // nothing comes
    while (send(ends[0], sent, BYTES, 0) > 0)
        ;
    CHECK(socket_send(ends[0], sent, BYTES, 0.05) == 1); // nobody takes it
    close(ends[1]);
    CHECK(socket_send(ends[0], sent, 1, 1) == -1);
    close(ends[0]);
    make_pair(ends);
    close(ends[1]);
    CHECK(socket_receive(ends[0], received, 1, 1) == -1);
    close(ends[0]);
}

// ---- coming together

static int free_port(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&name, length) == 0 &&
          getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    close(listener);
    return ntohs(name.sin_port);
}

// A rank in a process of its own: it joins, tells rank 0 its number and takes twice the number back.
static pid_t start_rank(int rank, const Launch *launch) {
    pid_t child = fork();
    if (child) return child;
    Launch mine = *launch;
    int first = -1, number = rank, answer = 0;
    mine.rank = rank;
    if (rendezvous_join(&first, &mine, &error)) _exit(1);
    _exit(socket_send(first, &number, sizeof number, 20) || socket_receive(first, &answer, sizeof answer, 20) ? 2
          : answer == 2 * rank                                                                                ? 0
                                                                                                              : 3);
}

static int exit_code(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_meeting(const char *address) {
    Launch launch = {.ranks = RANKS, .rank = 0, .rendezvous = address, .timeout = 60};
    int sockets[RANKS] = {-1, -1, -1}, number = 0;
    pid_t ranks[RANKS];
    for (int r = 1; r < RANKS; r++) ranks[r] = start_rank(r, &launch);
    int status = rendezvous_join(sockets, &launch, &error);
    CHECK(status == 0 && sockets[0] == -1);
    for (int r = 1; r < RANKS; r++) {
        CHECK(status == 0 && socket_receive(sockets[r], &number, sizeof number, 20) == 0 && number == r);
        number *= 2;
        CHECK(status == 0 && socket_send(sockets[r], &number, sizeof number, 20) == 0);
        CHECK(exit_code(ranks[r]) == 0);
        close(sockets[r]);
    }
}

static void ranks_meet(void) {
    char text[600];
    snprintf(text, sizeof text, "tcp:127.0.0.1:%d", free_port());
    check_meeting(text);
    snprintf(text, sizeof text, "file:localhost@%s", test_path("meeting"));
    check_meeting(text);
    CHECK(access(test_path("meeting"), F_OK) != 0); // nothing is left
    test_write(test_path("meeting"), "slay.c rendezvous 1 localhost 1 00000000000000000000000000000000\n", 65);
    check_meeting(text); // what an earlier run left is replaced
}

// ---- those who are not let in

static int join(int rank, int ranks, const char *address, float timeout) {
    int sockets[RANKS] = {-1, -1, -1};
    error.text[0] = 0;
    int status = rendezvous_join(sockets, &(Launch){ranks, rank, address, timeout}, &error);
    for (int r = 0; r < RANKS; r++)
        if (sockets[r] >= 0) close(sockets[r]);
    return status;
}

static pid_t start_first(const char *address, float timeout) {
    pid_t child = fork();
    if (child == 0)
        _exit(join(0, RANKS, address, timeout)
                  ? strstr(error.text, "2 of 3 ranks came") && strstr(error.text, "missing: 2") ? 7 : 8
                  : 0);
    return child;
}

static void who_is_refused(void) {
    char text[600];
    snprintf(text, sizeof text, "file:localhost@%s", test_path("strict"));
    pid_t first = start_first(text, 60);
    CHECK(join(1, RANKS + 1, text, 30) == -1);
    CHECK_CONTAINS(error.text, "it was started with --ranks 3, this one with --ranks 4");
    CHECK(join(1, RANKS, text, 30) == 0);
    CHECK(join(1, RANKS, text, 30) == -1);
    CHECK_CONTAINS(error.text, "there is a rank 1 already");
    CHECK(join(2, RANKS, text, 30) == 0);
    CHECK(exit_code(first) == 0);
}

static void who_does_not_come(void) {
    char text[600];
    snprintf(text, sizeof text, "file:localhost@%s", test_path("alone"));
    pid_t first = start_first(text, 1);
    CHECK(join(1, RANKS, text, 30) == 0);
    CHECK(exit_code(first) == 7 && access(test_path("alone"), F_OK) != 0);
    CHECK(join(1, RANKS, text, 0.1f) == -1);
    CHECK_CONTAINS(error.text, "rank 0 did not come to file:");
    CHECK_CONTAINS(error.text, "there is no such file");
    static const char *const strange[] = {"something", "slay.c rendezvous 1 localhost",
                                          "slay.c rendezvous 1 a 1 0123456789abcdef0123456789abcdef0\n"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        test_write(test_path("alone"), strange[i], strlen(strange[i]));
        CHECK(join(1, RANKS, text, 5) == -1);
        CHECK_CONTAINS(error.text, "expected the rendezvous that rank 0 writes, found something else");
    }
    test_write(test_path("alone"), "mine", 4);
    CHECK(join(0, RANKS, text, 1) == -1);
    CHECK_CONTAINS(error.text, "found something else, which stays");
    CHECK(access(test_path("alone"), F_OK) == 0);
}

int main(void) {
    test_directory_make();
    RUN(options_belong_together);
    RUN(addresses);
    RUN(messages_arrive_whole);
    RUN(ranks_meet);
    RUN(who_is_refused);
    RUN(who_does_not_come);
    return test_summary();
}
