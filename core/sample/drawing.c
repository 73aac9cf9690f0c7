#include "drawing.h"

#include <stdlib.h>

static int heavier_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token - y->token; // ties by number, so that a seed gives the same text everywhere
}

// The k heaviest candidates to the front, in no order (Hoare's selection).
static void select_heaviest(Candidate *candidates, int count, int k) {
    int low = 0, high = count - 1;
    while (low < high) {
        Candidate pivot = candidates[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (heavier_first(&candidates[i], &pivot) < 0) i++;
            while (heavier_first(&candidates[j], &pivot) > 0) j--;
            if (i > j) break;
            Candidate swapped = candidates[i];
            candidates[i++] = candidates[j], candidates[j--] = swapped;
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
}

// Whether all are finite: x - x is 0, or NaN for what is not.
int logits_are_finite(const real *logits, size_t count) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += logits[i] - logits[i];
    return sum == 0;
}

static int likeliest(const real *logits, int V) {
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

// A candidate's weight relative to the likeliest's; 0 where no number comes out, so that weights can always be ordered.
static float weight_of(real logit, real largest, float temperature) {
    float weight = (float)real_exp((logit - largest) / temperature);
    return weight > 0 ? weight : 0;
}

// The fewest heaviest candidates whose weights reach the share p of their sum; they come first, in order. A candidate
// lighter than (1 - p) / count of the sum can never be needed, so that only the few others have to be sorted.
static int keep_nucleus(Candidate *candidates, int count, float p) {
    double sum = 0, kept_sum = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    int heavy = 0, kept = 0;
    for (int i = 0; i < count; i++)
        if (candidates[i].weight >= (1 - p) / count * sum) candidates[heavy++] = candidates[i];
    qsort(candidates, (size_t)heavy, sizeof *candidates, heavier_first);
    while (kept < heavy && kept_sum < p * sum) kept_sum += candidates[kept++].weight;
    return kept > 0 ? kept : 1;
}

int draw_token(const real *logits, int V, const DrawSettings *settings, double uniform, Candidate *candidates) {
    int best = likeliest(logits, V), count = V;
    if (!logits_are_finite(logits, (size_t)V)) return -1;
    if (settings->temperature == 0) return best;
    for (int v = 0; v < V; v++)
        candidates[v] = (Candidate){weight_of(logits[v], logits[best], settings->temperature), v};
    if (settings->top_k > 0 && settings->top_k < V) select_heaviest(candidates, V, count = settings->top_k);
    if (settings->top_p < 1) count = keep_nucleus(candidates, count, settings->top_p);
    double sum = 0, threshold, running = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    threshold = uniform * sum;
    for (int i = 0; i < count; i++)
        if ((running += candidates[i].weight) > threshold) return candidates[i].token;
    return best;
}
