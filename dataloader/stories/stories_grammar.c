#include "stories_grammar.h"
#include "stories_rules.h"
#include "stories_words.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FORMS = 16, MAX_VARIABLES = 48, MAX_NODES_PER_SEQUENCE = 96, MAX_ALTERNATIVES = 64, MAX_WORD_BYTES = 64 };

// ---------------------------------------------------------------------------------------------------------------------
// The compiled grammar. A sequence is a run of nodes, a choice a run of sequences; both are ranges of one pool.

typedef struct {
    const char *text;
    int length;
} Text;

typedef struct {
    const char *name;
    int low, count;       // entries low .. low + count - 1 may be drawn
    int n_words, n_forms; // of the whole list
    Text form_names[MAX_FORMS];
    Text *texts; // (n_words, n_forms)
} Class;

typedef enum {
    NODE_LITERAL, // text
    NODE_CHOICE,  // one of the sequences of choice `choice`
    NODE_DRAW,    // a word of `word_class`, not yet in the story; kept in `variable` unless that is -1
    NODE_RECALL,  // the word in `variable`
    NODE_SET,     // variable = left - right (right may be -1); makes no text
} NodeKind;

typedef struct {
    NodeKind kind;
    Text text;
    int choice, word_class, variable, form, left, right;
    int article, capital;
    int ends_sentence; // literal: it closes a sentence
} Node;

typedef struct {
    int first, count;
} Range;

struct StoryGrammar {
    const StoryRule *rules;
    Class *classes;
    int n_classes;
    int variable_class[MAX_VARIABLES], n_variables;
    Node *nodes;
    Range *sequences, *choices; // choices 0 .. n_rules - 1 are the named rules; 0 is where a story starts
    int n_nodes, n_sequences, n_choices, n_rules;
};

// Forms that a word with the form "gender" (f or m) has for free.
static const struct {
    const char *name, *female, *male;
} GENDERED_FORMS[] = {
    {"he", "she", "he"},
    {"him", "her", "him"},
    {"his", "her", "his"},
    {"boy", "girl", "boy"},
};

static int text_equals(Text text, const char *other) {
    return (int)strlen(other) == text.length && !memcmp(text.text, other, (size_t)text.length);
}

// ---------------------------------------------------------------------------------------------------------------------
// Compiling word classes

// Cuts the next part of *cursor off at `separator`, at or before `end`.
static Text next_part(const char **cursor, const char *end, char separator) {
    Text part = {*cursor, 0};
    while (*cursor < end && **cursor != separator) ++*cursor;
    part.length = (int)(*cursor - part.text);
    if (*cursor < end) ++*cursor;
    return part;
}

static void add_gendered_forms(Class *word_class, int gender, int own_forms, Text *row) {
    for (size_t i = 0; i < sizeof(GENDERED_FORMS) / sizeof(*GENDERED_FORMS); i++) {
        const char *text = row[gender].text[0] == 'f' ? GENDERED_FORMS[i].female : GENDERED_FORMS[i].male;
        word_class->form_names[own_forms + (int)i] =
            (Text){GENDERED_FORMS[i].name, (int)strlen(GENDERED_FORMS[i].name)};
        row[own_forms + (int)i] = (Text){text, (int)strlen(text)};
    }
}

static int count_parts(const char *text, char separator) {
    int count = 1;
    for (; *text; text++) count += *text == separator;
    return count;
}

static void compile_class(Class *word_class, const WordClass *source) {
    *word_class = (Class){.name = source->name, .n_words = count_parts(source->words, '|')};
    int own_forms = 0, gender = -1;
    const char *cursor = source->forms, *end = cursor + strlen(cursor);
    while (cursor < end) {
        word_class->form_names[own_forms] = next_part(&cursor, end, '/');
        if (text_equals(word_class->form_names[own_forms], "gender")) gender = own_forms;
        own_forms++;
    }
    word_class->n_forms = own_forms + (gender < 0 ? 0 : (int)(sizeof(GENDERED_FORMS) / sizeof(*GENDERED_FORMS)));
    word_class->low = source->low;
    word_class->count = (source->high ? source->high + 1 : word_class->n_words) - source->low;
    word_class->texts =
        memory_allocate((size_t)word_class->n_words * (size_t)word_class->n_forms, sizeof(Text), "story words");
    cursor = source->words, end = cursor + strlen(cursor);
    for (int word = 0; word < word_class->n_words; word++) {
        Text entry = next_part(&cursor, end, '|'), *row = word_class->texts + word * word_class->n_forms;
        const char *inner = entry.text;
        if (entry.length > MAX_WORD_BYTES) die("story grammar: `%.*s` is too long", entry.length, entry.text);
        for (int form = 0; form < own_forms; form++) row[form] = next_part(&inner, entry.text + entry.length, '/');
        if (gender >= 0) add_gendered_forms(word_class, gender, own_forms, row);
    }
}

static int find_class(const StoryGrammar *grammar, Text name) {
    for (int i = 0; i < grammar->n_classes; i++)
        if (text_equals(name, grammar->classes[i].name)) return i;
    die("story grammar: there is no word class `%.*s`", name.length, name.text);
}

static int find_variable(Text name) {
    for (int i = 0; i < (int)(sizeof(STORY_VARIABLES) / sizeof(*STORY_VARIABLES)); i++)
        if (text_equals(name, STORY_VARIABLES[i].name)) return i;
    die("story grammar: there is no variable `%.*s`", name.length, name.text);
}

static int find_rule(const StoryGrammar *grammar, Text name) {
    for (int i = 0; i < grammar->n_rules; i++)
        if (text_equals(name, grammar->rules[i].name)) return i;
    die("story grammar: there is no rule `%.*s`", name.length, name.text);
}

static int find_form(const Class *word_class, Text name) {
    for (int i = 0; i < word_class->n_forms; i++)
        if (word_class->form_names[i].length == name.length &&
            !memcmp(word_class->form_names[i].text, name.text, (size_t)name.length))
            return i;
    die("story grammar: words of class `%s` have no form `%.*s`", word_class->name, name.length, name.text);
}

// ---------------------------------------------------------------------------------------------------------------------
// Compiling rules. The notation is explained in stories_rules.h: {+hero} {hero} {hero.his} {^a thing} {=weather}
// {@rule} {left:=total-given} <one way|another way>

static Text rest_of(Text text, int skip) {
    return (Text){text.text + skip, text.length - skip};
}

static int starts_with(Text text, const char *prefix) {
    int length = (int)strlen(prefix);
    return text.length >= length && !memcmp(text.text, prefix, (size_t)length);
}

static Node compile_assignment(Text target, Text value) {
    const char *end = value.text + value.length;
    Node node = {.kind = NODE_SET, .variable = find_variable(target), .right = -1};
    node.left = find_variable(next_part(&value.text, end, '-'));
    if (value.text < end) node.right = find_variable((Text){value.text, (int)(end - value.text)});
    return node;
}

// The inside of a pair of braces.
static Node compile_slot(const StoryGrammar *grammar, Text slot) {
    for (int i = 0; i + 1 < slot.length; i++)
        if (slot.text[i] == ':' && slot.text[i + 1] == '=')
            return compile_assignment((Text){slot.text, i}, rest_of(slot, i + 2));
    if (starts_with(slot, "@")) return (Node){.kind = NODE_CHOICE, .choice = find_rule(grammar, rest_of(slot, 1))};
    Node node = {.kind = NODE_RECALL, .variable = -1};
    if (starts_with(slot, "^")) node.capital = 1, slot = rest_of(slot, 1);
    if (starts_with(slot, "a ")) node.article = 1, slot = rest_of(slot, 2);
    int named = !starts_with(slot, "=");
    if (!named || starts_with(slot, "+")) node.kind = NODE_DRAW, slot = rest_of(slot, 1);
    const char *cursor = slot.text, *end = slot.text + slot.length;
    Text name = next_part(&cursor, end, '.');
    if (named) node.variable = find_variable(name);
    node.word_class = named ? grammar->variable_class[node.variable] : find_class(grammar, name);
    if (cursor < end && node.kind == NODE_DRAW) die("story grammar: only the first form of a word can be drawn");
    if (cursor < end) node.form = find_form(&grammar->classes[node.word_class], (Text){cursor, (int)(end - cursor)});
    return node;
}

static int closes_sentence(char c) {
    return c == '.' || c == '!' || c == '?';
}

// Length of the literal at the front of `text`: up to a slot or a choice, but never past the end of a sentence, which
// is what lets story_check() take the rules apart into sentences; line breaks are literals of their own. A closing mark
// and quote before a small letter ("..." asked Mira) are not an end.
static int literal_length(Text text, int *ends_sentence) {
    int i = 0;
    *ends_sentence = 0;
    while (i < text.length && text.text[i] == '\n') i++;
    if (i) return i;
    while (i < text.length && !strchr("{<|>\n", text.text[i])) {
        char c = text.text[i++];
        if (!closes_sentence(c)) continue;
        int end = i + (i < text.length && text.text[i] == '"');
        if (end + 1 < text.length && text.text[end] == ' ' && islower((unsigned char)text.text[end + 1])) continue;
        *ends_sentence = 1;
        return end;
    }
    return i;
}

static int append_sequences(StoryGrammar *grammar, const Range *sequences, int count) {
    grammar->sequences =
        memory_resize(grammar->sequences, (size_t)(grammar->n_sequences + count), sizeof(Range), "rules");
    memcpy(grammar->sequences + grammar->n_sequences, sequences, (size_t)count * sizeof(Range));
    grammar->n_sequences += count;
    return grammar->n_sequences - count;
}

static Range compile_nodes(StoryGrammar *grammar, Text *text);

// `<a|b|c>`, with *text just after the `<`; leaves it just after the `>`.
static int compile_inline_choice(StoryGrammar *grammar, Text *text) {
    Range alternatives[MAX_ALTERNATIVES];
    int count = 0;
    for (;;) {
        if (count == MAX_ALTERNATIVES) die("story grammar: more than %d alternatives in one choice", MAX_ALTERNATIVES);
        alternatives[count++] = compile_nodes(grammar, text);
        if (text->length == 0) die("story grammar: a `<` without its `>`");
        char mark = text->text[0];
        *text = rest_of(*text, 1);
        if (mark == '>') break;
    }
    int first = append_sequences(grammar, alternatives, count);
    grammar->choices = memory_resize(grammar->choices, (size_t)grammar->n_choices + 1, sizeof(Range), "rules");
    grammar->choices[grammar->n_choices] = (Range){first, count};
    return grammar->n_choices++;
}

static Node compile_node(StoryGrammar *grammar, Text *text) {
    Node node = {.kind = NODE_LITERAL};
    if (text->text[0] == '<') {
        *text = rest_of(*text, 1);
        node.kind = NODE_CHOICE;
        node.choice = compile_inline_choice(grammar, text);
    } else if (text->text[0] == '{') {
        const char *close = memchr(text->text, '}', (size_t)text->length);
        if (!close) die("story grammar: a `{` without its `}` in \"%.*s\"", text->length, text->text);
        int length = (int)(close - text->text);
        node = compile_slot(grammar, (Text){text->text + 1, length - 1});
        *text = rest_of(*text, length + 1);
    } else {
        int length = literal_length(*text, &node.ends_sentence);
        node.text = (Text){text->text, length};
        *text = rest_of(*text, length);
    }
    return node;
}

// Nodes up to the end of the text or to a `|` or `>` that belongs to the choice around them.
static Range compile_nodes(StoryGrammar *grammar, Text *text) {
    Node nodes[MAX_NODES_PER_SEQUENCE];
    int count = 0;
    while (text->length && text->text[0] != '|' && text->text[0] != '>') {
        if (count == MAX_NODES_PER_SEQUENCE) die("story grammar: a rule is too long");
        nodes[count++] = compile_node(grammar, text);
    }
    grammar->nodes = memory_resize(grammar->nodes, (size_t)(grammar->n_nodes + count), sizeof(Node), "rules");
    memcpy(grammar->nodes + grammar->n_nodes, nodes, (size_t)count * sizeof(Node));
    grammar->n_nodes += count;
    return (Range){grammar->n_nodes - count, count};
}

static Range compile_rule(StoryGrammar *grammar, const StoryRule *rule) {
    Range alternatives[MAX_ALTERNATIVES];
    int count = 0;
    for (; rule->alternatives[count]; count++) {
        if (count == MAX_ALTERNATIVES) die("story grammar: more than %d alternatives in `%s`", count, rule->name);
        Text text = {rule->alternatives[count], (int)strlen(rule->alternatives[count])};
        alternatives[count] = compile_nodes(grammar, &text);
        if (text.length) die("story grammar: a stray `%c` in rule `%s`", text.text[0], rule->name);
    }
    return (Range){append_sequences(grammar, alternatives, count), count};
}

StoryGrammar *story_grammar_create(void) {
    return story_grammar_create_from(STORY_RULES, (int)(sizeof(STORY_RULES) / sizeof(*STORY_RULES)));
}

StoryGrammar *story_grammar_create_from(const StoryRule *rules, int n_rules) {
    StoryGrammar *grammar = memory_allocate_zeroed(1, sizeof(*grammar), "story grammar");
    grammar->n_classes = (int)(sizeof(WORD_CLASSES) / sizeof(*WORD_CLASSES));
    grammar->classes = memory_allocate((size_t)grammar->n_classes, sizeof(Class), "story words");
    for (int i = 0; i < grammar->n_classes; i++) compile_class(&grammar->classes[i], &WORD_CLASSES[i]);
    grammar->n_variables = (int)(sizeof(STORY_VARIABLES) / sizeof(*STORY_VARIABLES));
    if (grammar->n_variables > MAX_VARIABLES) die("story grammar: more than %d variables", MAX_VARIABLES);
    for (int i = 0; i < grammar->n_variables; i++) {
        const char *word_class = STORY_VARIABLES[i].word_class;
        grammar->variable_class[i] = find_class(grammar, (Text){word_class, (int)strlen(word_class)});
    }
    grammar->rules = rules;
    grammar->n_rules = grammar->n_choices = n_rules;
    grammar->choices = memory_resize(NULL, (size_t)grammar->n_choices, sizeof(Range), "rules");
    for (int i = 0; i < grammar->n_rules; i++) {
        Range rule = compile_rule(grammar, &rules[i]); // may move grammar->choices
        grammar->choices[i] = rule;
    }
    return grammar;
}

void story_grammar_free(StoryGrammar *grammar) {
    if (!grammar) return;
    for (int i = 0; i < grammar->n_classes; i++) free(grammar->classes[i].texts);
    free(grammar->classes);
    free(grammar->nodes);
    free(grammar->sequences);
    free(grammar->choices);
    free(grammar);
}

// ---------------------------------------------------------------------------------------------------------------------
// Walking the grammar, in one of three modes

typedef enum {
    WALK_GENERATE, // choices are drawn, text is written
    WALK_PARSE,    // choices are read off the text; exactly one alternative fits
    WALK_CHECK,    // as parsing, but a settled word may be any of its class; the alternative with fewest faults counts
} WalkMode;

// Everything that a wrong alternative has to give back.
typedef struct {
    size_t position;
    int16_t value[MAX_VARIABLES]; // a word's number in its class, -1: not settled yet
    int n_choices, facts, facts_right;
} WalkState;

typedef struct {
    const StoryGrammar *grammar;
    WalkMode mode;
    WalkState at;
    uint64_t key;     // generating
    Story *story;     // receives text and choices
    const char *text; // parsing
    size_t bytes;
    WalkState furthest; // where the last mismatch was found, and what was counted until there
    int ambiguous;
} Walk;

static int walk_sequence(Walk *walk, Range sequence);

static void walk_begin(Walk *walk) {
    for (int i = 0; i < MAX_VARIABLES; i++) walk->at.value[i] = -1;
}

static void record_choice(Walk *walk, int pick, int of) {
    if (walk->at.n_choices == STORY_MAX_CHOICES)
        die("story grammar: more than %d choices in a story", STORY_MAX_CHOICES);
    walk->story->choices[walk->at.n_choices++] = (StoryChoice){(uint16_t)pick, (uint16_t)of};
}

static int draw_choice(Walk *walk, int of) {
    if (of == 1) return 0;
    int pick = (int)random_below(walk->key, (uint64_t)walk->at.n_choices, (uint64_t)of);
    record_choice(walk, pick, of);
    return pick;
}

static int faults(const WalkState *state) {
    return state->facts - state->facts_right;
}

// Keeps the furthest mismatch; of several in one place the one that was reached with fewest faults.
static void note_mismatch(Walk *walk, size_t position) {
    size_t known = walk->furthest.position;
    if (position < known || (position == known && faults(&walk->at) > faults(&walk->furthest))) return;
    walk->furthest = walk->at;
    walk->furthest.position = position;
}

// Writes the text, or compares it with what stands at the position. 1 if it fits.
static int walk_text(Walk *walk, const char *text, size_t length) {
    if (walk->mode == WALK_GENERATE) {
        if (walk->at.position + length >= STORY_MAX_BYTES)
            die("story grammar: a story above %d bytes", STORY_MAX_BYTES);
        memcpy(walk->story->text + walk->at.position, text, length);
    } else {
        const char *found = walk->text + walk->at.position;
        size_t left = walk->bytes - walk->at.position, same = 0;
        while (same < length && same < left && found[same] == text[same]) same++;
        if (same < length) {
            note_mismatch(walk, walk->at.position + same);
            return 0;
        }
    }
    walk->at.position += length;
    return 1;
}

// A word with its article and capital as the node wants them; returns the length.
static size_t render_word(char *out, const Node *node, Text word) {
    size_t length = 0;
    if (node->article) {
        memcpy(out, "an ", 3);
        length = 3;
        if (!strchr("aeiouAEIOU", word.text[0])) out[1] = ' ', length = 2;
    }
    memcpy(out + length, word.text, (size_t)word.length);
    if (node->capital) out[0] = (char)toupper((unsigned char)out[0]);
    return length + (size_t)word.length;
}

// A word also has to end where the text's word ends: "Ann" does not fit "Anna".
static int walk_word(Walk *walk, const Node *node, int word_class, int word) {
    char out[MAX_WORD_BYTES + 4];
    const Class *words = &walk->grammar->classes[word_class];
    size_t length = render_word(out, node, words->texts[word * words->n_forms + node->form]);
    size_t before = walk->at.position;
    if (!walk_text(walk, out, length)) return 0;
    if (walk->mode == WALK_GENERATE || walk->at.position == walk->bytes) return 1;
    char next = walk->text[walk->at.position];
    if (!isalpha((unsigned char)next) && next != '-') return 1;
    walk->at.position = before;
    return 0;
}

// The words of a class that the story has used already, in rising order, each once. Returns how many.
static int used_words(const Walk *walk, int word_class, int *used) {
    int count = 0;
    for (int i = 0; i < walk->grammar->n_variables; i++) {
        int value = walk->at.value[i], at = count;
        if (walk->grammar->variable_class[i] != word_class || value < 0) continue;
        while (at > 0 && used[at - 1] >= value) at--;
        if (at < count && used[at] == value) continue;
        memmove(used + at + 1, used + at, (size_t)(count - at) * sizeof(*used));
        used[at] = value;
        count++;
    }
    return count;
}

static int is_among(const int *values, int count, int value) {
    for (int i = 0; i < count; i++)
        if (values[i] == value) return 1;
    return 0;
}

// Parsing: the number of the word at the position, or -1.
static int find_word(Walk *walk, const Node *node, int low, int count) {
    size_t before = walk->at.position;
    for (int word = low; word < low + count; word++)
        if (walk_word(walk, node, node->word_class, word)) {
            walk->at.position = before;
            return word;
        }
    return -1;
}

static int walk_draw(Walk *walk, const Node *node) {
    const Class *word_class = &walk->grammar->classes[node->word_class];
    int used[MAX_VARIABLES], n_used = used_words(walk, node->word_class, used), of = word_class->count - n_used, word,
                             pick;
    if (walk->mode == WALK_GENERATE) {
        word = word_class->low + draw_choice(walk, of);
        for (int i = 0; i < n_used; i++) word += word >= used[i];
    } else {
        word = find_word(walk, node, word_class->low, word_class->count);
        if (word < 0) return 0;
        pick = word - word_class->low;
        if (is_among(used, n_used, word)) { // a name given twice
            if (walk->mode == WALK_PARSE) return 0;
            walk->at.facts++;
        } else {
            for (int i = n_used - 1; i >= 0; i--) pick -= word > used[i];
            if (of > 1) record_choice(walk, pick, of);
        }
    }
    if (node->variable >= 0) walk->at.value[node->variable] = (int16_t)word;
    return walk_word(walk, node, node->word_class, word);
}

static int walk_recall(Walk *walk, const Node *node) {
    int value = walk->at.value[node->variable];
    const Class *word_class = &walk->grammar->classes[node->word_class];
    if (walk->mode == WALK_CHECK) {
        if (value >= 0) walk->at.facts++;
        if (value >= 0 && walk_word(walk, node, node->word_class, value)) {
            walk->at.facts_right++;
            return 1;
        }
        value = find_word(walk, node, 0, word_class->n_words);
        if (value < 0) return 0;
    }
    if (value < 0) die("story grammar: variable `%s` is used before it is set", STORY_VARIABLES[node->variable].name);
    return walk_word(walk, node, node->word_class, value);
}

static void walk_set(Walk *walk, const Node *node) {
    int16_t *value = walk->at.value, left = value[node->left];
    if (node->right < 0)
        value[node->variable] = left;
    else if (left >= 0 && value[node->right] >= 0)
        value[node->variable] = (int16_t)(left - value[node->right]);
}

// Tries every alternative from the same state. Parsing, exactly one may fit; checking, the one with fewest faults wins.
static int parse_choice(Walk *walk, Range choice) {
    WalkState start = walk->at, best = {0};
    StoryChoice kept[STORY_MAX_CHOICES];
    int fitting = 0;
    for (int i = 0; i < choice.count; i++) {
        walk->at = start;
        if (choice.count > 1) record_choice(walk, i, choice.count);
        if (!walk_sequence(walk, walk->grammar->sequences[choice.first + i])) continue;
        if (fitting++ && (walk->mode == WALK_PARSE || faults(&walk->at) >= faults(&best))) continue;
        best = walk->at;
        memcpy(kept, walk->story->choices + start.n_choices,
               (size_t)(best.n_choices - start.n_choices) * sizeof(*kept));
    }
    if (fitting > 1 && walk->mode == WALK_PARSE) walk->ambiguous = 1;
    if (fitting == 0 || walk->ambiguous) return 0;
    walk->at = best;
    memcpy(walk->story->choices + start.n_choices, kept, (size_t)(best.n_choices - start.n_choices) * sizeof(*kept));
    return 1;
}

static int walk_choice(Walk *walk, Range choice) {
    if (walk->mode != WALK_GENERATE) return parse_choice(walk, choice);
    return walk_sequence(walk, walk->grammar->sequences[choice.first + draw_choice(walk, choice.count)]);
}

static int walk_node(Walk *walk, const Node *node) {
    switch (node->kind) {
    case NODE_LITERAL:
        return walk_text(walk, node->text.text, (size_t)node->text.length);
    case NODE_CHOICE:
        return walk_choice(walk, walk->grammar->choices[node->choice]);
    case NODE_DRAW:
        return walk_draw(walk, node);
    case NODE_RECALL:
        return walk_recall(walk, node);
    case NODE_SET:
        walk_set(walk, node);
        return 1;
    }
    return 0;
}

static int walk_sequence(Walk *walk, Range sequence) {
    for (int i = 0; i < sequence.count; i++)
        if (!walk_node(walk, &walk->grammar->nodes[sequence.first + i])) return 0;
    return 1;
}

static void add_up_bits(Story *story) {
    story->bits = 0;
    for (int i = 0; i < story->n_choices; i++) story->bits += log2(story->choices[i].of);
}

void story_generate(const StoryGrammar *grammar, uint64_t seed, uint64_t index, Story *story) {
    Walk walk = {.grammar = grammar, .mode = WALK_GENERATE, .story = story, .key = random_key(seed, "story", index)};
    walk_begin(&walk);
    walk_choice(&walk, grammar->choices[0]);
    story->bytes = walk.at.position;
    story->text[story->bytes] = 0;
    story->n_choices = walk.at.n_choices;
    add_up_bits(story);
}

int story_parse(const StoryGrammar *grammar, const char *text, size_t bytes, Story *story, Error *error) {
    if (bytes >= STORY_MAX_BYTES)
        return error_set(error, "no story: %zu bytes, at most %d", bytes, STORY_MAX_BYTES - 1);
    if (text != story->text) memcpy(story->text, text, bytes);
    story->text[bytes] = 0;
    story->bytes = bytes;
    Walk walk = {.grammar = grammar, .mode = WALK_PARSE, .story = story, .text = story->text, .bytes = bytes};
    walk_begin(&walk);
    int fits = parse_choice(&walk, grammar->choices[0]);
    if (walk.ambiguous)
        return error_set(error, "the text fits the grammar in two ways near byte %zu", walk.at.position);
    if (fits && walk.at.position != bytes) fits = 0, note_mismatch(&walk, walk.at.position);
    size_t stop = walk.furthest.position;
    int shown = bytes - stop < 40 ? (int)(bytes - stop) : 40;
    if (!fits)
        return error_set(error, "no story of this grammar from byte %zu on: \"%.*s\"", stop, shown, story->text + stop);
    story->n_choices = walk.at.n_choices;
    add_up_bits(story);
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Checking text that a model wrote

// The end of the sentence or title line that begins at `start`, found as literal_length() finds it in the rules.
static size_t sentence_end(const char *text, size_t bytes, size_t start) {
    for (size_t i = start; i < bytes; i++) {
        if (text[i] == '\n') return i;
        if (!closes_sentence(text[i])) continue;
        size_t end = i + 1 + (i + 1 < bytes && text[i + 1] == '"');
        if (end + 1 < bytes && text[end] == ' ' && islower((unsigned char)text[end + 1])) continue;
        return end;
    }
    return bytes;
}

// Whether the nodes from `first` on make exactly the text from `start` to walk->bytes, with nothing settled before.
static int fits_sentence(Walk *walk, int first, int last, size_t start) {
    const Node *nodes = walk->grammar->nodes;
    walk->at = (WalkState){.position = start};
    walk_begin(walk);
    // Behind the end of a sentence a literal starts with the space that parts the two.
    if (nodes[first].kind == NODE_LITERAL && nodes[first].text.text[0] == ' ') {
        if (start == 0) return 0;
        walk->at.position--;
    }
    for (int i = first; i < last; i++) {
        if (!walk_node(walk, &nodes[i])) return 0;
        int closed =
            nodes[i].ends_sentence || (i + 1 < last && nodes[i + 1].text.text && nodes[i + 1].text.text[0] == '\n');
        if (closed) return walk->at.position == walk->bytes;
    }
    return 0;
}

static int is_grammatical(const StoryGrammar *grammar, const char *text, size_t start, size_t end) {
    Story scratch;
    Walk walk = {.grammar = grammar, .mode = WALK_CHECK, .story = &scratch, .text = text, .bytes = end};
    for (int s = 0; s < grammar->n_sequences; s++) {
        int first = grammar->sequences[s].first, last = first + grammar->sequences[s].count;
        for (int i = first; i < last; i++)
            if ((i == first || grammar->nodes[i - 1].ends_sentence) && fits_sentence(&walk, i, last, start)) return 1;
    }
    return 0;
}

void story_check(const StoryGrammar *grammar, const char *text, size_t bytes, StoryCheck *check) {
    Story scratch;
    Walk walk = {.grammar = grammar, .mode = WALK_CHECK, .story = &scratch, .text = text, .bytes = bytes};
    walk_begin(&walk);
    *check = (StoryCheck){0};
    int fits = parse_choice(&walk, grammar->choices[0]);
    check->complete = fits && walk.at.position == bytes;
    WalkState reached = fits ? walk.at : walk.furthest;
    check->cut_off = !fits && reached.position == bytes;
    check->facts = reached.facts;
    check->facts_right = reached.facts_right;
    check->parsed_bytes = reached.position;
    for (size_t start = 0; start < bytes;) {
        if (isspace((unsigned char)text[start])) {
            start++;
            continue;
        }
        size_t end = sentence_end(text, bytes, start);
        int unfinished = end == bytes && !closes_sentence(text[end - 1]) && text[end - 1] != '"';
        if (!unfinished) { // the last one may be cut off by the length of the sample
            check->sentences++;
            check->grammatical += is_grammatical(grammar, text, start, end);
        }
        start = end;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Looking at the grammar

StoryGrammarSize story_grammar_size(const StoryGrammar *grammar) {
    StoryGrammarSize size = {.rules = grammar->n_rules, .classes = grammar->n_classes};
    for (int i = 0; i < grammar->n_choices; i++) size.alternatives += grammar->choices[i].count;
    for (int i = 0; i < grammar->n_nodes; i++) size.sentences += grammar->nodes[i].ends_sentence;
    for (int i = 0; i < grammar->n_classes; i++)
        if (grammar->classes[i].count == grammar->classes[i].n_words) size.words += grammar->classes[i].n_words;
    return size;
}

// Entry `shorter` begins entry `longer` at a word border, or is the same.
static int begins_word(Text longer, Text shorter) {
    if (longer.length < shorter.length || memcmp(longer.text, shorter.text, (size_t)shorter.length)) return 0;
    if (longer.length == shorter.length) return 1;
    char next = longer.text[shorter.length];
    return !isalpha((unsigned char)next) && next != '-';
}

static int prove_class(const Class *word_class, Error *error) {
    for (int a = 0; a < word_class->n_words; a++)
        for (int b = 0; b < word_class->n_words; b++) {
            Text first = word_class->texts[a * word_class->n_forms],
                 second = word_class->texts[b * word_class->n_forms];
            if (a != b && begins_word(first, second))
                return error_set(error, "class %s: `%.*s` begins `%.*s`", word_class->name, second.length, second.text,
                                 first.length, first.text);
        }
    return 0;
}

static int is_word(const Node *node) {
    return node->kind == NODE_DRAW || node->kind == NODE_RECALL;
}

// A word's end has to show: what follows a slot or a choice in a sequence is a literal that starts with no letter.
static int prove_borders(const StoryGrammar *grammar, Range sequence, Error *error) {
    const Node *previous = NULL;
    for (int i = 0; i < sequence.count; i++) {
        const Node *node = &grammar->nodes[sequence.first + i];
        if (node->kind == NODE_SET) continue;
        int open = previous && previous->kind != NODE_LITERAL;
        char next = node->kind == NODE_LITERAL ? node->text.text[0] : 'a';
        if (open && (isalpha((unsigned char)next) || next == '-'))
            return error_set(error, "a slot or choice is followed directly by `%.*s`", node->text.length,
                             node->text.text);
        previous = node;
    }
    return 0;
}

// What is still to come of an alternative: the rest of a sequence, then the rest of the one around it.
typedef struct Stream {
    Range nodes;
    int offset; // into the first node, when it is a literal
    const struct Stream *then;
} Stream;

// Moves to the next node that makes text; NULL at the end.
static const Node *stream_node(const StoryGrammar *grammar, Stream *stream, int *assigned) {
    for (;;) {
        if (stream->nodes.count == 0) {
            if (!stream->then) return NULL;
            *stream = *stream->then;
            continue;
        }
        const Node *node = &grammar->nodes[stream->nodes.first];
        if (node->kind != NODE_SET) return node;
        *assigned = 1;
        stream->nodes.first++, stream->nodes.count--;
    }
}

static Stream stream_skip(Stream stream) {
    stream.nodes.first++, stream.nodes.count--, stream.offset = 0;
    return stream;
}

static int may_clash(const StoryGrammar *grammar, Stream a, Stream b, int in_step);

static int choice_may_clash(const StoryGrammar *grammar, const Node *choice, Stream a, Stream b) {
    Stream rest = stream_skip(a);
    Range range = grammar->choices[choice->choice];
    for (int i = 0; i < range.count; i++)
        if (may_clash(grammar, (Stream){grammar->sequences[range.first + i], 0, &rest}, b, 0)) return 1;
    return 0;
}

static Stream stream_advance_literal(Stream stream, const Node *literal, int bytes) {
    stream.offset += bytes;
    return stream.offset == literal->text.length ? stream_skip(stream) : stream;
}

static int literals_may_clash(const StoryGrammar *grammar, const Node *left, const Node *right, Stream a, Stream b,
                              int in_step) {
    int left_bytes = left->text.length - a.offset, right_bytes = right->text.length - b.offset;
    int bytes = left_bytes < right_bytes ? left_bytes : right_bytes;
    if (memcmp(left->text.text + a.offset, right->text.text + b.offset, (size_t)bytes)) return 0;
    return may_clash(grammar, stream_advance_literal(a, left, bytes), stream_advance_literal(b, right, bytes), in_step);
}

// Stream a goes on with a word, b with a literal: every word that the literal begins with may be the one.
static int word_may_clash_literal(const StoryGrammar *grammar, const Node *word, const Node *literal, Stream a,
                                  Stream b) {
    const Class *word_class = &grammar->classes[word->word_class];
    Text text = rest_of(literal->text, b.offset);
    for (int i = 0; i < word_class->n_words; i++) {
        char out[MAX_WORD_BYTES + 4];
        Text rendered = {out, (int)render_word(out, word, word_class->texts[i * word_class->n_forms + word->form])};
        if (text.length < rendered.length && !memcmp(text.text, out, (size_t)text.length))
            return 1; // cannot tell: say so
        if (!begins_word(text, rendered)) continue;
        if (may_clash(grammar, stream_skip(a), stream_advance_literal(b, literal, rendered.length), 0)) return 1;
    }
    return 0;
}

static int is_alias(const StoryGrammar *grammar, int variable) {
    for (int i = 0; i < grammar->n_nodes; i++)
        if (grammar->nodes[i].kind == NODE_SET && grammar->nodes[i].variable == variable) return 1;
    return 0;
}

// Different variables of one class hold different words, and a new word differs from all of them: see used_words().
static int surely_different(const StoryGrammar *grammar, const Node *left, const Node *right) {
    if (left->word_class != right->word_class || left->form != 0 || right->form != 0) return 0;
    if (left->article != right->article || left->capital != right->capital) return 0;
    if (left->kind != right->kind) return 1;
    return left->kind == NODE_RECALL && left->variable != right->variable && !is_alias(grammar, left->variable) &&
           !is_alias(grammar, right->variable);
}

// 0: no word of one fits one of the other; 1: some are equal; 2: some begin another.
static int words_overlap(const StoryGrammar *grammar, const Node *left, const Node *right) {
    const Class *a = &grammar->classes[left->word_class], *b = &grammar->classes[right->word_class];
    int overlap = 0;
    for (int i = 0; i < a->n_words; i++)
        for (int j = 0; j < b->n_words; j++) {
            char one[MAX_WORD_BYTES + 4], two[MAX_WORD_BYTES + 4];
            Text first = {one, (int)render_word(one, left, a->texts[i * a->n_forms + left->form])};
            Text second = {two, (int)render_word(two, right, b->texts[j * b->n_forms + right->form])};
            if (!begins_word(first, second) && !begins_word(second, first)) continue;
            if (first.length != second.length) return 2;
            overlap = 1;
        }
    return overlap;
}

static int words_may_clash(const StoryGrammar *grammar, const Node *left, const Node *right, Stream a, Stream b,
                           int in_step) {
    int same = left->kind == right->kind && left->word_class == right->word_class &&
               left->variable == right->variable && left->form == right->form && left->article == right->article &&
               left->capital == right->capital;
    if (!same) {
        if (surely_different(grammar, left, right)) return 0;
        int overlap = words_overlap(grammar, left, right);
        if (overlap != 1) return overlap == 2;
    }
    return may_clash(grammar, stream_skip(a), stream_skip(b), in_step && same);
}

// Whether the text of one stream can begin with, or be, the whole text of the other. Errs on the side of yes.
// `in_step`: both came here through the same nodes, so that equal text so far means equal choices so far.
static int may_clash(const StoryGrammar *grammar, Stream a, Stream b, int in_step) {
    int assigned = 0;
    const Node *left = stream_node(grammar, &a, &assigned), *right = stream_node(grammar, &b, &assigned);
    in_step = in_step && !assigned;
    if (!left || !right) return 1;
    if (left->kind == NODE_CHOICE && right->kind == NODE_CHOICE && left->choice == right->choice && in_step)
        return may_clash(grammar, stream_skip(a), stream_skip(b), 1);
    if (left->kind == NODE_CHOICE) return choice_may_clash(grammar, left, a, b);
    if (right->kind == NODE_CHOICE) return choice_may_clash(grammar, right, b, a);
    if (is_word(left) && is_word(right)) return words_may_clash(grammar, left, right, a, b, in_step);
    if (is_word(left)) return word_may_clash_literal(grammar, left, right, a, b);
    if (is_word(right)) return word_may_clash_literal(grammar, right, left, b, a);
    return literals_may_clash(grammar, left, right, a, b, in_step);
}

static int prove_choice(const StoryGrammar *grammar, int choice, Error *error) {
    Range range = grammar->choices[choice];
    const char *name = choice < grammar->n_rules ? grammar->rules[choice].name : "in pointed brackets";
    for (int i = 0; i < range.count; i++)
        for (int j = 0; j < i; j++)
            if (may_clash(grammar, (Stream){grammar->sequences[range.first + i], 0, NULL},
                          (Stream){grammar->sequences[range.first + j], 0, NULL}, 1))
                return error_set(error, "rule %s: alternatives %d and %d can begin with the same text", name, j + 1,
                                 i + 1);
    return 0;
}

int story_grammar_prove(const StoryGrammar *grammar, Error *error) {
    for (int i = 0; i < grammar->n_classes; i++)
        if (prove_class(&grammar->classes[i], error)) return -1;
    for (int i = 0; i < grammar->n_sequences; i++)
        if (prove_borders(grammar, grammar->sequences[i], error)) return -1;
    for (int i = 0; i < grammar->n_choices; i++)
        if (prove_choice(grammar, i, error)) return -1;
    return 0;
}
