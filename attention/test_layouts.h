// The rows of documents that the tests put every attention through, on the CPU and on the GPU. In C and C++.
#ifndef ATTENTION_TEST_LAYOUTS_H
#define ATTENTION_TEST_LAYOUTS_H

enum { DOCUMENTS_MAX = 12 };

typedef struct { // the lengths of the documents in the rows of a batch, none of which lies in two rows
    int B, T;
    int lengths[DOCUMENTS_MAX];
    int chunk;
} Layout;

static const Layout layouts[] = {
    {2, 70, {1, 69, 70}, 0},                   // a document of one token; a row without another
    {2, 70, {64, 6, 33, 36, 1}, 0},            // one that begins with the row's last token
    {1, 130, {65, 64, 1}, 32},                 // whole tiles and chunks, and one row more
    {2, 129, {128, 1, 64, 64, 1}, 16},         // beginnings at the borders of tiles, chunks and segments alone
    {3, 5, {1, 1, 1, 1, 1, 5, 2, 1, 1, 1}, 0}, // nothing but beginnings
    {2, 60, {1, 2, 57, 31, 29}, 5},
    {1, 700, {30, 400, 270}, 0}, // long enough for states, beside one that goes pair by pair
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

// The positions (B,T) of the tokens in their documents.
static inline void layout_positions(int *positions, const Layout *layout) {
    for (int i = 0, at = 0; at < layout->B * layout->T; i++)
        for (int t = 0; t < layout->lengths[i]; t++) positions[at++] = t;
}

#endif
