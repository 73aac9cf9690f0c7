// A command for llm.c's train_gpt2cu, pasted: what it is called here.
#ifndef CORE_LLMC_COMMAND_H
#define CORE_LLMC_COMMAND_H

#include "core/base/error.h"

// Whether the words are llm.c's options: pairs of a short option and a value, at least one of them such as only llm.c
// has. Then -1, with the translation in the error; else 0. Where llm.c's default is another than ours, it is named, so
// that the command trains the same.
int llmc_command_refuse(int argc, char **argv, Error *error);

#endif
