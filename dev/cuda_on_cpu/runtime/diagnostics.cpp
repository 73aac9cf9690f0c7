// How faults are reported: one message with the kind, the kernel, the block, the thread and the source line, then exit.
#include "runtime.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef CUDA_ON_CPU_VALGRIND
#include <valgrind/valgrind.h>
#endif

namespace cuda_on_cpu {

std::string running_thread() {
    if (!in_kernel()) return "host code";
    char text[640];
    snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", running.kernel, blockIdx.x,
             blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    return text;
}

static void stop() {
    fflush(stdout);
    fflush(stderr);
    _exit(fault_exit_code);
}

void fault(const char *kind, Place place, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "cuda_on_cpu: %s: %s\n    in %s", kind, message, running_thread().c_str());
    if (place.file) fprintf(stderr, ", at %s:%d", place.file, place.line);
    if (in_kernel() && running.launched_from.file)
        fprintf(stderr, "\n    launched at %s:%d", running.launched_from.file, running.launched_from.line);
    fprintf(stderr, "\n");
    stop();
    abort(); // stop() does not return
}

// addr2line knows the line from the debugging information; without it the address itself must do.
std::string source_line(uintptr_t return_address) {
    Dl_info module;
    if (!dladdr((void *)return_address, &module)) return "?";
    uintptr_t base = (uintptr_t)module.dli_fbase;
    char command[600], line[512] = "";
    snprintf(command, sizeof command, "addr2line -e '%s' 0x%lx 2>/dev/null",
             module.dli_fname && module.dli_fname[0] == '/' ? module.dli_fname : "/proc/self/exe",
             (unsigned long)(return_address - 1 - base));
    char executable[400];
    ssize_t length = readlink("/proc/self/exe", executable, sizeof executable - 1);
    if (length > 0 && !(module.dli_fname && strstr(module.dli_fname, ".so"))) {
        executable[length] = 0;
        snprintf(command, sizeof command, "addr2line -e '%s' 0x%lx 2>/dev/null", executable,
                 (unsigned long)(return_address - 1 - base));
    }
    FILE *pipe = popen(command, "r");
    if (pipe) {
        if (!fgets(line, sizeof line, pipe)) line[0] = 0;
        pclose(pipe);
    }
    std::string result = line;
    while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) result.pop_back();
    size_t note = result.find(" (discriminator");
    if (note != std::string::npos) result.resize(note);
    return result.empty() ? "?" : result;
}

// ---- valgrind's reports, with the thread added
#ifdef CUDA_ON_CPU_VALGRIND
static unsigned long valgrind_reports;
void note_valgrind_reports() {
    valgrind_reports = VALGRIND_COUNT_ERRORS;
}
void require_no_valgrind_reports() {
    if (VALGRIND_COUNT_ERRORS > valgrind_reports) fault("valgrind", nowhere, "its report stands above");
}
#else
void note_valgrind_reports() {}
void require_no_valgrind_reports() {}
#endif

// ---- a memory fault that no instrumentation announced: guard pages, freed memory, the host in device memory
static const char *what_was_touched(const void *address) {
    if (is_fiber_stack_guard(address)) return "stack overflow of a CUDA thread (its local arrays are too large)";
    if (!is_device_memory(address)) return in_kernel() ? "access to memory the device cannot reach" : nullptr;
    if (!in_kernel()) return "host access to device memory";
    return find_allocation(address) ? "access to device memory" : "out of bounds of every device allocation";
}

static void on_memory_fault(int signal_number, siginfo_t *info, void *context) {
    const char *what = what_was_touched(info->si_addr);
    if (!what) { // not ours: let it be what it is
        signal(signal_number, SIG_DFL);
        return;
    }
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    bool writes = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
    fault("memory fault", nowhere, "%s: %s of address %p at %s", what, writes ? "write" : "read", info->si_addr,
          source_line(at + 1).c_str());
}

// On a stack of its own, since the thread's may be what overflowed.
__attribute__((constructor)) static void watch_memory_faults() {
    static char handler_stack[256 << 10];
    stack_t stack = {};
    stack.ss_sp = handler_stack;
    stack.ss_size = sizeof handler_stack;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_memory_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

} // namespace cuda_on_cpu

// ---- the sanitizers' own reports, with the thread added
extern "C" {
void __asan_on_error();
void __asan_on_error() {
    fprintf(stderr, "cuda_on_cpu: address sanitizer: in %s\n", cuda_on_cpu::running_thread().c_str());
}
void __ubsan_on_report();
void __ubsan_on_report() {
    fprintf(stderr, "cuda_on_cpu: undefined behaviour: in %s\n", cuda_on_cpu::running_thread().c_str());
}
}
