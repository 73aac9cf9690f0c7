// Changes that keep an input's structure, for libFuzzer: of the parts of an input (fuzz.h) one is taken, and of a
// part of many lines one line. JSON is changed as a tree; a safetensors file in its header, whose length is then
// right again, and whose offsets may be made to fit, with the data cut or padded to them. Everything else, and often
// these too, is left to libFuzzer's own changes of bytes.
#define _GNU_SOURCE
#include "fuzz.h"

#include <jansson.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static uint64_t random_state;

static unsigned random_below(unsigned bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % bound;
}

// ---- memory: JSON that is changed is many small blocks, which the sanitizers' malloc takes longer for than the reader
// that is looked for errors takes. They come from one block, which is free again with the next change.

static char arena[16 << 20];
static size_t arena_used;

static void *arena_take(size_t size) {
    size_t place = arena_used, bytes = (size + 15) / 16 * 16;
    if (size > sizeof arena || bytes > sizeof arena - place) return NULL;
    arena_used += bytes;
    return arena + place;
}

static void arena_leave(void *block) {
    (void)block;
}

// ---- JSON

static json_t *odd_value(void) {
    static const json_int_t numbers[] = {
        0, 1, -1, 2, 255, 256, 65535, 65536, 1 << 20, 2147483647, -2147483648LL, 4294967296LL, INT64_MAX, INT64_MIN};
    static const double reals[] = {0.0, -0.0, 0.5, 1e-5, 1e-300, 1e300, -1.0, 4.9e-324};
    static const char *const texts[] = {"",          "F32",  "BF16", "I64",     "softmax", "slay", "gpt2",
                                        "slay-gpt2", "none", "../x", "learned", "0",       "\x7f", "__metadata__"};
    switch (random_below(8)) {
    case 0:
        return json_null();
    case 1:
        return json_boolean((int)random_below(2));
    case 2:
        return json_object();
    case 3:
        return json_array();
    case 4:
        return json_real(reals[random_below(8)]);
    case 5:
        return json_string(texts[random_below(14)]);
    default:
        return json_integer(numbers[random_below(14)]);
    }
}

static json_t *changed_string(const json_t *old) {
    uint8_t text[256];
    size_t length = json_string_length(old) < 128 ? json_string_length(old) : 128;
    memcpy(text, json_string_value(old), length);
    length = LLVMFuzzerMutate(text, length, sizeof text);
    json_t *string = json_stringn((const char *)text, length);
    return string ? string : odd_value();
}

// A value in the place of `old`.
static json_t *changed_value(const json_t *old) {
    if (random_below(3) == 0) return odd_value();
    if (json_is_integer(old)) {
        uint64_t value = (uint64_t)json_integer_value(old), step = 1u << random_below(12);
        return json_integer((json_int_t)(random_below(2) ? value + step : value - step));
    }
    if (json_is_real(old)) return json_real(json_real_value(old) * (random_below(2) ? 2 : 0.5));
    if (json_is_string(old)) return changed_string(old);
    return odd_value();
}

static void change_object(json_t *object, unsigned place) {
    const char *key;
    json_t *value = NULL;
    char fresh[64];
    json_object_foreach(object, key, value) if (place-- == 0) break;
    if (!key) return;
    switch (random_below(4)) {
    case 0:
        json_object_del(object, key);
        break;
    case 1: // the same under another name
        snprintf(fresh, sizeof fresh, "%.50s%u", key, random_below(10));
        json_object_set(object, fresh, value);
        break;
    default:
        json_object_set_new(object, key, changed_value(value));
    }
}

static void change_array(json_t *array, unsigned place) {
    switch (random_below(4)) {
    case 0:
        json_array_remove(array, place);
        break;
    case 1:
        json_array_append(array, json_array_get(array, place));
        break;
    default:
        json_array_set_new(array, place, changed_value(json_array_get(array, place)));
    }
}

// Goes down at random and changes something there.
static void change_tree(json_t *json) {
    size_t count = json_is_object(json) ? json_object_size(json) : json_array_size(json);
    if (!count) return;
    unsigned place = random_below((unsigned)count), left = place;
    const char *key;
    json_t *child = json_array_get(json, place);
    if (json_is_object(json)) json_object_foreach(json, key, child) if (left-- == 0) break;
    size_t within = json_is_object(child) ? json_object_size(child) : json_array_size(child);
    if (within && random_below(3)) {
        change_tree(child);
    } else if (json_is_object(json)) {
        change_object(json, place);
    } else {
        change_array(json, place);
    }
}

// Its length is 0 when it is longer than `most`.
static const char *text_of(const json_t *json, size_t most, size_t *length) {
    char *text = arena_take(most + 1);
    *length = json_dumpb(json, text, most, JSON_COMPACT | JSON_ENSURE_ASCII);
    if (*length > most) *length = 0;
    return text;
}

// The changed text in `data`; 0 when it is not JSON, or has become too long.
static size_t mutate_json(uint8_t *data, size_t size, size_t most) {
    json_t *json = json_loadb((const char *)data, size, 0, NULL);
    if (!json) return 0;
    for (unsigned i = 0; i <= random_below(3); i++) change_tree(json);
    size_t length;
    const char *text = text_of(json, most, &length);
    json_decref(json);
    memcpy(data, text, length);
    return length;
}

// ---- safetensors

static uint64_t bytes_of(const json_t *tensor) {
    const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
    const json_t *shape = json_object_get(tensor, "shape");
    uint64_t bytes = dtype && strstr(dtype, "64")   ? 8
                     : dtype && strstr(dtype, "32") ? 4
                     : dtype && strstr(dtype, "16") ? 2
                                                    : 1;
    for (size_t i = 0; i < json_array_size(shape); i++) bytes *= (uint64_t)json_integer_value(json_array_get(shape, i));
    return bytes;
}

// Gives every tensor the offsets that its dtype and shape ask for; returns the bytes of all.
static uint64_t fit_offsets(json_t *header) {
    const char *name;
    json_t *tensor;
    uint64_t offset = 0;
    json_object_foreach(header, name, tensor) {
        uint64_t bytes = bytes_of(tensor);
        if (!strcmp(name, "__metadata__") || !json_is_object(tensor) || bytes > 4096) continue;
        json_object_set_new(tensor, "data_offsets",
                            json_pack("[I,I]", (json_int_t)offset, (json_int_t)(offset + bytes)));
        offset += bytes;
    }
    return offset;
}

static size_t mutate_safetensors(uint8_t *data, size_t size, size_t most) {
    uint64_t length = 0;
    if (size >= 8) memcpy(&length, data, 8);
    if (length < 2 || length > size - 8) return 0;
    json_t *header = json_loadb((const char *)data + 8, length, 0, NULL);
    if (!header) return 0;
    size_t numbers = size - 8 - length;
    change_tree(header);
    if (random_below(4)) numbers = fit_offsets(header);
    size_t fresh;
    const char *text = text_of(header, most, &fresh);
    size_t whole = 8 + fresh + numbers;
    int fits = fresh && whole <= most && 8 + length <= size;
    if (fits) {
        size_t there = size - 8 - length, kept = there < numbers ? there : numbers;
        memmove(data + 8 + fresh, data + 8 + length, 8 + fresh + kept <= most ? kept : 0);
        memset(data + 8 + fresh + kept, 0, numbers - kept);
        memcpy(data, &(uint64_t){fresh}, 8);
        memcpy(data + 8, text, fresh);
    }
    json_decref(header);
    return fits ? whole : 0;
}

// ---- an input

// Narrows [*start, *end) to one of the pieces that `mark` separates.
static void choose_piece(const uint8_t *data, size_t *start, size_t *end, const char *mark) {
    size_t length = strlen(mark), pieces = 1, at = *start;
    const uint8_t *found;
    while ((found = memmem(data + at, *end - at, mark, length))) pieces++, at = (size_t)(found - data) + length;
    at = *start;
    for (unsigned left = random_below((unsigned)pieces);; left--) {
        found = at < *end ? memmem(data + at, *end - at, mark, length) : NULL;
        if (left == 0) {
            *start = at;
            if (found) *end = (size_t)(found - data);
            return;
        }
        at = (size_t)(found - data) + length;
    }
}

// One of the parts, or one of its lines, changed as what it is; returns the new size, or 0 when nothing was changed.
static size_t mutate_part(uint8_t *data, size_t size, size_t most) {
    size_t start = 0, end = size;
    choose_piece(data, &start, &end, "\n%%\n");
    size_t rest = size - end, room = most - start - rest;
    uint8_t *piece = arena_take(room + 1);
    memcpy(piece, data + start, end - start);
    size_t fresh = mutate_json(piece, end - start, room);
    if (!fresh) fresh = mutate_safetensors(piece, end - start, room);
    if (!fresh) { // one of its lines
        choose_piece(data, &start, &end, "\n");
        rest = size - end, room = most - start - rest;
        piece = arena_take(room + 1);
        memcpy(piece, data + start, end - start);
        fresh = mutate_json(piece, end - start, room);
    }
    if (!fresh) return 0;
    memmove(data + start + fresh, data + end, rest), memcpy(data + start, piece, fresh);
    return start + fresh + rest;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    json_malloc_t take;
    json_free_t leave;
    size_t fresh = 0;
    random_state = seed, arena_used = 0;
    json_get_alloc_funcs(&take, &leave);
    json_set_alloc_funcs(arena_take, arena_leave);
    if (size && random_below(4)) fresh = mutate_part(data, size, most);
    json_set_alloc_funcs(take, leave);
    return fresh ? fresh : LLVMFuzzerMutate(data, size, most);
}
