// Streams, events and graphs.
//
// Eager (the default): work runs when it is enqueued. Lazy: work becomes a node whose predecessors are what CUDA
// guarantees (the stream's previous node, events waited for, the legacy default stream's rules) and runs only when the
// host waits for it; so a missing synchronisation shows as stale data. Capturing: nodes are kept in a graph.
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>
#include <vector>

namespace cuda_on_cpu {

namespace {

struct Node {
    std::function<void()> work;
    std::vector<std::shared_ptr<Node>> after;
    bool done = false, stopped = false;
};
typedef std::shared_ptr<Node> NodePointer;

} // namespace

struct Capture {                             // shared by the streams that take part
    std::vector<std::function<void()>> work; // in the order of capture, which respects every dependency
    cudaStream_t origin;
};
typedef std::shared_ptr<Capture> CapturePointer;

namespace {

struct Stream {
    NodePointer last;
    bool waits_for_default_stream = true, stopped = false;
    int priority = 0;
    CapturePointer capture;
};

struct Event {
    NodePointer node;
    double when = 0;
    bool recorded = false, times = true;
    bool stopped = false; // recorded on a stream that stood still
    CapturePointer capture;
};

// Work may still run when the program exits, after static objects have been destroyed; so these never are.
std::map<cudaStream_t, Stream> &streams() {
    static auto &table = *new std::map<cudaStream_t, Stream>{{nullptr, Stream()}};
    return table;
}
std::set<Event *> &events() {
    static auto &table = *new std::set<Event *>;
    return table;
}
std::vector<NodePointer> &pending() {
    static auto &nodes = *new std::vector<NodePointer>;
    return nodes;
}
int active_captures;
bool work_has_stopped; // by itself, while it ran

bool do_work(const std::function<void()> &work) {
    work_has_stopped = false;
    if (work) work();
    return !work_has_stopped;
}

cudaStream_t canonical(cudaStream_t stream) {
    return stream == cudaStreamLegacy || stream == cudaStreamPerThread ? nullptr : stream;
}

// Whatever comes before it first; not by recursion, since a stream may hold thousands of nodes. Device memory stays
// open from the first to the last: opening and closing it around each launch would take most of the time.
void run(const NodePointer &last) {
    if (last->done) return;
    DeviceMemoryAccess access;
    std::vector<NodePointer> stack{last};
    while (!stack.empty()) {
        NodePointer node = stack.back();
        if (!node->done && !node->after.empty()) {
            stack.push_back(node->after.back());
            node->after.pop_back();
            continue;
        }
        stack.pop_back();
        if (node->done) continue;
        std::function<void()> work = std::move(node->work);
        node->work = nullptr;
        node->done = !node->stopped && do_work(work);
        if (node->done) continue;
        node->stopped = true;
        for (const NodePointer &waiting : stack) waiting->stopped = true;
        return;
    }
}

// A device goes on by itself: whoever asks again and again finds the work done.
bool is_done(const NodePointer &node) {
    static unsigned questions;
    if (node && !node->done && ++questions % 3 == 0) run(node);
    return !node || node->done;
}

void wait_for(const NodePointer &node) {
    if (node) run(node);
    while (node && !node->done) pause();
}

void forget_done_nodes() {
    auto &nodes = pending();
    nodes.erase(std::remove_if(nodes.begin(), nodes.end(), [](const NodePointer &node) { return node->done; }),
                nodes.end());
}

void add_predecessor(const NodePointer &node, const NodePointer &earlier) {
    if (earlier && !earlier->done) node->after.push_back(earlier);
}

NodePointer append(cudaStream_t stream, std::function<void()> work) {
    NodePointer node = std::make_shared<Node>();
    node->work = std::move(work);
    Stream &own = streams()[stream];
    add_predecessor(node, own.last);
    if (!stream) {
        for (auto &other : streams())
            if (other.first && other.second.waits_for_default_stream) add_predecessor(node, other.second.last);
    } else if (own.waits_for_default_stream) {
        add_predecessor(node, streams()[nullptr].last);
    }
    own.last = node;
    pending().push_back(node);
    if (pending().size() % 4096 == 0) forget_done_nodes();
    return node;
}

} // namespace

void stop_this_stream() {
    work_has_stopped = true;
}
void let_streams_go() {
    for (auto &stream : streams()) stream.second.stopped = false, stream.second.last = nullptr;
    pending().clear();
}
bool any_capture_active() {
    return active_captures > 0;
}
bool stream_is_known(cudaStream_t stream) {
    return streams().count(canonical(stream)) != 0;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
    stream = canonical(stream);
    if (!stream_is_known(stream)) fault("stream", nowhere, "work enqueued to a stream that does not exist");
    CapturePointer &capture = streams()[stream].capture;
    if (capture)
        capture->work.push_back(std::move(work));
    else if (any_capture_active() && !stream)
        fault("graph", nowhere, "work enqueued to the default stream while another stream is being captured");
    else if (options().lazy)
        append(stream, std::move(work));
    else if (!streams()[stream].stopped)
        streams()[stream].stopped = !do_work(work);
}

void enqueue_and_finish(cudaStream_t stream, std::function<void()> work) {
    enqueue(stream, std::move(work));
    finish_stream(stream);
}

void finish_stream(cudaStream_t stream) {
    while (streams()[canonical(stream)].stopped) pause();
    wait_for(streams()[canonical(stream)].last);
}

void finish_all_work() {
    for (auto &stream : streams())
        while (stream.second.stopped) pause();
    std::vector<NodePointer> nodes = std::move(pending());
    pending().clear();
    if (options().order == Order::random)
        for (size_t i = nodes.size(); i > 1; i--) std::swap(nodes[i - 1], nodes[random_below((uint32_t)i)]);
    if (nodes.empty()) return;
    DeviceMemoryAccess access;
    for (const NodePointer &node : nodes) wait_for(node);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

static cudaError_t check_stream(cudaStream_t stream, const char *call) {
    require_errors_seen(call);
    return api_result(stream_is_known(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle, call);
}
static Event *to_event(cudaEvent_t event) {
    return events().count((Event *)event) ? (Event *)event : nullptr;
}

extern "C" {

// ---- streams
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    static uintptr_t number = 0x1000; // never an address
    require_errors_seen("cudaStreamCreate");
    if (missing_device() != cudaSuccess) return api_result(missing_device(), "cudaStreamCreate");
    *stream = (cudaStream_t)(number += 16);
    streams()[*stream].waits_for_default_stream = !(flags & cudaStreamNonBlocking);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
// Higher priorities have lower numbers; others than these are brought into range.
static const int least_priority = 0, greatest_priority = -5;
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    cudaError_t status = cudaStreamCreateWithFlags(stream, flags);
    if (status == cudaSuccess) streams()[*stream].priority = std::clamp(priority, greatest_priority, least_priority);
    return status;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = least_priority;
    if (greatest) *greatest = greatest_priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    cudaError_t status = check_stream(stream, "cudaStreamGetPriority");
    if (status == cudaSuccess) *priority = streams()[canonical(stream)].priority;
    return status;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t status = check_stream(stream, "cudaStreamDestroy");
    if (status != cudaSuccess || !stream) return api_result(cudaErrorInvalidResourceHandle, "cudaStreamDestroy");
    finish_stream(stream);
    streams().erase(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t status = check_stream(stream, "cudaStreamSynchronize");
    if (status != cudaSuccess) return status;
    if (streams()[canonical(stream)].capture)
        return api_result(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize");
    finish_stream(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t status = check_stream(stream, "cudaStreamQuery");
    if (status != cudaSuccess) return status;
    const Stream &own = streams()[canonical(stream)];
    return api_result(own.stopped || !is_done(own.last) ? cudaErrorNotReady : cudaSuccess, "cudaStreamQuery");
}
cudaError_t cudaDeviceSynchronize() {
    require_errors_seen("cudaDeviceSynchronize");
    if (any_capture_active()) return api_result(cudaErrorStreamCaptureUnsupported, "cudaDeviceSynchronize");
    finish_all_work();
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    cudaError_t status = check_stream(stream, "cudaLaunchHostFunc");
    if (status == cudaSuccess) enqueue(stream, [=] { function(data); });
    return status;
}

// ---- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    require_errors_seen("cudaEventCreate");
    Event *created = new Event();
    created->times = !(flags & cudaEventDisableTiming);
    events().insert(created);
    *event = (cudaEvent_t)created;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    require_errors_seen("cudaEventDestroy");
    Event *known = to_event(event);
    if (!known) return api_result(cudaErrorInvalidResourceHandle, "cudaEventDestroy");
    if (known->node) run(known->node);
    events().erase(known);
    delete known;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Event *known = to_event(event);
    cudaError_t status = check_stream(stream, "cudaEventRecord");
    if (status != cudaSuccess || !known) return api_result(cudaErrorInvalidResourceHandle, "cudaEventRecord");
    known->recorded = true, known->stopped = streams()[canonical(stream)].stopped;
    known->capture = streams()[canonical(stream)].capture;
    known->node = nullptr;
    if (known->capture) return cudaSuccess;
    if (options().lazy)
        known->node = append(canonical(stream), [known] { known->when = seconds(); });
    else
        known->when = seconds();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Event *known = to_event(event);
    cudaError_t status = check_stream(stream, "cudaStreamWaitEvent");
    if (status != cudaSuccess || !known) return api_result(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent");
    if (known->capture)
        streams()[canonical(stream)].capture = known->capture; // the stream joins the capture
    else if (known->node && !known->node->done)
        add_predecessor(append(canonical(stream), nullptr), known->node);
    if (known->stopped) streams()[canonical(stream)].stopped = true;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    require_errors_seen("cudaEventSynchronize");
    Event *known = to_event(event);
    if (!known) return api_result(cudaErrorInvalidResourceHandle, "cudaEventSynchronize");
    while (known->stopped) pause();
    wait_for(known->node);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Event *known = to_event(event);
    if (!known) return api_result(cudaErrorInvalidResourceHandle, "cudaEventQuery");
    return api_result(known->stopped || !is_done(known->node) ? cudaErrorNotReady : cudaSuccess, "cudaEventQuery");
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    require_errors_seen("cudaEventElapsedTime");
    Event *first = to_event(start), *last = to_event(end);
    if (!first || !last || !first->recorded || !last->recorded || !first->times || !last->times)
        return api_result(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime");
    if ((first->node && !first->node->done) || (last->node && !last->node->done)) return cudaErrorNotReady;
    *milliseconds = (float)(1e3 * (last->when - first->when));
    return cudaSuccess;
}

// ---- graphs: a captured list of work, run as one
struct CUgraph_st {
    CapturePointer capture;
};
struct CUgraphExec_st {
    CapturePointer capture;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    cudaError_t status = check_stream(stream, "cudaStreamBeginCapture");
    if (status != cudaSuccess) return status;
    Stream &own = streams()[canonical(stream)];
    if (!canonical(stream)) return api_result(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture");
    if (own.capture) return api_result(cudaErrorIllegalState, "cudaStreamBeginCapture");
    own.capture = std::make_shared<Capture>();
    own.capture->origin = stream;
    active_captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    cudaError_t status = check_stream(stream, "cudaStreamEndCapture");
    if (status != cudaSuccess) return status;
    CapturePointer capture = streams()[canonical(stream)].capture;
    if (!capture || capture->origin != stream) return api_result(cudaErrorIllegalState, "cudaStreamEndCapture");
    for (auto &other : streams())
        if (other.second.capture == capture) other.second.capture = nullptr;
    active_captures--;
    *graph = new CUgraph_st{capture};
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *capturing) {
    cudaError_t status = check_stream(stream, "cudaStreamIsCapturing");
    if (status != cudaSuccess) return status;
    *capturing = streams()[canonical(stream)].capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
    require_errors_seen("cudaGraphInstantiate");
    if (!executable || !graph) return api_result(cudaErrorInvalidValue, "cudaGraphInstantiate");
    *executable = new CUgraphExec_st{graph->capture};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    cudaError_t status = check_stream(stream, "cudaGraphLaunch");
    if (status != cudaSuccess || !executable) return api_result(cudaErrorInvalidValue, "cudaGraphLaunch");
    CapturePointer captured = executable->capture;
    enqueue(stream, [captured] {
        if (options().trace) fprintf(stderr, "cuda_on_cpu: a graph of %zu nodes\n", captured->work.size());
        for (auto &work : captured->work) work();
    });
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    cudaError_t status = check_stream(stream, "cudaGraphUpload");
    return status != cudaSuccess || executable ? status : api_result(cudaErrorInvalidValue, "cudaGraphUpload");
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    require_errors_seen("cudaGraphExecDestroy");
    delete executable;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    require_errors_seen("cudaGraphDestroy");
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    require_errors_seen("cudaGraphGetNodes");
    if (!graph || !count || nodes) return api_result(cudaErrorInvalidValue, "cudaGraphGetNodes");
    *count = graph->capture->work.size();
    return cudaSuccess;
}

} // extern "C"
