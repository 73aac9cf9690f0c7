#define _GNU_SOURCE
#include "rendezvous.h"
#include "core/base/file.h"
#include "core/base/options.h"
#include "core/base/progress.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static const char hello_mark[8] = "slay.r1", file_mark[] = "slay.c rendezvous 1 ";
enum { HELLO_SECONDS = 2, REPLY_SECONDS = 10, FILE_MOST = 512 };

// What a rank says when it comes, and the answer.
typedef struct {
    char mark[8];
    uint64_t key[2];
    int32_t ranks, rank;
} Hello;
typedef enum { WELCOME, REFUSED, NOT_THIS_RUN } Verdict;
typedef struct {
    char mark[8];
    int32_t verdict;
    char text[148];
} Reply;

typedef struct { // where rank 0 listens
    char host[256], port[8];
    uint64_t key[2];
    char path[1024]; // of the file that says so; "": everybody knows
} Address;

// ---- options

static const char *word_of(const char *name, int argc, char **argv) {
    size_t length = strlen(name);
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        if (strncmp(argv[i], "--", 2) || strncmp(argv[i] + 2, name, length)) continue;
        if (argv[i][2 + length] == '=') return argv[i] + 3 + length;
        if (!argv[i][2 + length]) return i + 1 < argc ? argv[i + 1] : "";
    }
    return NULL;
}

int launch_from_words(Launch *launch, int argc, char **argv, Error *error) {
    *launch = (Launch){.ranks = 0, .rank = -1, .timeout = RANK_TIMEOUT};
    Option items[] = {
        {.name = "ranks", .type = OPTION_INT, .value = &launch->ranks, .least = 1, .most = RANKS_MAX},
        {.name = "rank", .type = OPTION_INT, .value = &launch->rank, .least = 0, .most = RANKS_MAX - 1},
        {.name = "rendezvous", .type = OPTION_STRING, .value = &launch->rendezvous},
        {.name = "rank-timeout", .type = OPTION_FLOAT, .value = &launch->timeout, .least = 0, .most = RANK_TIMEOUT_MAX},
    };
    enum { TOGETHER = 3 }; // the first of them
    const char *missing = NULL;
    int given = 0;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        const char *word = word_of(items[i].name, argc, argv);
        if (i >= TOGETHER && !given) break; // the ranks come together otherwise, and complain of the option together
        if (word && option_set(&items[i], word, error)) return -1;
        if (i < TOGETHER) given += word != NULL, missing = word ? missing : items[i].name;
    }
    if (given && missing)
        return error_set(error, "options --ranks, --rank and --rendezvous belong together: --%s is missing", missing);
    if (given && launch->rank >= launch->ranks)
        return error_set(error, "option --rank: expected 0 to %d, because --ranks is %d; found %d", launch->ranks - 1,
                         launch->ranks, launch->rank);
    return 0;
}

// tcp:HOST:PORT (an IPv6 address in brackets), file:PATH or file:HOST@PATH
static int parse_rendezvous(Address *address, const char *text, Error *error) {
    const char *body = strchr(text, ':'), *at = body ? strchr(body, '@') : NULL,
               *slash = body ? strchr(body, '/') : NULL;
    const char *colon = strrchr(text, ':');
    *address = (Address){.port = "0"};
    if (!strncmp(text, "file:", 5)) {
        if (!at || (slash && slash < at)) at = body;
        snprintf(address->host, sizeof address->host, "%.*s", (int)(at > body ? at - body - 1 : 0), body + 1);
        if (strlen(at + 1) && strlen(at + 1) < sizeof address->path) {
            strcpy(address->path, at + 1);
            return 0;
        }
    }
    if (!strncmp(text, "tcp:", 4) && colon > body + 1) {
        int brackets = body[1] == '[' && colon[-1] == ']';
        char *end;
        long port = strtol(colon + 1, &end, 10);
        snprintf(address->host, sizeof address->host, "%.*s", (int)(colon - body) - 1 - 2 * brackets,
                 body + 1 + brackets);
        snprintf(address->port, sizeof address->port, "%ld", port);
        if (*end == 0 && end > colon + 1 && port > 0 && port < 65536 && colon - body < (int)sizeof address->host)
            return 0;
    }
    return error_set(error, "option --rendezvous: expected tcp:HOST:PORT or file:PATH, found \"%.300s\"", text);
}

// ---- sockets

// Whether the socket is ready for `events` before `patience` seconds are over; 0: there is time without end.
static int is_ready(int socket, short events, double patience) {
    double began = clock_seconds();
    for (;;) {
        struct pollfd ask = {.fd = socket, .events = events};
        if (poll(&ask, 1, 100) > 0) return 1;
        if (patience > 0 && clock_seconds() - began > patience) return 0;
    }
}

int socket_send(int socket, const void *data, size_t bytes, double patience) {
    for (const char *next = data; bytes > 0;) {
        ssize_t sent = send(socket, next, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            next += sent, bytes -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EINTR) {
            if (!is_ready(socket, POLLOUT, patience)) return 1;
        } else {
            return -1;
        }
    }
    return 0;
}

int socket_receive(int socket, void *data, size_t bytes, double patience) {
    for (char *next = data; bytes > 0;) {
        ssize_t received = recv(socket, next, bytes, 0);
        if (received > 0) {
            next += received, bytes -= (size_t)received;
        } else if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!is_ready(socket, POLLIN, patience)) return 1;
        } else {
            return -1;
        }
    }
    return 0;
}

// Small messages go at once; a machine that vanishes is noticed after half a minute.
static void set_options(int socket) {
    const int options[][3] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                              {SOL_SOCKET, SO_KEEPALIVE, 1},
                              {IPPROTO_TCP, TCP_KEEPIDLE, 10},
                              {IPPROTO_TCP, TCP_KEEPINTVL, 5},
                              {IPPROTO_TCP, TCP_KEEPCNT, 4}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        setsockopt(socket, options[i][0], options[i][1], &options[i][2], sizeof(int));
}

static int resolve(struct addrinfo **found, const Address *address, char *why, size_t size) {
    struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int status = getaddrinfo(address->host, address->port, &wanted, found);
    if (status) snprintf(why, size, "%.100s: %s", address->host, gai_strerror(status));
    return status ? -1 : 0;
}

static int open_socket(const struct addrinfo *to) {
    return socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to->ai_protocol);
}

// ---- rank 0

// Where rank 0 listens, from now on in address->port.
static int listen_at(Address *address, Error *error) {
    struct addrinfo *found;
    char why[256] = "";
    int listener = -1, yes = 1;
    if (resolve(&found, address, why, sizeof why)) return error_set(error, "option --rendezvous: %s", why);
    for (const struct addrinfo *a = found; a && listener < 0; a = a->ai_next) {
        listener = open_socket(a);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (listener < 0 || (bind(listener, a->ai_addr, a->ai_addrlen) == 0 && listen(listener, 128) == 0)) continue;
        snprintf(why, sizeof why, "%s", strerror(errno));
        close(listener), listener = -1;
    }
    freeaddrinfo(found);
    if (listener < 0)
        return error_set(error, "option --rendezvous: rank 0 cannot listen at %.200s:%s: %s", address->host,
                         address->port, why);
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    getsockname(listener, (struct sockaddr *)&name, &length);
    getnameinfo((struct sockaddr *)&name, length, NULL, 0, address->port, sizeof address->port, NI_NUMERICSERV);
    return listener;
}

static void address_print(const Address *address, char *text, size_t size) {
    snprintf(text, size, "%s%s %s %016llx%016llx\n", file_mark, address->host, address->port,
             (unsigned long long)address->key[0], (unsigned long long)address->key[1]);
}

// What an earlier run left behind is replaced; any other file is somebody's.
static int publish(Address *address, Error *error) {
    char text[FILE_MOST], *there = NULL;
    FileWriter writer;
    Error unread;
    if (!address->path[0]) return 0;
    if (getrandom(address->key, sizeof address->key, 0) != sizeof address->key)
        return error_set(error, "option --rendezvous: the system gives no random numbers");
    if (file_exists(address->path)) {
        size_t size;
        int is_ours = file_read(&there, &size, address->path, FILE_MOST, &unread) == 0 &&
                      !strncmp(there, file_mark, sizeof file_mark - 1);
        free(there);
        if (!is_ours)
            return error_set(error,
                             "%.700s: expected no file, or the rendezvous of an earlier run; found something "
                             "else, which stays",
                             address->path);
    }
    address_print(address, text, sizeof text);
    if (file_writer_open(&writer, address->path, strlen(text), error)) return -1;
    if (file_write(&writer, text, strlen(text), error)) {
        file_writer_abort(&writer);
        return -1;
    }
    return file_writer_commit(&writer, error);
}

// Another run may have put its own in the same place.
static void unpublish(const Address *address) {
    char mine[FILE_MOST], *there = NULL;
    size_t size;
    Error error;
    if (!address->path[0]) return;
    address_print(address, mine, sizeof mine);
    if (file_read(&there, &size, address->path, FILE_MOST, &error) == 0 && !strcmp(there, mine)) unlink(address->path);
    free(there);
}

static Reply judge(const Hello *hello, const Address *address, const Launch *launch, const int *sockets) {
    Reply reply = {.verdict = REFUSED};
    memcpy(reply.mark, hello_mark, sizeof reply.mark);
    if (memcmp(hello->key, address->key, sizeof hello->key))
        reply.verdict = NOT_THIS_RUN;
    else if (hello->ranks != launch->ranks)
        snprintf(reply.text, sizeof reply.text, "it was started with --ranks %d, this one with --ranks %d",
                 launch->ranks, hello->ranks);
    else if (hello->rank <= 0 || hello->rank >= launch->ranks || sockets[hello->rank] >= 0)
        snprintf(reply.text, sizeof reply.text, "there is a rank %d already", hello->rank);
    else
        reply.verdict = WELCOME;
    return reply;
}

// One who came: a rank of this run gets its place, others are told why not, and what says nothing sensible is dropped.
static int receive_guest(int guest, int *sockets, const Address *address, const Launch *launch) {
    Hello hello;
    Reply reply;
    if (socket_receive(guest, &hello, sizeof hello, HELLO_SECONDS) == 0 &&
        !memcmp(hello.mark, hello_mark, sizeof hello.mark)) {
        reply = judge(&hello, address, launch, sockets);
        if (socket_send(guest, &reply, sizeof reply, HELLO_SECONDS) == 0 && reply.verdict == WELCOME) {
            set_options(guest);
            sockets[hello.rank] = guest;
            return 1;
        }
    }
    close(guest);
    return 0;
}

static int refuse_missing(const int *sockets, const Launch *launch, Error *error) {
    char list[200] = "";
    size_t used = 0;
    int came = 1;
    for (int r = 1; r < launch->ranks; r++) {
        came += sockets[r] >= 0;
        if (sockets[r] < 0 && used < sizeof list - 16)
            used += (size_t)sprintf(list + used, "%s%d", used ? ", " : "", r);
    }
    return error_set(error, "%d of %d ranks came to %.300s within %.0f s; missing: %s", came, launch->ranks,
                     launch->rendezvous, launch->timeout, list);
}

static int wait_for_all(int *sockets, const Launch *launch, Address *address, Error *error) {
    int listener = listen_at(address, error);
    if (listener < 0) return -1;
    int missing = launch->ranks - 1, status = publish(address, error);
    for (double began = clock_seconds(); status == 0 && missing > 0;) {
        int guest = is_ready(listener, POLLIN, 0.1) ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        if (guest >= 0) missing -= receive_guest(guest, sockets, address, launch);
        if (missing > 0 && launch->timeout > 0 && clock_seconds() - began > launch->timeout)
            status = refuse_missing(sockets, launch, error);
    }
    close(listener);
    if (status == 0 || missing > 0) unpublish(address);
    return status;
}

// ---- the others

// 0, or 1 while there is no file yet.
static int read_address(Address *address, Error *error) {
    char *text = NULL, host[256], port[8], mark[sizeof file_mark] = "";
    unsigned long long key[2];
    size_t size;
    int length = 0;
    if (!address->path[0]) return 0;
    if (!file_exists(address->path)) return 1;
    if (file_read(&text, &size, address->path, FILE_MOST, error)) return file_exists(address->path) ? -1 : 1;
    snprintf(mark, sizeof mark, "%s", text);
    int is_right = !strcmp(mark, file_mark) &&
                   sscanf(text + sizeof file_mark - 1, "%255s %7[0-9] %16llx%16llx%n", host, port, &key[0], &key[1],
                          &length) == 4 &&
                   text[sizeof file_mark - 1 + (size_t)length] == '\n';
    free(text);
    if (!is_right)
        return error_set(error, "%.700s: expected the rendezvous that rank 0 writes, found something else",
                         address->path);
    strcpy(address->host, host), strcpy(address->port, port);
    address->key[0] = key[0], address->key[1] = key[1];
    return 0;
}

static int connect_to(const Address *address, char *why, size_t size) {
    struct addrinfo *found;
    int connection = -1;
    if (resolve(&found, address, why, size)) return -1;
    for (const struct addrinfo *a = found; a && connection < 0; a = a->ai_next) {
        int status = ETIMEDOUT;
        socklen_t length = sizeof status;
        connection = open_socket(a);
        if (connection < 0) continue;
        if (connect(connection, a->ai_addr, a->ai_addrlen) == 0) break;
        if (errno != EINPROGRESS)
            status = errno;
        else if (is_ready(connection, POLLOUT, HELLO_SECONDS))
            getsockopt(connection, SOL_SOCKET, SO_ERROR, &status, &length);
        if (status == 0) break;
        snprintf(why, size, "%.100s:%s: %s", address->host, address->port, strerror(status));
        close(connection), connection = -1;
    }
    freeaddrinfo(found);
    return connection;
}

// 0: in; 1: not this time; -1: never.
static int ask_to_join(int connection, const Launch *launch, const Address *address, char *why, size_t size,
                       Error *error) {
    Hello hello = {.key = {address->key[0], address->key[1]}, .ranks = launch->ranks, .rank = launch->rank};
    Reply reply;
    memcpy(hello.mark, hello_mark, sizeof hello.mark);
    snprintf(why, size, "%.100s:%s does not answer as rank 0 would", address->host, address->port);
    if (socket_send(connection, &hello, sizeof hello, REPLY_SECONDS) ||
        socket_receive(connection, &reply, sizeof reply, REPLY_SECONDS) ||
        memcmp(reply.mark, hello_mark, sizeof reply.mark))
        return 1;
    reply.text[sizeof reply.text - 1] = 0;
    if (reply.verdict == NOT_THIS_RUN) snprintf(why, size, "%.100s:%s is another run", address->host, address->port);
    if (reply.verdict == REFUSED) return error_set(error, "rank 0 at %.300s: %s", launch->rendezvous, reply.text);
    return reply.verdict == WELCOME ? 0 : 1;
}

static int find_first(int *first, const Launch *launch, Address *address, Error *error) {
    char why[256] = "there is no such file";
    for (double began = clock_seconds();; usleep(50000)) {
        int status = read_address(address, error);
        int connection = status == 0 ? connect_to(address, why, sizeof why) : -1;
        if (connection >= 0) status = ask_to_join(connection, launch, address, why, sizeof why, error);
        if (connection >= 0 && status == 0) {
            set_options(connection);
            *first = connection;
            return 0;
        }
        if (connection >= 0) close(connection);
        if (status < 0) return -1;
        if (launch->timeout > 0 && clock_seconds() - began > launch->timeout)
            return error_set(error, "rank 0 did not come to %.300s within %.0f s: %s", launch->rendezvous,
                             launch->timeout, why);
    }
}

int rendezvous_join(int *sockets, const Launch *launch, Error *error) {
    Address address;
    if (parse_rendezvous(&address, launch->rendezvous, error)) return -1;
    if (launch->ranks == 1) return 0;
    if (launch->rank > 0) return find_first(&sockets[0], launch, &address, error);
    if (!address.host[0] && gethostname(address.host, sizeof address.host - 1))
        return error_set(error, "option --rendezvous: this machine has no name; say file:HOST@PATH");
    return wait_for_all(sockets, launch, &address, error);
}
