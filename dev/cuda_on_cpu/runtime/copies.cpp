// cudaMemcpy, cudaMemset and their kin: both sides checked against what the copy says they are.
#include "runtime.h"

#include <memory>
#include <vector>

using namespace cuda_on_cpu;

namespace {

bool on_device(const void *address) {
    const Allocation *found = find_allocation(address);
    return is_device_memory(address) || (found && found->kind == MemoryKind::managed);
}
bool on_host(const void *address) {
    return !is_device_memory(address);
}
const char *side(const void *address) {
    return is_device_memory(address) ? "device" : "host";
}

void check_direction(const void *to, const void *from, cudaMemcpyKind kind, const char *call) {
    bool right = kind == cudaMemcpyDefault || (kind == cudaMemcpyHostToHost && on_host(to) && on_host(from)) ||
                 (kind == cudaMemcpyHostToDevice && on_device(to) && on_host(from)) ||
                 (kind == cudaMemcpyDeviceToHost && on_host(to) && on_device(from)) ||
                 (kind == cudaMemcpyDeviceToDevice && on_device(to) && on_device(from));
    static const char *const names[] = {"HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"};
    if (!right)
        fault("wrong memory", nowhere, "%s says %s, but copies to %s from %s memory", call, names[kind], side(to),
              side(from));
}

void copy_now(void *to, const void *from, size_t bytes, const char *call) {
    if (!bytes) return;
    std::string target = std::string(call) + "'s target", source = std::string(call) + "'s source";
    if (find_allocation(to) || is_device_memory(to)) require_device_range(to, bytes, target.c_str());
    if (find_allocation(from) || is_device_memory(from)) require_device_range(from, bytes, source.c_str());
    DeviceMemoryAccess access;
    memmove(to, from, bytes);
    if (is_device_memory(to) && is_device_memory(from))
        checker_copied(to, from, bytes);
    else if (is_device_memory(to))
        checker_written(to, bytes);
}

bool is_pageable(const void *address) {
    return !find_allocation(address) && !is_device_memory(address);
}

// A copy from pageable memory to the device: CUDA promises no more than that the host's bytes have been read when the
// call returns; they may still lie in staging memory, and reach the device when the stream does.
bool is_staged(const void *to, const void *from) {
    return options().lazy && is_device_memory(to) && is_pageable(from) && !any_capture_active();
}
std::function<void()> staged_copy(void *to, const void *from, size_t bytes, const char *call) {
    auto staging = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    return [=] { copy_now(to, staging->data(), bytes, call); };
}

void set_now(void *address, int value, size_t bytes) {
    require_device_range(address, bytes, "cudaMemset");
    DeviceMemoryAccess access;
    memset(address, value, bytes);
    checker_written(address, bytes);
}

cudaError_t check_symbol(size_t symbol_bytes, size_t bytes, size_t offset, const char *call) {
    require_errors_seen(call);
    return api_result(offset + bytes > symbol_bytes ? cudaErrorInvalidValue : cudaSuccess, call);
}

} // namespace

namespace cuda_on_cpu {

cudaError_t copy_to_symbol(void *symbol, size_t symbol_bytes, const void *from, size_t bytes, size_t offset) {
    cudaError_t status = check_symbol(symbol_bytes, bytes, offset, "cudaMemcpyToSymbol");
    if (status == cudaSuccess) enqueue_and_finish(nullptr, [=] { memcpy((char *)symbol + offset, from, bytes); });
    return status;
}
cudaError_t copy_from_symbol(void *to, const void *symbol, size_t symbol_bytes, size_t bytes, size_t offset) {
    cudaError_t status = check_symbol(symbol_bytes, bytes, offset, "cudaMemcpyFromSymbol");
    if (status == cudaSuccess) enqueue_and_finish(nullptr, [=] { memcpy(to, (const char *)symbol + offset, bytes); });
    return status;
}
cudaError_t copy_from_symbol_async(void *to, const void *symbol, size_t symbol_bytes, size_t bytes, size_t offset,
                                   cudaStream_t stream) {
    const char *call = "cudaMemcpyFromSymbolAsync";
    cudaError_t status = check_symbol(symbol_bytes, bytes, offset, call);
    if (status == cudaSuccess && !stream_is_known(stream)) status = api_result(cudaErrorInvalidResourceHandle, call);
    if (status == cudaSuccess) enqueue(stream, [=] { memcpy(to, (const char *)symbol + offset, bytes); });
    return status;
}

} // namespace cuda_on_cpu

extern "C" {

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    require_errors_seen("cudaMemcpy");
    check_direction(to, from, kind, "cudaMemcpy");
    if (any_capture_active()) return api_result(cudaErrorStreamCaptureImplicit, "cudaMemcpy");
    if (is_staged(to, from)) {
        enqueue_and_finish(nullptr, [] {}); // what was there before is done first
        enqueue(nullptr, staged_copy(to, from, bytes, "cudaMemcpy"));
    } else {
        enqueue_and_finish(nullptr, [=] { copy_now(to, from, bytes, "cudaMemcpy"); });
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    require_errors_seen("cudaMemcpyAsync");
    if (!stream_is_known(stream)) return api_result(cudaErrorInvalidResourceHandle, "cudaMemcpyAsync");
    check_direction(to, from, kind, "cudaMemcpyAsync");
    std::function<void()> work = [=] { copy_now(to, from, bytes, "cudaMemcpyAsync"); };
    if (is_staged(to, from))
        enqueue(stream, staged_copy(to, from, bytes, "cudaMemcpyAsync"));
    else if (!any_capture_active() && (is_pageable(to) || is_pageable(from))) // the call waits for the copy
        enqueue_and_finish(stream, work);
    else
        enqueue(stream, work);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *address, int value, size_t bytes) {
    require_errors_seen("cudaMemset");
    enqueue(nullptr, [=] { set_now(address, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
    require_errors_seen("cudaMemsetAsync");
    if (!stream_is_known(stream)) return api_result(cudaErrorInvalidResourceHandle, "cudaMemsetAsync");
    enqueue(stream, [=] { set_now(address, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    require_errors_seen("cudaMemcpy2DAsync");
    if (width > to_pitch || width > from_pitch) return api_result(cudaErrorInvalidPitchValue, "cudaMemcpy2DAsync");
    check_direction(to, from, kind, "cudaMemcpy2DAsync");
    enqueue_and_finish(stream, [=] {
        for (size_t row = 0; row < height; row++)
            copy_now((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, "cudaMemcpy2DAsync");
    });
    return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}

} // extern "C"
