// What the parts of the runtime tell each other. What kernels see is in ../include.
#ifndef CUDA_ON_CPU_RUNTIME_H
#define CUDA_ON_CPU_RUNTIME_H

#include <cuda_runtime.h>

#include "device_threads.h"
#include "kernel_launch.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace cuda_on_cpu {

// ---- options.cpp: settings from the environment
enum class Order { forward, reverse, random };
struct Options {
    Order order;    // CUDA_ON_CPU_ORDER: in which order blocks, warps and lanes run
    unsigned seed;  // CUDA_ON_CPU_SEED: of the random order; drawn and printed when not given
    bool lazy;      // CUDA_ON_CPU_LAZY: streams run as late as synchronisation allows
    bool protect;   // CUDA_ON_CPU_PROTECT: pages of device memory are closed to the host
    bool trace;     // CUDA_ON_CPU_TRACE: one line per launch
    bool skip;      // CUDA_ON_CPU_SKIP: launches and products are counted, but nothing is computed
    size_t memory;  // CUDA_ON_CPU_MEMORY_MB: the device's size
    int processors; // CUDA_ON_CPU_PROCESSORS: the device's streaming multiprocessors
    int devices;    // CUDA_ON_CPU_DEVICES: how many the machine seems to have; a process works on one of them
    int driver;     // CUDA_ON_CPU_DRIVER: the driver's version, 0 for none
};
const Options &options();
// Read now, for what a test changes while it runs.
long number_setting(const char *name, long otherwise, long lowest, long highest);
bool tf32_truncates();                 // CUDA_ON_CPU_TF32
uint32_t random_below(uint32_t limit); // from the seed
double seconds();

// ---- diagnostics.cpp: every fault ends the program with exit code 99 after one message
constexpr int fault_exit_code = 99;
constexpr Place nowhere = {nullptr, 0};
[[noreturn]] void fault(const char *kind, Place place, const char *format, ...) __attribute__((format(printf, 3, 4)));
// What is running, for messages: ", kernel K, block (x,y,z), thread (x,y,z)".
std::string running_thread();
std::string source_line(uintptr_t return_address); // file:line of the instruction before
// Valgrind's reports know the line, but no block or thread. Whoever runs when their number grows is at fault: a grid
// notes it as it begins, and every thread is asked when it stops. Without valgrind these do nothing.
void note_valgrind_reports();
void require_no_valgrind_reports();

// ---- scheduler.cpp: one grid at a time, one block at a time, one fiber per thread
struct GridInProgress {
    const char *kernel; // NULL while the host runs
    Place launched_from;
    const void *function; // its address, NULL where that is not known
    size_t shared_bytes;  // dynamic
};
extern GridInProgress running;
inline bool in_kernel() {
    return running.kernel != nullptr;
}
constexpr int max_threads = 1024, max_warps = max_threads / 32;

// ---- fibers.cpp: stacks and switching between them
struct Fiber {
    void *stack_pointer;
    char *stack;
    size_t stack_bytes;
    void *sanitizer_state;
};
extern Fiber *current_fiber;
extern Fiber host_fiber;
Fiber *fiber_take(void (*entry)()); // a stack that will run `entry` when first switched to
void fiber_give_back(Fiber *fiber);
void fiber_switch(Fiber *to, bool current_is_done = false);
void fiber_started(); // first call on a new stack
bool is_fiber_stack_guard(const void *address);

// ---- shared_memory.cpp
constexpr size_t static_shared_limit = 48 << 10, dynamic_shared_limit = 227 << 10;
void shared_memory_begin_grid(const void *kernel);
void shared_memory_begin_block(size_t dynamic_bytes);
bool is_shared_memory(const void *address);
extern char *const shared_arena;
extern const size_t shared_arena_bytes;
size_t dynamic_shared_allowed(const void *kernel);

// ---- device_memory.cpp
enum class MemoryKind { unknown, device, pinned, managed };
struct Allocation {
    char *start;
    size_t bytes;
    MemoryKind kind;
};
extern char *device_arena;
extern const size_t device_arena_bytes;
void *device_allocate(size_t bytes);                    // NULL when the device is full
const Allocation *find_allocation(const void *address); // the live allocation that holds the address, or NULL
bool is_device_memory(const void *address);             // any address of the device's arena, live or not
// Ends the program unless [address, address + bytes) lies in one live allocation that the device can reach.
void require_device_range(const void *address, size_t bytes, const char *what);
bool is_device_accessible(const void *address);
// While one lives, the host side of the runtime may touch device memory.
struct DeviceMemoryAccess {
    DeviceMemoryAccess();
    ~DeviceMemoryAccess();
};
bool host_may_touch_device_memory();
void poison(void *address, size_t bytes); // signalling NaNs

// ---- streams.cpp
void finish_all_work();
void finish_stream(cudaStream_t stream);
bool stream_is_known(cudaStream_t stream);
// Work whose host side is done when the call returns (copies from pageable memory).
void enqueue_and_finish(cudaStream_t stream, std::function<void()> work);
bool any_capture_active();
// Called by work that waits for something which may never come, as a collective does for a dead peer: nothing that its
// stream is given later, and nothing that waits for it, runs; who asks is told "not ready", and who waits waits for
// ever. Let go, streams that stopped are empty.
void stop_this_stream();
void let_streams_go();

// ---- device_api.cpp: errors of the API
cudaError_t api_result(cudaError_t status, const char *call); // remembers a failure
cudaError_t missing_device();                                 // what the first call is told where there is no device
void launch_failed(cudaError_t status, const char *kernel, Place place, const std::string &why);
void require_errors_seen(const char *next_call); // a launch error nobody asked for is a fault

// ---- checker: check mode only, else empty (no_checker.cpp)
void check_atomic(const void *address, size_t bytes);
void checker_allocated(const void *address, size_t bytes);
void checker_freed(const void *address, size_t bytes);
void checker_written(const void *address, size_t bytes);                  // by a copy or a library
void checker_read(const void *address, size_t bytes, const char *reader); // by a copy or a library
void checker_library_call(const char *call); // once for each, before what it reads and writes
// A library multiplies matrices in this arithmetic ("bf16", "tf32", ...); what it reads and writes is reported next.
void checker_multiplies(const char *call, const char *arithmetic, double operations);
void checker_copied(void *to, const void *from, size_t bytes);
// An instruction says where it will read, though the bytes are read later: a copy to shared memory.
void checker_announced(size_t bytes, const void *return_address);
void checker_launch();
void checker_block();
void checker_block_ended();
void checker_barrier();
void checker_warp_sync(int warp, unsigned mask);

} // namespace cuda_on_cpu

#endif
