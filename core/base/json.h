// JSON that is made here: nothing is silently left out of it, and it can hold text of any bytes. jansson's memory
// comes from core/base/memory.h, so that no call to it fails for want of memory: such a failure ends the program with a
// message.
#ifndef CORE_JSON_H
#define CORE_JSON_H

#include "error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

// The value itself. One that jansson refused to make (NULL: a text that is not UTF-8, a number that is not finite) ends
// the program, naming `what`; values that come from outside go through the functions below, which never give NULL.
json_t *json_made(json_t *value, const char *what);
// object[key] = value, whose reference is taken over, with the same promise.
void json_put(json_t *object, const char *key, json_t *value);
// All entries of `more`, whose reference is taken over.
void json_put_all(json_t *object, json_t *more);
// json_dumps with the same promise; free() the text.
char *json_print(const json_t *json, size_t flags);

// A number, or null when it is not finite.
json_t *json_number(double number);
// A string for people to read; in text that is not UTF-8, everything but ASCII is written as %FF.
json_t *json_readable(const char *bytes);

// Text that reads back byte for byte, such as a path: a string, or {"percent": "a%FFb"} for what is not UTF-8.
json_t *json_bytes(const char *bytes);
// What json_bytes was given, in fresh memory; NULL when `json` is not something it makes.
char *json_bytes_value(const json_t *json);

// ---- reading

// The whole number object[key]; refuses what is not there, of another kind, or not within `least` and `most`. `path` is
// for the message.
int json_read_whole(int64_t *number, const json_t *object, const char *key, int64_t least, int64_t most,
                    const char *path, Error *error);

#endif
