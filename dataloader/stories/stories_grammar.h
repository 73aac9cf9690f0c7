// The story grammar: small English stories made of discrete choices. The same rules run in two directions. Generating,
// a choice is drawn at random; parsing, it is read off the text, and exactly one alternative has to fit. So a text's
// probability is the product of its choices' probabilities, and -log2 of it is the floor no model can beat on average.
//
//     StoryGrammar *grammar = story_grammar_create();
//     Story story;
//     story_generate(grammar, seed, index, &story);                     // story.text, story.bits
//     story_parse(grammar, story.text, story.bytes, &story, &error);    // the same choices, the same bits
//     story_grammar_free(grammar);
//
// The rules are in stories_rules.h, the words in stories_words.h; docs/stories.md describes both.
#ifndef DATALOADER_STORIES_GRAMMAR_H
#define DATALOADER_STORIES_GRAMMAR_H

#include "core/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { STORY_MAX_BYTES = 4096, STORY_MAX_CHOICES = 256 };

// Validation stories come from here on, so that no seed's training text reaches them.
#define STORY_VALIDATION_FIRST (UINT64_C(1) << 40)

// The line after every story of a file.
#define STORY_SEPARATOR "<|endoftext|>"

typedef struct StoryGrammar StoryGrammar;

typedef struct {
    uint16_t pick, of; // alternative `pick` of `of` equally likely ones
} StoryChoice;

typedef struct {
    char text[STORY_MAX_BYTES]; // 0-terminated
    size_t bytes;               // of the story, which ends with a full stop; the line break after it is the file's
    StoryChoice choices[STORY_MAX_CHOICES];
    int n_choices;
    double bits; // sum of log2(of): the story's information content
} Story;

typedef struct {
    const char *name;
    const char *const *alternatives; // in the notation of stories_rules.h; NULL after the last
} StoryRule;

// Compiles the rules. A mistake in them ends the program with a message: they are part of the program.
StoryGrammar *story_grammar_create(void);
// The same for other rules over the same words and variables; the first rule is the story. `rules` has to live on.
StoryGrammar *story_grammar_create_from(const StoryRule *rules, int n_rules);
void story_grammar_free(StoryGrammar *grammar);

// Story number `index` of a seed; depends on nothing else.
void story_generate(const StoryGrammar *grammar, uint64_t seed, uint64_t index, Story *story);

// Reads the choices back from a whole story. -1 when the text is no story of this grammar, or would be one in two ways.
// `story` receives a copy of the text.
int story_parse(const StoryGrammar *grammar, const char *text, size_t bytes, Story *story, Error *error);

// ---- measuring text that a model wrote

typedef struct {
    int sentences, grammatical; // sentences of the text; those that some rule could have made, with any words
    int facts, facts_right;     // names, pronouns, things, places, answers that the story had settled before
    size_t parsed_bytes;        // how far the text follows the rules, whatever the facts
    int complete;               // all the way to the end of a story
    int cut_off;                // all the way to the end of the text, which stops early
} StoryCheck;

// Follows the rules through a text and lets a settled word be any of its class, counting how often it is the right one.
void story_check(const StoryGrammar *grammar, const char *text, size_t bytes, StoryCheck *check);

// ---- looking at the grammar

typedef struct {
    int rules, alternatives, sentences; // sentences: shapes that end with a full stop, question or exclamation mark
    int classes, words;                 // word classes; entries in all of them
} StoryGrammarSize;

StoryGrammarSize story_grammar_size(const StoryGrammar *grammar);

// Proves, from the rules alone, that the text determines the choices: no word of a class begins another one, and for no
// choice can two alternatives begin alike all the way to the end of one of them. -1 with the offending pair otherwise.
int story_grammar_prove(const StoryGrammar *grammar, Error *error);

#endif
