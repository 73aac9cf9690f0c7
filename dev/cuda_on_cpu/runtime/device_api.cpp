// Errors of the API, and what the device says about itself.
#include "runtime.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace cuda_on_cpu {

namespace {

cudaError_t last_error = cudaSuccess;
// A launch returns nothing; whoever does not ask for its error never learns of it.
struct RefusedLaunch {
    bool unseen;
    std::string kernel, why;
    Place place;
};
RefusedLaunch &refused = *new RefusedLaunch(); // never destroyed: looked at when the program exits

} // namespace

cudaError_t api_result(cudaError_t status, const char *) {
    if (status != cudaSuccess) last_error = status;
    return status;
}

void launch_failed(cudaError_t status, const char *kernel, Place place, const std::string &why) {
    last_error = status;
    refused = {true, kernel, why, place};
}

void require_errors_seen(const char *next_call) {
    if (!refused.unseen) return;
    refused.unseen = false;
    fault("unchecked error", refused.place, "the launch of %s was refused (%s) and nobody asked before %s",
          refused.kernel.c_str(), refused.why.c_str(), next_call);
}

// At exit: work still waiting runs, as it would on a device, and an error that nobody saw is reported.
static void at_end() {
    if (!any_capture_active()) finish_all_work();
    require_errors_seen("the program ended");
}
__attribute__((constructor)) static void register_end() {
    atexit(at_end);
}

cudaError_t missing_device() {
    if (options().driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
    return options().devices ? cudaSuccess : cudaErrorNoDevice;
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

cudaError_t cudaGetLastError() {
    cudaError_t status = last_error;
    last_error = cudaSuccess;
    refused.unseen = false;
    return status;
}
cudaError_t cudaPeekAtLastError() {
    refused.unseen = false;
    return last_error;
}

#define ERROR_NAMES(each)                                                                                              \
    each(cudaSuccess, "no error") each(cudaErrorInvalidValue, "invalid argument")                                      \
        each(cudaErrorMemoryAllocation, "out of memory")                                                               \
            each(cudaErrorInvalidConfiguration, "invalid configuration argument") each(cudaErrorInvalidPitchValue,     \
                                                                                       "invalid pitch argument")       \
                each(cudaErrorInvalidDevice, "invalid device ordinal") each(cudaErrorInvalidResourceHandle,            \
                                                                            "invalid resource handle")                 \
                    each(cudaErrorIllegalState, "the operation cannot be performed in the present state")              \
                        each(cudaErrorNotReady, "device not ready") each(cudaErrorInsufficientDriver,                  \
                                                                         "CUDA driver version is insufficient")        \
                            each(cudaErrorNoDevice, "no CUDA-capable device is detected") each(                        \
                                cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing") \
                                each(cudaErrorStreamCaptureImplicit,                                                   \
                                     "operation would make the legacy stream depend on a capturing blocking stream")   \
                                    each(cudaErrorNotSupported, "operation not supported")

const char *cudaGetErrorString(cudaError_t status) {
    switch (status) {
#define STRING(name, text)                                                                                             \
    case name:                                                                                                         \
        return text;
        ERROR_NAMES(STRING)
#undef STRING
    default:
        return "unrecognized error code";
    }
}
const char *cudaGetErrorName(cudaError_t status) {
    switch (status) {
#define NAME(name, text)                                                                                               \
    case name:                                                                                                         \
        return #name;
        ERROR_NAMES(NAME)
#undef NAME
    default:
        return "unrecognized error code";
    }
}

// ---- devices: the limits of a recent GPU, so that what is refused there is refused here. Memory and streams belong to
// the process, which therefore has to choose its device before it makes any.
static int chosen_device;
cudaError_t cudaGetDeviceCount(int *count) {
    *count = options().devices;
    return missing_device();
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= options().devices) return api_result(cudaErrorInvalidDevice, "cudaSetDevice");
    if (device != chosen_device && device_arena)
        fault("device", nowhere, "cudaSetDevice(%d) after memory of device %d: a process works on one device here",
              device, chosen_device);
    chosen_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = chosen_device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    if (device < 0 || device >= options().devices) return api_result(cudaErrorInvalidDevice, "cudaGetDeviceProperties");
    memset((void *)properties, 0, sizeof *properties);
    strcpy(properties->name, "CUDA on CPU");
    // Every process has a device of its own, unless told that several have the same.
    long identity = number_setting("CUDA_ON_CPU_DEVICE", getpid(), 0, LONG_MAX);
    memcpy(properties->uuid.bytes, &identity, sizeof identity);
    long capability = number_setting("CUDA_ON_CPU_CAPABILITY", 90, 80, 129);
    properties->major = (int)capability / 10, properties->minor = (int)capability % 10;
    properties->multiProcessorCount = options().processors;
    properties->totalGlobalMem = options().memory;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = max_threads;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->sharedMemPerBlock = static_shared_limit;
    properties->sharedMemPerBlockOptin = dynamic_shared_limit;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->l2CacheSize = 50 << 20;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, device);
    if (status != cudaSuccess) return status;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = properties.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)properties.sharedMemPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)properties.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)properties.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        break;
    case cudaDevAttrWarpSize:
        *value = properties.warpSize;
        break;
    case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        break;
    case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        break;
    default:
        return api_result(cudaErrorInvalidValue, "cudaDeviceGetAttribute");
    }
    return cudaSuccess;
}
// By threads and shared memory; registers are unknown here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads, size_t shared_bytes) {
    if (threads < 1 || threads > max_threads)
        return api_result(cudaErrorInvalidValue, "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    size_t by_shared = (228 << 10) / (shared_bytes + (1 << 10)); // each block takes 1 KB for itself
    *blocks = (int)std::min({(size_t)(2048 / threads), by_shared, (size_t)32});
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = options().driver;
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
    finish_all_work();
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
    return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
    return cudaSuccess;
}

} // extern "C"
