#define _GNU_SOURCE
#include "lock.h"
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

// ---- who holds it

typedef struct {
    int process; // 0: nobody
    char machine[256];
} Holder;

static Holder holder_read(int descriptor) {
    Holder holder = {0};
    char text[320];
    ssize_t bytes = pread(descriptor, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    if (sscanf(text, "process %d on %255s", &holder.process, holder.machine) != 2) holder.process = 0;
    return holder;
}

static void machine_name(char name[256]) {
    struct utsname system;
    snprintf(name, 256, "%s", uname(&system) == 0 ? system.nodename : "unknown");
}

void lock_sign(int descriptor) {
    char text[320], machine[256];
    machine_name(machine);
    int length = snprintf(text, sizeof text, "process %d on %s\n", (int)getpid(), machine);
    if (ftruncate(descriptor, 0) == 0 && pwrite(descriptor, text, (size_t)length, 0) != length)
        (void)!ftruncate(descriptor, 0); // no room: the lock is as good, only less talkative
}

// ---- how far it reaches

// Whether `list`, words with commas between, has the word.
static int has_option(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, word, length) && (at[length] == ',' || at[length] == 0)) return 1;
    return 0;
}

// Whether locks stay within this machine, where others may see the same files.
static int is_local_only(const char *type, const char *options) {
    if (!strncmp(type, "nfs", 3))
        return has_option(options, "nolock") || has_option(options, "local_lock=flock") ||
               has_option(options, "local_lock=all");
    if (!strcmp(type, "cifs") || !strcmp(type, "smb3")) return has_option(options, "nobrl");
    if (!strcmp(type, "lustre")) return !has_option(options, "flock");
    return !strcmp(type, "9p") || !strcmp(type, "fuse.sshfs");
}

// The type of the file system that has the file, where its locks stay within this machine; else "".
static void find_local_only(int descriptor, char type[64]) {
    char line[4096], options[2048];
    struct stat status;
    unsigned major_number, minor_number;
    FILE *mounts = fopen("/proc/self/mountinfo", "r");
    *type = 0;
    while (mounts && fstat(descriptor, &status) == 0 && fgets(line, sizeof line, mounts)) {
        const char *rest = strstr(line, " - ");
        if (sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) != 2 || !rest ||
            makedev(major_number, minor_number) != status.st_dev)
            continue;
        if (sscanf(rest, " - %63s %*s %2047s", type, options) == 2 && is_local_only(type, options)) break;
        *type = 0;
    }
    if (mounts) fclose(mounts);
}

// ---- the lock

static int refuse(const char *directory, Holder holder, const char *remedy, Error *error) {
    char who[300] = "another run";
    if (holder.process) snprintf(who, sizeof who, "process %d on %s", holder.process, holder.machine);
    return error_set(error, "%.400s: expected a directory that no other run uses, found %s; %.200s", directory, who,
                     remedy);
}

// Where the lock alone does not tell: the one who was last written down and did not take leave may still be at work.
static int check_holder(int descriptor, const char *directory, const char *type, Error *error) {
    Holder holder = holder_read(descriptor);
    char machine[256];
    machine_name(machine);
    int is_here = !strcmp(machine, holder.machine), is_dead = is_here && kill(holder.process, 0) && errno == ESRCH;
    if (holder.process && !is_dead)
        return refuse(directory, holder,
                      "locks do not reach other machines on this file system: if that run has ended, remove its "
                      "file lock, else wait for it or choose another --out",
                      error);
    warn("%.400s: the locks of this file system (%s) do not reach other machines: start no other run there", directory,
         type);
    return 0;
}

int lock_take(int *descriptor, const char *directory, int flags, Error *error) {
    char *path = path_join(directory, "lock"), type[64];
    int lock = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0666), failed = 0, failure = errno;
    *descriptor = lock;
    if (lock < 0 && (failure != ENOENT || flags & O_CREAT))
        failed = error_set(error, "%.700s: cannot create: %s; choose another --out", path, strerror(failure));
    free(path);
    if (lock < 0 || failed) return failed;
    int is_taken = flock(lock, LOCK_EX | LOCK_NB) == 0;
    failure = errno;
    if (!is_taken && failure == EWOULDBLOCK)
        return refuse(directory, holder_read(lock), "wait for it or choose another --out", error);
    find_local_only(lock, type);
    return !is_taken || type[0] ? check_holder(lock, directory, is_taken ? type : strerror(failure), error) : 0;
}

void lock_release(int descriptor) {
    (void)!ftruncate(descriptor, 0);
    close(descriptor);
}
