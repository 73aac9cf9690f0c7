// Multiple-choice sets such as HellaSwag: a context, several ways to go on, one of them right. A model answers with the
// completion that it finds likeliest. Read from llm.c's binary files (the tokens) or from JSONL (the text).
//
// A row is one completion with its context. Rows go through a model in batches of similar length; the loss of each, the
// sum over its completion's tokens, is all that is needed of it.
#ifndef DATALOADER_CHOICES_H
#define DATALOADER_CHOICES_H

#include "tokenizer.h"

enum { CHOICES_MAGIC = 20240522, CHOICES_VERSION = 1 };

typedef struct {
    size_t context, completion; // where their tokens begin in Choices.tokens
    int context_count, count;   // how many they are
    int characters;             // of the completion's text, the space before it aside; 0: unknown
} ChoiceRow;

typedef struct {
    int first_row, rows, label; // label: which of its rows is right, from 0
} ChoiceExample;

typedef struct {
    char *path;
    int *tokens;
    size_t token_count;
    ChoiceRow *rows;
    int row_count;
    ChoiceExample *examples;
    int example_count;
    int *order;     // (row_count) rows by length, the longest first
    double *losses; // (row_count) what a model made of them
} Choices;

// `tokenizer` is needed for JSONL; for a binary file it only tells how long texts are, and may be NULL.
int choices_load(Choices **choices, const char *path, const Tokenizer *tokenizer, Error *error);
// Refuses a set with tokens that a model with a vocabulary of V does not have.
int choices_check(const Choices *choices, int V, Error *error);
void choices_free(Choices *choices);

// How many tokens of input the longest row has, `begins` being 1 if end-of-text goes before each context.
int choices_longest(const Choices *choices, int begins);
// How many rows lose the beginning of their context when inputs have T tokens.
int choices_cut(const Choices *choices, int begins, int T);

// Fills inputs and targets (rows,T) with up to `most_rows` rows, from number `first` of the order on, the longest of
// which decides T, at most `most_T`: what is longer loses its beginning. Targets are -1 but for completions. With
// `begins`, end-of-text goes before each context; it always stands for a context without tokens. Returns the number of
// rows.
typedef struct {
    int *inputs, *targets;
    int T;
} ChoiceBatch;
int choices_batch(const Choices *choices, ChoiceBatch *batch, int first, int most_rows, int most_T, int begins,
                  int end_of_text);
// Takes the losses of the rows that choices_batch gave for `first`.
void choices_put(Choices *choices, int first, int rows, const double *losses);

typedef struct {           // shares of examples whose likeliest completion is the right one, by
    double accuracy;       // its probability
    double per_token;      // its mean log-probability, as in llm.c
    double per_character;  // its log-probability by length of text, as lm-eval's acc_norm; below 0: unknown
    double standard_error; // of the first
    double chance;         // what guessing gives
    int examples;
} ChoiceReport;
ChoiceReport choices_report(const Choices *choices);
// One line of text for people; the name of the set is the caller's.
const char *choice_report_text(const ChoiceReport *report, char *text, size_t size);

#endif
