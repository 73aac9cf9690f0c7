// A probe asks the library's own attentions for what their interface does not hand out: the scores themselves, sums of
// rows, weights. It feeds them chosen values through `forward`: with one column of v equal to 1 for one key and 0 for
// the others, the output is that key's weight; with a delta far above every sum the output is the score divided by
// delta, not by the sum. So every figure is of the code that ships, whatever the mechanism, and nothing is written
// twice.
#ifndef DEV_EXPERIMENTS_KERNEL_PROBE_H
#define DEV_EXPERIMENTS_KERNEL_PROBE_H

#include "attention/attention.h"

typedef struct {
    const Attention *attention;
    AttentionConfig config; // B = 1
    real *constants, *work;
    real *qkv, *out; // (T, 3C), (T, C)
} Probe;

// `text` as on the command line of the trainer: "slay:poly=exact:R=2". Ends the program when it is wrong.
Probe probe_open(const char *text, int T, int heads, int head_size, uint64_t seed);
void probe_draw(Probe *probe, uint64_t seed); // other constants
void probe_close(Probe *probe);
void probe_run(Probe *probe); // qkv -> out

// Features per head; 0 for quadratic attentions.
int probe_width(const Probe *probe);

// scores (n, m) of n queries (n, d) with m keys (m, d), all of them seen and regardless of position; one head,
// T = m + n. Not for favor with exp features, whose scores have a scale that only the row knows.
void probe_scores(double *scores, Probe *probe, const double *queries, const double *keys, int n, int m);
// weights (T, T) of the queries and keys in qkv, one head: what multiplies the values, 0 above the diagonal
void probe_weights(double *weights, Probe *probe);
// sums (T): the denominators of one head before delta
void probe_sums(double *sums, Probe *probe);

// ---- data

// `count` standard normal numbers of stream (seed, purpose).
void probe_normal(double *out, size_t count, uint64_t seed, const char *purpose);
// A unit vector u (d) and a key with <u, key> = x, both random.
void probe_pair(double *u, double *key, int d, double x, uint64_t seed);
// Copies rows (T, d) into head `head` of q (0), k (1) or v (2).
void probe_fill(Probe *probe, int which, int head, const double *rows);

// The command line of an experiment; ends the program when it is wrong.
void probe_parse(const char *usage, const Option *items, int count, int argc, char **argv);

double *numbers(size_t count);                   // zeroed; ends the program when there is no memory
void sort_numbers(double *values, size_t count); // ascending
// Of n > 1 weights that need not sum to 1, in units of log(n): 1 is plain averaging, 0 a single key.
double entropy_of(const double *weights, int n);

enum { ENTROPIES_FIRST_ROW = 16 }; // shorter rows say little
typedef struct {                   // of rows, from the sixteenth: a histogram over 0 .. 1
    double *counts;                // (bins)
    int bins;
    double sum, rows;
} Entropies;
void entropies_add(Entropies *entropies, const double *weights, int T);  // weights (T, T)
void entropies_print(const Entropies *entropies, const char *attention); // CSV: attention, middle, share, mean

#endif
