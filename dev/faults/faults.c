// A library to be preloaded (LD_PRELOAD) into a program that is to meet faults. Every allocation and every system
// call on files is counted by kind; FAULTS says which of them go wrong, as KIND:FIRST:COUNT:ACTION with commas
// between. COUNT calls of the KIND fail from number FIRST on. ACTION is an errno, `short` (a write of half its
// bytes), or -N: signal N is raised before the call, which then goes its way. The kind `file` is every system call
// below, `change` those that change a file or a directory. Standard error stays out of it: what a program says of a
// fault is to be read.
//
// The system calls are caught where they happen, also those that the C library makes for itself: a seccomp filter turns
// each into SIGSYS unless it comes from this library. The clock is made of calls too, a millisecond for each, and
// sleeping moves it: two runs of a program give the same bytes and need no patience.
//
// FAULTS_MOUNTS names a file that is opened instead of /proc/self/mountinfo.
// FAULTS_REPORT names a file that receives the number of calls of each kind at the end. FAULTS_FORK names one that
// receives a line for every single allocation, or every N-th with FAULTS_FORK_EVERY=N: at each the process forks, and
// the child has it fail: NUMBER EXIT_CODE MESSAGES. A child that goes on ends with exit code 77 before it reads or
// changes any file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

// ---- system calls that are not counted

long faults_call(long number, long a, long b, long c, long d, long e, long f);
extern const char faults_after[]; // the only place from which calls pass the filter
__asm__(".text\n"
        ".globl faults_call, faults_after\n"
        "faults_call:\n"
        "    mov %rdi, %rax\n    mov %rsi, %rdi\n    mov %rdx, %rsi\n    mov %rcx, %rdx\n"
        "    mov %r8, %r10\n    mov %r9, %r8\n    mov 8(%rsp), %r9\n    syscall\n"
        "faults_after:\n"
        "    ret\n");

// ---- kinds

typedef enum {
    ALLOC,
    OPEN,
    READ,
    WRITE,
    FSYNC,
    RENAME,
    MKDIR,
    UNLINK,
    MMAP,
    STAT,
    STATFS,
    LIST,
    TRUNCATE,
    LOCK,
    SEEK,
    CLOSE,
    CHANGE,
    FILES,
    KINDS
} Kind;
static const char *const names[KINDS] = {"alloc",    "open",   "read", "write", "fsync",  "rename",
                                         "mkdir",    "unlink", "mmap", "stat",  "statfs", "list",
                                         "truncate", "lock",   "seek", "close", "change", "file"};
static const struct {
    int number;
    Kind kind;
} calls[] = {
    {SYS_open, OPEN},          {SYS_openat, OPEN},      {SYS_creat, OPEN},      {SYS_read, READ},
    {SYS_pread64, READ},       {SYS_readv, READ},       {SYS_write, WRITE},     {SYS_pwrite64, WRITE},
    {SYS_writev, WRITE},       {SYS_fsync, FSYNC},      {SYS_fdatasync, FSYNC}, {SYS_rename, RENAME},
    {SYS_renameat, RENAME},    {SYS_renameat2, RENAME}, {SYS_mkdir, MKDIR},     {SYS_mkdirat, MKDIR},
    {SYS_unlink, UNLINK},      {SYS_unlinkat, UNLINK},  {SYS_rmdir, UNLINK},    {SYS_mmap, MMAP},
    {SYS_stat, STAT},          {SYS_lstat, STAT},       {SYS_fstat, STAT},      {SYS_newfstatat, STAT},
    {SYS_statx, STAT},         {SYS_statfs, STATFS},    {SYS_fstatfs, STATFS},  {SYS_getdents64, LIST},
    {SYS_ftruncate, TRUNCATE}, {SYS_flock, LOCK},       {SYS_lseek, SEEK},      {SYS_close, CLOSE},
};
enum { CALLS = sizeof calls / sizeof *calls, FAULTS_MAX = 8, SHORT = 1 << 20 };

static struct {
    Kind kind;
    long first, count, action;
} faults[FAULTS_MAX];
static int fault_count, is_child, fork_report = -1;
static int is_over; // gcov writes what was executed: nothing is counted any more, and nothing fails
static long fork_every = 1;
static long counts[KINDS], milliseconds;

// The action for the next call of a kind; 0: none.
static long next_action(Kind kind) {
    long number = ++counts[kind], action = 0;
    for (int i = 0; i < fault_count; i++)
        if (faults[i].kind == kind && number >= faults[i].first && number - faults[i].first < faults[i].count)
            action = faults[i].action;
    return action;
}

// ---- system calls

static Kind kind_of(int number) {
    for (int i = 0; i < CALLS; i++)
        if (calls[i].number == number) return calls[i].kind;
    return KINDS;
}

static int changes_files(Kind kind, const greg_t *r) {
    if (kind == WRITE) return r[REG_RDI] > 2;
    if (kind == OPEN) return r[REG_RDX] & (O_CREAT | O_WRONLY | O_RDWR);
    return kind == FSYNC || kind == RENAME || kind == MKDIR || kind == UNLINK || kind == TRUNCATE;
}

static void redirect(Kind kind, greg_t *r) {
    const char *mounts = kind == OPEN ? getenv("FAULTS_MOUNTS") : NULL;
    if (mounts && !strcmp((const char *)r[REG_RSI], "/proc/self/mountinfo")) r[REG_RSI] = (greg_t)mounts;
}

static int opens_counts(int number, Kind kind, const greg_t *r) {
    const char *path = kind == OPEN ? (const char *)r[number == SYS_openat ? REG_RSI : REG_RDI] : "";
    size_t length = strlen(path);
    return length > 5 && !strcmp(path + length - 5, ".gcda");
}

static void make_call(int number, greg_t *r) {
    r[REG_RAX] = faults_call(number, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
}

static void on_call(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    int saved_errno = errno;
    Kind kind = kind_of(info->si_syscall);
    is_over |= opens_counts(info->si_syscall, kind, r);
    if (is_over) {
        make_call(info->si_syscall, r);
        errno = saved_errno;
        return;
    }
    int is_shared = kind == READ || kind == LIST || kind == SEEK; // with the parent, which would miss what is read
    if (is_child && (is_shared || changes_files(kind, r))) _exit(77);
    redirect(kind, r);
    int is_message = kind == WRITE && r[REG_RDI] == STDERR_FILENO;
    long action = is_message ? 0 : next_action(kind), file = is_message ? 0 : next_action(FILES);
    long change = changes_files(kind, r) ? next_action(CHANGE) : 0;
    if (file || change) action = file ? file : change;
    if (action < 0) kill(getpid(), (int)-action);
    if (action == SHORT && kind == WRITE && r[REG_RDX] > 1) r[REG_RDX] /= 2;
    if (action > 0 && action != SHORT)
        r[REG_RAX] = -action;
    else
        make_call(info->si_syscall, r);
    errno = saved_errno;
}

// if (number is one of the calls && it does not come from faults_call) SIGSYS
static void install_filter(void) {
    enum { LENGTH = CALLS + 8 };
    const unsigned char last = CALLS; // jumps are forward, by so many instructions
    unsigned long after = (unsigned long)faults_after;
    struct sock_filter code[LENGTH] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)after, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(after >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < CALLS; i++)
        code[6 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, last - i, 0);
    code[6 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[7 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {.len = LENGTH, .filter = code};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(99);
}

// ---- start and end

static void read_fault(const char *text) {
    char kind[16], action[16];
    long first, count;
    if (fault_count == FAULTS_MAX || sscanf(text, "%15[a-z]:%ld:%ld:%15[a-z0-9-]", kind, &first, &count, action) != 4)
        _exit(98);
    for (Kind k = 0; k < KINDS; k++)
        if (!strcmp(kind, names[k])) {
            faults[fault_count].kind = k, faults[fault_count].first = first, faults[fault_count].count = count;
            faults[fault_count++].action = strcmp(action, "short") ? atol(action) : SHORT;
        }
}

static __attribute__((constructor)) void begin(void) {
    const char *text = getenv("FAULTS"), *path = getenv("FAULTS_FORK"), *every = getenv("FAULTS_FORK_EVERY");
    if (every && atol(every) > 0) fork_every = atol(every);
    for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) read_fault(text);
    if (path) fork_report = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    install_filter();
    memset(counts, 0, sizeof counts); // libraries that started before had theirs
}

static __attribute__((destructor)) void end(void) {
    const char *path = getenv("FAULTS_REPORT");
    char line[64];
    if (!path || is_child) return;
    int file = (int)faults_call(SYS_open, (long)path, O_WRONLY | O_CREAT | O_TRUNC, 0666, 0, 0, 0);
    for (Kind k = 0; k < KINDS; k++) {
        int length = snprintf(line, sizeof line, "%s %ld\n", names[k], counts[k]);
        if (faults_call(SYS_write, file, (long)line, length, 0, 0, 0) != length) _exit(99);
    }
}

// ---- memory; glibc's own functions are underneath

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

// What a child wrote on standard error, as one line of the report.
static void report_child(int pipe_end, pid_t child) {
    static char text[4096];
    int status = 0, used = snprintf(text, sizeof text, "%ld ", counts[ALLOC]);
    char messages[2048];
    long length = 0, got;
    while ((got = faults_call(SYS_read, pipe_end, (long)(messages + length), (long)sizeof messages - length - 1, 0, 0,
                              0)) > 0)
        length += got;
    messages[length] = 0;
    for (char *c = messages; *c; c++) *c = *c == '\n' ? '\t' : *c;
    waitpid(child, &status, 0);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    used += snprintf(text + used, sizeof text - (size_t)used, "%d %s\n", code, messages);
    if (faults_call(SYS_write, fork_report, (long)text, used, 0, 0, 0) != used) _exit(99);
}

// Forks; returns 1 in the child, whose standard output goes nowhere.
static int becomes_child(void) {
    int ends[2];
    if (pipe(ends)) _exit(99);
    pid_t child = fork();
    if (child < 0) _exit(99);
    if (child == 0) {
        int nowhere = (int)faults_call(SYS_open, (long)"/dev/null", O_WRONLY, 0, 0, 0, 0);
        is_child = 1;
        dup2(nowhere, 1), dup2(ends[1], 2);
        faults_call(SYS_close, ends[0], 0, 0, 0, 0, 0), faults_call(SYS_close, ends[1], 0, 0, 0, 0, 0);
        return 1;
    }
    faults_call(SYS_close, ends[1], 0, 0, 0, 0, 0);
    report_child(ends[0], child);
    faults_call(SYS_close, ends[0], 0, 0, 0, 0, 0);
    return 0;
}

static int fails(void) {
    static int is_busy; // fork and snprintf may allocate
    if (is_busy || is_over) return 0;
    int saved_errno = errno;
    is_busy = 1;
    int failing = next_action(ALLOC) > 0;
    if (!failing && fork_report >= 0 && !is_child && counts[ALLOC] % fork_every == 0) failing = becomes_child();
    is_busy = 0;
    errno = failing ? ENOMEM : saved_errno;
    return failing;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t size) {
    return fails() ? NULL : __libc_calloc(count, size);
}
void *realloc(void *block, size_t bytes) {
    return fails() ? NULL : __libc_realloc(block, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void **block, size_t alignment, size_t bytes) {
    void *found = fails() ? NULL : __libc_memalign(alignment, bytes);
    if (found) *block = found;
    return found ? 0 : ENOMEM;
}

// ---- the clock

int clock_gettime(clockid_t clock, struct timespec *now) {
    milliseconds++;
    *now = (struct timespec){(clock == CLOCK_REALTIME ? 1700000000 : 0) + milliseconds / 1000,
                             milliseconds % 1000 * 1000000};
    return 0;
}
time_t time(time_t *now) {
    time_t seconds = 1700000000 + milliseconds / 1000;
    if (now) *now = seconds;
    return seconds;
}
unsigned sleep(unsigned seconds) {
    milliseconds += 1000L * seconds;
    return 0;
}
int usleep(useconds_t microseconds) {
    milliseconds += microseconds / 1000 + 1;
    return 0;
}
int nanosleep(const struct timespec *wanted, struct timespec *left) {
    (void)left;
    milliseconds += 1000 * wanted->tv_sec + wanted->tv_nsec / 1000000 + 1;
    return 0;
}
