#include "json.h"
#include "memory.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t bytes) {
    return memory_resize(NULL, bytes, 1, "JSON");
}

// Before main, so that no program can forget it.
__attribute__((constructor)) static void use_checked_memory(void) {
    json_set_alloc_funcs(allocate, free);
}

// ---- values that must exist

json_t *json_made(json_t *value, const char *what) {
    if (!value) die("%s cannot stand in JSON: a text in it is not UTF-8, or a number is not finite", what);
    return value;
}

void json_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, json_made(value, key))) die("%.200s: cannot be an entry of JSON", key);
}

void json_put_all(json_t *object, json_t *more) {
    if (json_object_update(object, json_made(more, "a value"))) die("a value cannot be an entry of JSON");
    json_decref(more);
}

char *json_print(const json_t *json, size_t flags) {
    char *text = json_dumps(json, flags);
    if (!text) die("a value cannot be written as JSON");
    return text;
}

json_t *json_number(double number) {
    return isfinite(number) ? json_real(number) : json_null();
}

// ---- text of any bytes

// Printable ASCII as it is; everything else, and the percent sign, as % and two hexadecimal digits. free() the result.
static char *percent_encode(const char *bytes) {
    char *text = memory_resize(NULL, 3 * strlen(bytes) + 1, 1, "text for JSON"), *end = text;
    for (; *bytes; bytes++) {
        unsigned char byte = (unsigned char)*bytes;
        if (byte >= 32 && byte < 127 && byte != '%')
            *end++ = *bytes;
        else
            end += snprintf(end, 4, "%%%02X", byte);
    }
    *end = 0;
    return text;
}

static int hexadecimal_digit(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *found = digit ? strchr(digits, tolower((unsigned char)digit)) : NULL;
    return found ? (int)(found - digits) : -1;
}

// The reverse; NULL when a percent sign is not followed by the digits of a byte other than 0. free() the result.
static char *percent_decode(const char *text) {
    char *bytes = memory_resize(NULL, strlen(text) + 1, 1, "text from JSON"), *end = bytes;
    while (*text) {
        if (*text != '%') {
            *end++ = *text++;
            continue;
        }
        int high = hexadecimal_digit(text[1]), low = high < 0 ? -1 : hexadecimal_digit(text[2]);
        if (low < 0 || high + low == 0) {
            free(bytes);
            return NULL;
        }
        *end++ = (char)(16 * high + low);
        text += 3;
    }
    *end = 0;
    return bytes;
}

json_t *json_readable(const char *bytes) {
    json_t *string = json_string(bytes);
    if (string) return string;
    char *text = percent_encode(bytes);
    string = json_made(json_string(text), "text");
    free(text);
    return string;
}

json_t *json_bytes(const char *bytes) {
    json_t *string = json_string(bytes);
    if (string) return string;
    return json_made(json_pack("{s:o}", "percent", json_readable(bytes)), "text");
}

char *json_bytes_value(const json_t *json) {
    if (json_is_string(json)) return memory_copy_string(json_string_value(json));
    const char *text = json_string_value(json_object_get(json, "percent"));
    return text && json_object_size(json) == 1 ? percent_decode(text) : NULL;
}

// ---- reading

int json_read_whole(int64_t *number, const json_t *object, const char *key, int64_t least, int64_t most,
                    const char *path, Error *error) {
    const json_t *value = json_object_get(object, key);
    int64_t found = json_integer_value(value);
    if (!json_is_integer(value))
        return error_set(error, "%.700s: \"%s\": expected a whole number, found %s; the file is damaged", path, key,
                         value ? "something else" : "none");
    if (found < least || found > most)
        return error_set(error,
                         "%.700s: \"%s\": expected %" PRId64 " to %" PRId64 ", found %" PRId64 "; the file is damaged",
                         path, key, least, most, found);
    *number = found;
    return 0;
}
