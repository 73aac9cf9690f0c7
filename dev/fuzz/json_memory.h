// Memory for jansson, linked into every target: JSON is many small blocks, for which the address sanitizer's malloc
// takes longer than all that is done with them. Here a block has a poisoned gap before and behind it, and is poisoned
// when it is given back, until a quarter of a megabyte later; so that the sanitizer sees what it would see otherwise.
#ifndef FUZZ_JSON_MEMORY_H
#define FUZZ_JSON_MEMORY_H

// Ends the process when JSON is left that nobody gave back: these blocks are none of the leak detector's.
void json_memory_check(void);

#endif
