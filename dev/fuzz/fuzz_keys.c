// Keys at the sampler's prompt: whatever is typed, the cursor stays within the line, a key that is not finished takes
// no more bytes than there is room for, characters are the same forwards and backwards, and what is drawn fits the
// window. The input: the window's width, then keys; after each line the next begins.
#define _GNU_SOURCE
#include "core/sample/line_editor.c"
#include "fuzz.h"

// Carriage returns and escapes are not counted; the rest is the prompt and one character per column, or two.
static int columns_drawn(const char *text, size_t size) {
    mbstate_t state = {0};
    wchar_t character;
    int columns = 0;
    for (size_t at = 0, used; at < size; at += used) {
        if (text[at] == '\033') break; // the rest of the row is cleared, the cursor put in its place
        used = mbrtowc(&character, text + at, size - at, &state);
        EXPECT(used >= 1 && used <= size - at);
        if (character != L'\r') columns += wcwidth(character);
    }
    return columns;
}

// One screen for all lines, for making one takes longer than drawing on it.
static void check_line(LineEditor *editor, int width) {
    static char *text;
    static size_t bytes;
    static FILE *screen;
    if (!screen) screen = open_memstream(&text, &bytes);
    size_t at = 0;
    rewind(screen);
    draw(editor, screen, width);
    EXPECT(fflush(screen) == 0 && bytes > 0);
    EXPECT(editor->cursor <= editor->length && editor->first <= editor->cursor && editor->length <= editor->capacity);
    EXPECT(strlen(editor->key) < KEY_BYTES);
    for (size_t next; at < editor->length; at = next) {
        next = next_character(editor, at);
        EXPECT(next > at && next <= editor->length && previous_character(editor, next) == at);
    }
    int least = (int)strlen(editor->prompt) + 2;
    EXPECT(columns_drawn(text, bytes) <= (width > least ? width : least) - 1);
}

// A key may clear the screen, which is not ours to clear.
static Outcome take_key_silently(LineEditor *editor, unsigned char byte) {
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    FILE *screen = stderr;
    stderr = nowhere;
    Outcome outcome = take_key(editor, byte);
    stderr = screen;
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input input = {data, size};
    int width = (int)take_byte(&input);
    LineEditor *editor = memory_allocate_zeroed(1, sizeof *editor, "the line editor");
    editor->prompt = "> ";
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    begin_line(editor);
    while (input.size) {
        Outcome outcome = take_key_silently(editor, (unsigned char)take_byte(&input));
        if (input.size % 16 == 0 || outcome != EDITING) check_line(editor, width);
        if (outcome == ENTERED) add_history(editor);
        if (outcome != EDITING) begin_line(editor);
    }
    line_editor_close(editor);
    return 0;
}
