// Drawing tokens, against a sorted list in plain loops; text on the screen in whole characters.
#define _GNU_SOURCE
#include "core/base/random.h"
#include "core/base/test.h"
#include "drawing.h"
#include "text_stream.h"

enum { V_MAX = 60, DRAWS = 400 };

// ---- drawing

typedef struct {
    double weight;
    int token;
} Weighed;

static int heavier(const void *a, const void *b) {
    const Weighed *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight ? 1 : -1) : x->token - y->token;
}

// Which tokens the settings leave, as the definition has it: sorted, the first k, of these the fewest with the share p.
static int kept_tokens(int kept[V_MAX], double share[V_MAX], const real *logits, int V, DrawSettings settings) {
    Weighed list[V_MAX];
    double sum = 0, sum_of_kept = 0;
    int count = settings.top_k > 0 && settings.top_k < V ? settings.top_k : V, n = 0;
    for (int v = 0; v < V; v++)
        list[v] = (Weighed){exp(logits[v] / settings.temperature), v}, kept[v] = 0, share[v] = 0;
    qsort(list, (size_t)V, sizeof *list, heavier);
    for (int i = 0; i < count; i++) sum += list[i].weight;
    while (n < count && (n == 0 || settings.top_p >= 1 || sum_of_kept < settings.top_p * sum))
        sum_of_kept += list[n++].weight;
    for (int i = 0; i < n; i++) kept[list[i].token] = 1, share[list[i].token] = list[i].weight / sum_of_kept;
    return n;
}

// Draws with evenly spaced numbers: a token comes as often as its share, one more or less at the ends of its interval.
static void check_draws(const real *logits, int V, DrawSettings settings) {
    Candidate candidates[V_MAX];
    int kept[V_MAX], drawn[V_MAX] = {0};
    double share[V_MAX];
    kept_tokens(kept, share, logits, V, settings);
    for (int i = 0; i < DRAWS; i++) {
        int token = draw_token(logits, V, &settings, (i + 0.5) / DRAWS, candidates);
        CHECK(token >= 0 && token < V && kept[token]);
        if (token >= 0 && token < V) drawn[token]++;
    }
    for (int v = 0; v < V; v++) CHECK_CLOSE(drawn[v], share[v] * DRAWS, 1.001);
}

static void make_logits(real *logits, int V, uint64_t seed) {
    static const real ladder[] = {0, 0.5f, 1, 1, 2, 2.5f};
    for (int v = 0; v < V; v++) logits[v] = ladder[random_below(seed, (uint64_t)v, 6)]; // many are equal
}

static void shares_are_those_of_the_definition(void) {
    static const int sizes[] = {1, 2, 5, 17, V_MAX};
    static const DrawSettings settings[] = {{1, 0, 1},    {0.5f, 0, 1},   {3, 0, 1},      {1, 1, 1},
                                            {1, 4, 1},    {1, 16, 1},     {1, 17, 1},     {1, 99, 1},
                                            {1, 0, 0.1f}, {1, 0, 0.613f}, {1, 0, 0.957f}, {0.7f, 9, 0.513f}};
    real logits[V_MAX];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof settings / sizeof *settings; j++) {
            make_logits(logits, sizes[i], 7 * i + j);
            check_draws(logits, sizes[i], settings[j]);
        }
}

static void the_likeliest_at_temperature_0(void) {
    Candidate candidates[V_MAX];
    for (int best = 0; best < V_MAX; best++) {
        real logits[V_MAX] = {0};
        for (int v = best; v < V_MAX; v += 7) logits[v] = 3; // of equal ones the first
        CHECK(draw_token(logits, V_MAX, &(DrawSettings){0, 5, 0.5f}, 0.99, candidates) == best);
        if (best + 1 < V_MAX) CHECK(draw_token(logits, best + 1, &(DrawSettings){0, 0, 1}, 0, candidates) == best);
    }
}

static void logits_that_are_not_finite(void) {
    static const real bad[] = {NAN, INFINITY, -INFINITY};
    Candidate candidates[V_MAX];
    for (int v = 0; v < V_MAX; v++) {
        real logits[V_MAX] = {0};
        logits[v] = bad[v % 3];
        CHECK(!logits_are_finite(logits, V_MAX) && logits_are_finite(logits, (size_t)v));
        CHECK(draw_token(logits, V_MAX, &(DrawSettings){1, 0, 1}, 0.5, candidates) == -1);
        CHECK(draw_token(logits, V_MAX, &(DrawSettings){0, 0, 1}, 0.5, candidates) == -1);
    }
}

// Weights that are no numbers any more: the likeliest token is still drawn, whatever is beside it.
static void weights_that_vanish(void) {
    Candidate candidates[4];
    const real logits[4] = {-1e30f, 5, -1e4f, 4.9f};
    for (int k = 0; k <= 4; k++) {
        CHECK(draw_token(logits, 4, &(DrawSettings){1e-6f, k, 1}, 0.999, candidates) == 1);
        CHECK(draw_token(logits, 4, &(DrawSettings){1e-6f, k, 0.9f}, 0.999, candidates) == 1);
    }
}

// ---- text

// What has come out after each byte, with a bar between.
static char *streamed(const char *bytes) {
    static char steps[200];
    char *text = NULL;
    size_t size = 0, used = 0, shown = 0;
    TextStream stream = {.out = open_memstream(&text, &size)};
    for (; *bytes; bytes++) {
        stream_put(&stream, bytes, 1);
        used += (size_t)snprintf(steps + used, sizeof steps - used, "%.*s|", (int)(size - shown), text + shown);
        shown = size;
    }
    stream_flush(&stream);
    fflush(stream.out);
    snprintf(steps + used, sizeof steps - used, "%.*s", (int)(size - shown), text + shown);
    fclose(stream.out);
    free(text);
    return steps;
}

static void characters_come_whole(void) {
    static const char *const cases[][2] = {
        {"a\x7f", "a|\x7f|"},
        {"\xc2\x80\xdf\xbf", "|\xc2\x80||\xdf\xbf|"},
        {"\xe0\xa0\x80\xef\xbf\xbf", "||\xe0\xa0\x80|||\xef\xbf\xbf|"},
        {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "|||\xf0\x90\x80\x80||||\xf4\x8f\xbf\xbf|"},
        {"\xc1\x80\xf5\x80", "\xc1|\x80|\xf5|\x80|"}, // bytes that start none
        {"\xe2\x82z", "||\xe2\x82z|"},                // a character that breaks off
        {"\xe2\xe2\x82\xac", "|\xe2||\xe2\x82\xac|"},
        {"\xf0\x9f\x99", "|||\xf0\x9f\x99"}, // and one that the end cuts short
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *steps = streamed(cases[i][0]);
        CHECK(strcmp(steps, cases[i][1]) == 0);
    }
}

int main(void) {
    RUN(shares_are_those_of_the_definition);
    RUN(the_likeliest_at_temperature_0);
    RUN(logits_that_are_not_finite);
    RUN(weights_that_vanish);
    RUN(characters_come_whole);
    return test_summary();
}
