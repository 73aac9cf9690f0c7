#define _GNU_SOURCE
#include "events.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

// ---- checksums

// Bit by bit with the polynomial 0x1EDC6F41, reflected; a step's record has some two hundred bytes.
uint32_t events_crc32c(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

uint32_t events_masked_crc32c(const void *data, size_t bytes) {
    uint32_t crc = events_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

// ---- messages of Protocol Buffers: fields of a number and a type each

typedef struct {
    unsigned char *data;
    size_t size, room;
} Message;

static void put_bytes(Message *message, const void *bytes, size_t count) {
    if (message->size + count > message->room) {
        message->room = 2 * (message->size + count);
        message->data = memory_resize(message->data, message->room, 1, "an event");
    }
    if (count) memcpy(message->data + message->size, bytes, count);
    message->size += count;
}

// The lowest byte first, as every number in these files is.
static void put_fixed(Message *message, uint64_t bits, int bytes) {
    for (int i = 0; i < bytes; i++) put_bytes(message, &(unsigned char){(unsigned char)(bits >> 8 * i)}, 1);
}

// Seven bits a byte; all but the last have the eighth set.
static void put_varint(Message *message, uint64_t number) {
    for (; number >= 128; number >>= 7) put_fixed(message, number | 128, 1);
    put_fixed(message, number, 1);
}

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

static void put_field(Message *message, int field, int type) {
    put_varint(message, (uint64_t)(field << 3 | type));
}

static void put_integer(Message *message, int field, int64_t number) {
    put_field(message, field, VARINT);
    put_varint(message, (uint64_t)number);
}

static void put_double(Message *message, int field, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_field(message, field, FIXED_64);
    put_fixed(message, bits, 8);
}

static void put_float(Message *message, int field, float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_field(message, field, FIXED_32);
    put_fixed(message, bits, 4);
}

static void put_string(Message *message, int field, const char *text) {
    put_field(message, field, BYTES);
    put_varint(message, strlen(text));
    put_bytes(message, text, strlen(text));
}

// A message within a message; `inner` is used up.
static void put_message(Message *message, int field, Message *inner) {
    put_field(message, field, BYTES);
    put_varint(message, inner->size);
    put_bytes(message, inner->data, inner->size);
    free(inner->data);
    *inner = (Message){0};
}

// ---- records

static void write_record(Events *events, const Message *event) {
    Message record = {0};
    put_fixed(&record, event->size, 8);
    put_fixed(&record, events_masked_crc32c(record.data, 8), 4);
    put_bytes(&record, event->data, event->size);
    put_fixed(&record, events_masked_crc32c(event->data, event->size), 4);
    ssize_t written;
    do written = write(events->file, record.data, record.size);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)record.size) {
        events->size += written;
    } else { // a record is in the file as a whole or not at all
        if (events->lost++ == 0)
            warn("%.700s: cannot write: %s; the run goes on without these events", events->path,
                 strerror(written < 0 ? errno : ENOSPC));
        if (ftruncate(events->file, (off_t)events->size) == 0) lseek(events->file, (off_t)events->size, SEEK_SET);
    }
    free(record.data);
}

// Event: wall_time = 1, step = 2, and one of file_version = 3, summary = 5, session_log = 7.
static void write_event(Events *events, int64_t step, int field, Message *content) {
    Message event = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    if (step) put_integer(&event, 2, step);
    put_message(&event, field, content);
    write_record(events, &event);
    free(event.data);
}

void events_restart(Events *events, int64_t step) {
    Message session = {0};
    if (!events->path) return;
    put_integer(&session, 1, 1); // SessionLog: status = 1, START is 1
    write_event(events, step, 7, &session);
}

// ---- the file

static const char PREFIX[] = "events.out.tfevents.";

// Readers take the files in the order of their names, which begin with the time in seconds: a session that begins in
// the same second as another, or after the clock was set back, gets a later one.
static long long next_time(const char *directory) {
    long long next = (long long)time(NULL);
    DIR *opened = opendir(directory);
    for (struct dirent *entry; opened && (entry = readdir(opened));) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1)) continue;
        long long other = strtoll(entry->d_name + sizeof PREFIX - 1, NULL, 10);
        if (other >= next && other < 9999999999) next = other + 1;
    }
    if (opened) closedir(opened);
    return next;
}

void events_close(Events *events) {
    if (events->path && events->file >= 0) close(events->file);
    free(events->path);
    *events = (Events){0};
}

int events_open(Events *events, const char *directory, int64_t step, Error *error) {
    char name[200];
    struct utsname machine = {0};
    Message version = {0};
    uname(&machine);
    snprintf(name, sizeof name, "%s%010lld.%.64s.%d.0", PREFIX, next_time(directory), machine.nodename, (int)getpid());
    *events = (Events){.path = path_join(directory, name)};
    events->file = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (events->file < 0) {
        error_set(error, "%.700s: cannot create: %s", events->path, strerror(errno));
        events_close(events);
        return -1;
    }
    put_bytes(&version, "brain.Event:2", 13);
    write_event(events, 0, 3, &version);
    events_restart(events, step);
    return 0;
}

// ---- what a run has to say

// Summary: value = 1; Value: tag = 1, simple_value = 2.
void events_scalars(Events *events, int64_t step, const Scalar *scalars, int count) {
    Message summary = {0};
    if (!events->path) return;
    for (int i = 0; i < count; i++) {
        Message value = {0};
        put_string(&value, 1, scalars[i].tag);
        put_float(&value, 2, (float)scalars[i].value);
        put_message(&summary, 1, &value);
    }
    write_event(events, step, 5, &summary);
}

// Value: tag = 1, tensor = 8, metadata = 9; SummaryMetadata: plugin_data = 1; PluginData: plugin_name = 1, content = 2.
static void put_tensor(Events *events, int64_t step, const char *tag, Message *tensor, const char *plugin,
                       Message *content) {
    Message value = {0}, metadata = {0}, data = {0}, summary = {0};
    put_string(&data, 1, plugin);
    put_message(&data, 2, content);
    put_message(&metadata, 1, &data);
    put_string(&value, 1, tag);
    put_message(&value, 9, &metadata);
    put_message(&value, 8, tensor);
    put_message(&summary, 1, &value);
    write_event(events, step, 5, &summary);
}

enum { TENSOR_FLOAT = 1, TENSOR_STRING = 7 };

// TensorProto: dtype = 1, tensor_shape = 2, string_val = 8; TensorShapeProto: dim = 2; Dim: size = 1.
void events_text(Events *events, int64_t step, const char *tag, const char *text) {
    Message tensor = {0}, shape = {0}, dim = {0}, content = {0};
    if (!events->path) return;
    put_integer(&dim, 1, 1);
    put_message(&shape, 2, &dim);
    put_integer(&tensor, 1, TENSOR_STRING);
    put_message(&tensor, 2, &shape);
    put_string(&tensor, 8, text);
    put_tensor(events, step, tag, &tensor, "text", &content);
}

// google.protobuf.Value: number_value = 2, string_value = 3, bool_value = 4.
static void put_value(Message *value, const json_t *option) {
    if (json_is_number(option))
        put_double(value, 2, json_number_value(option));
    else if (json_is_boolean(option))
        put_integer(value, 4, json_is_true(option));
    else
        put_string(value, 3, json_is_string(option) ? json_string_value(option) : "");
}

// HParamsPluginData: session_start_info = 3; SessionStartInfo: hparams = 1, a map of entries: key = 1, value = 2.
void events_options(Events *events, const json_t *options) {
    const char *key;
    json_t *option;
    Message start = {0}, data = {0}, tensor = {0}, shape = {0};
    if (!events->path) return;
    json_object_foreach((json_t *)options, key, option) {
        Message entry = {0}, value = {0};
        put_value(&value, option);
        put_string(&entry, 1, key);
        put_message(&entry, 2, &value);
        put_message(&start, 1, &entry);
    }
    put_message(&data, 3, &start);
    put_integer(&tensor, 1, TENSOR_FLOAT);
    put_message(&tensor, 2, &shape);
    put_float(&tensor, 5, 0); // float_val: a number that stands for nothing
    put_tensor(events, 0, "_hparams_/session_start_info", &tensor, "hparams", &data);
}
