// Extreme classification: which of thousands of labels does a document have? The paper's experiment in Eurlex-4K's file
// format, slay's features against the Performer's.
//
//   build/dev/experiments/kernel/extreme --generate PREFIX                       PREFIX_train.txt, PREFIX_test.txt
//   build/dev/experiments/kernel/extreme --train FILE --test FILE [--map slay|performer|popular] [--seed n] ...
//   build/dev/experiments/kernel/extreme --train FILE --test FILE --predictions FILE    only the scores of a list
//
// A file has a line `documents features labels`, then one line for each document: its labels with commas, a space,
// feature:value pairs. A document is the mean of its features' embeddings (the values are not used), brought to unit
// length; a label's score is <phi(document), phi(label)> over 4 heads of 64, its logit the logarithm of that (at least
// 1e-9); the loss is the cross-entropy against equal shares for the true labels. Adam 1e-3, gradients clipped at 1, 512
// documents at once, 3 epochs. There is no attention in it: it is a classifier made of the attention's feature map.
//
// Printed is a line of CSV for k = 1, 3, 5: P@k and PSP@k (propensities with A = 0.55, B = 1.5; divided by the best
// that could be had), and both as the paper's code has them: P@k divided by the number of documents rounded up to whole
// batches, PSP@k not divided by anything but that and k.
#include "probe.h"
#include "attention/slay_features.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/math/matmul.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, SIZE = 64, WIDTH = HEADS * SIZE, BATCH = 512, TOP = 5 };
enum { MAP_SLAY, MAP_PERFORMER, MAP_POPULAR };
static const double PROPENSITY_A = 0.55, PROPENSITY_B = 1.5;
static const real LEAST_SCORE = (real)1e-9;

typedef struct {
    const char *train, *test, *generate, *predictions, *slay;
    int map, features, epochs, seed;
    int documents, test_documents, words, labels; // of a generated set
} Settings;

// ---- documents

typedef struct { // document i has labels[label_at[i]] .. labels[label_at[i + 1] - 1], likewise its features
    int documents, features, labels;
    size_t *label_at, *feature_at;
    int *label, *feature;
} Set;

// The next number at *at, with an optional ":value" behind it; -1: there is none before the end of the line.
static long next_number(const char **at) {
    char *end;
    while (**at == ' ' || **at == ',' || **at == '\t' || **at == '\r') ++*at;
    if (**at < '0' || **at > '9') return -1;
    long number = strtol(*at, &end, 10);
    *at = end;
    return number;
}

static void refuse_line(const char *path, int line, const char *expected) {
    die("%s:%d: expected %s; the format is `label,label feature:value feature:value`", path, line, expected);
}

// Behind a feature's number: ":value", which is read only to refuse what is no number.
static const char *skip_value(const char *at, const char *path, int line) {
    char *end;
    strtod(at + 1, &end);
    if (end == at + 1 || !strchr(" \t\r\n", *end)) refuse_line(path, line, "a number behind the colon");
    return end;
}

// One document; returns the beginning of the next line.
static const char *read_document(Set *set, int i, size_t *room, const char *at, const char *path) {
    size_t labels = set->label_at[i], features = set->feature_at[i];
    const char *end = at + strcspn(at, "\n");
    while (at < end) {
        long number = next_number(&at);
        if (number < 0) break;
        int is_feature = *at == ':';
        if (!is_feature && features > set->feature_at[i]) refuse_line(path, i + 2, "labels before features");
        if (number >= (is_feature ? set->features : set->labels))
            refuse_line(path, i + 2,
                        is_feature ? "features below the number in line 1" : "labels below that in line 1");
        if (labels + features + 2 > *room) {
            *room = 2 * *room + 1024;
            set->label = memory_resize(set->label, *room, sizeof(int), "labels");
            set->feature = memory_resize(set->feature, *room, sizeof(int), "features");
        }
        if (is_feature)
            set->feature[features++] = (int)number, at = skip_value(at, path, i + 2);
        else
            set->label[labels++] = (int)number;
    }
    if (at + strspn(at, " \r") < end) refuse_line(path, i + 2, "numbers");
    set->label_at[i + 1] = labels, set->feature_at[i + 1] = features;
    return *end ? end + 1 : end;
}

static Set read_set(const char *path) {
    Set set = {0};
    Error error;
    char *text;
    size_t size, room = 0;
    die_if(file_read(&text, &size, path, (size_t)1 << 32, &error), &error);
    if (sscanf(text, "%d %d %d", &set.documents, &set.features, &set.labels) != 3 || set.documents < 1 ||
        set.features < 1 || set.labels < TOP || set.documents > 1 << 26)
        die("%s:1: expected `documents features labels`, at least 1, 1 and %d", path, TOP);
    set.label_at = memory_allocate_zeroed((size_t)set.documents + 1, sizeof(size_t), "documents");
    set.feature_at = memory_allocate_zeroed((size_t)set.documents + 1, sizeof(size_t), "documents");
    const char *at = text + strcspn(text, "\n");
    at += *at == '\n';
    for (int i = 0; i < set.documents; i++) {
        if (!*at) die("%s: expected %d documents, found %d", path, set.documents, i);
        at = read_document(&set, i, &room, at, path);
    }
    if (at[strspn(at, " \r\n")]) die("%s: expected %d documents, found more", path, set.documents);
    free(text);
    return set;
}

static void free_set(Set *set) {
    free(set->label_at), free(set->feature_at), free(set->label), free(set->feature);
}

// ---- a generated set: labels by Zipf's law, in groups that occur together; each has words of its own

typedef struct {
    uint64_t key, next;
} Stream;

static double draw(Stream *stream) {
    return random_uniform(stream->key, stream->next++);
}

// By Zipf's law with an offset, from 0 .. n - 1.
static int draw_zipf(Stream *stream, int n, double offset) {
    return (int)fmin(n - 1, offset * (pow((n + offset) / offset, draw(stream)) - 1));
}

static void put_document(FILE *file, Stream *stream, const Settings *s) {
    enum { OWN_WORDS = 12, GROUP = 20, LABELS_MAX = 24, WORDS = 150 };
    int labels[LABELS_MAX], count = 0, wanted = 1, first = draw_zipf(stream, s->labels, 20);
    int *counts = memory_allocate_zeroed((size_t)s->words, sizeof(int), "words");
    while (wanted < LABELS_MAX && draw(stream) < 0.812) wanted++; // 5.3 on average
    for (int tries = 0; count < wanted && tries < 200; tries++) {
        int near = (first / GROUP * GROUP + (int)(GROUP * draw(stream))) % s->labels, known = 0;
        int label = count == 0 ? first : draw(stream) < 0.5 ? near : draw_zipf(stream, s->labels, 20);
        for (int i = 0; i < count; i++) known |= labels[i] == label;
        if (!known) fprintf(file, count ? ",%d" : "%d", label), labels[count++] = label;
    }
    for (int i = 0; i < WORDS; i++) {
        int label = labels[(int)(count * draw(stream))], own = (int)(OWN_WORDS * draw(stream));
        int word = (int)random_below(random_key(1, "words of a label", (uint64_t)label), (uint64_t)own, s->words);
        counts[draw(stream) < 0.4 ? word : draw_zipf(stream, s->words, 50)]++;
    }
    for (int w = 0; w < s->words; w++)
        if (counts[w]) fprintf(file, " %d:%.4f", w, 1 + log(counts[w]));
    fprintf(file, "\n");
    free(counts);
}

static void generate(const Settings *s) {
    char path[4096];
    for (int part = 0; part < 2; part++) {
        int documents = part ? s->test_documents : s->documents;
        Stream stream = {random_key((uint64_t)s->seed, part ? "test" : "train", 0), 0};
        snprintf(path, sizeof path, "%s_%s.txt", s->generate, part ? "test" : "train");
        FILE *file = fopen(path, "w");
        if (!file) die("%s: cannot be written", path);
        fprintf(file, "%d %d %d\n", documents, s->words, s->labels);
        for (int i = 0; i < documents; i++) put_document(file, &stream, s);
        if (fclose(file)) die("%s: could not be written", path);
    }
}

// ---- scores of a list of predictions

// What a right answer is worth: 1 over the label's propensity.
static double *label_values(const Set *train) {
    double *values = numbers(train->labels), c = (log(train->documents) - 1) * pow(PROPENSITY_B + 1, PROPENSITY_A);
    for (size_t i = 0; i < train->label_at[train->documents]; i++) values[train->label[i]]++;
    for (int l = 0; l < train->labels; l++) values[l] = 1 + c * pow(values[l] + PROPENSITY_B, -PROPENSITY_A);
    return values;
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

typedef struct {
    double hits, worth, attainable;
} Score;

// top (documents, TOP)
static Score score_top(const int *top, const Set *test, const double *values, int k) {
    Score score = {0};
    for (int i = 0; i < test->documents; i++) {
        int count = (int)(test->label_at[i + 1] - test->label_at[i]);
        const int *labels = test->label + test->label_at[i];
        double *worths = numbers(count);
        for (int l = 0; l < count; l++) {
            worths[l] = values[labels[l]];
            for (int j = 0; j < k; j++)
                if (top[i * TOP + j] == labels[l]) score.hits++, score.worth += worths[l];
        }
        qsort(worths, (size_t)count, sizeof *worths, descending);
        for (int l = 0; l < k && l < count; l++) score.attainable += worths[l];
        free(worths);
    }
    return score;
}

static void print_scores(const char *name, int width, const int *top, const Set *train, const Set *test, int seed) {
    double *values = label_values(train), padded = ceil((double)test->documents / BATCH) * BATCH;
    printf("map,F,seed,k,precision,psp,precision_protocol,psp_protocol\n");
    for (int k = 1; k <= TOP; k += 2) {
        Score score = score_top(top, test, values, k);
        printf("%s,%d,%d,%d,%.6g,%.6g,%.6g,%.6g\n", name, width, seed, k, score.hits / k / test->documents,
               score.worth / score.attainable, score.hits / k / padded, score.worth / k / padded);
    }
    free(values);
}

static int *read_predictions(const char *path, const Set *test) {
    Error error;
    char *text;
    size_t size;
    die_if(file_read(&text, &size, path, (size_t)1 << 30, &error), &error);
    int *top = memory_allocate((size_t)test->documents * TOP, sizeof(int), "predictions");
    const char *at = text;
    for (int i = 0; i < test->documents * TOP; i++) {
        while (*at == '\n') at++;
        long label = next_number(&at);
        if (label < 0) die("%s: expected %d labels for each of %d documents", path, TOP, test->documents);
        top[i] = (int)label;
    }
    free(text);
    return top;
}

// ---- the feature maps: rows (n, SIZE) of a head -> outer (n, F1) and inner (n, F2); a score is the product of theirs

typedef struct {
    int outer, inner; // widths; inner 0: there is none
    AttentionConfig config;
    LinearMap map; // slay's
    real *packed[HEADS], *omega;
} Map;

typedef struct {                             // of n rows of one head
    real *outer, *inner, *d_outer, *d_inner; // (n, width) each
    real *tiles;                             // slay: what features() left, for gradient()
} HeadFeatures;

static Map make_map(const Settings *s) {
    char text[256];
    if (s->map == MAP_SLAY)
        snprintf(text, sizeof text, "slay:%s", s->slay);
    else
        snprintf(text, sizeof text, "favor:M=%d", s->features);
    Probe probe = probe_open(text, 1, HEADS, SIZE, (uint64_t)s->seed);
    Map map = {.config = probe.config, .outer = probe.config.M};
    map.omega = memory_allocate((size_t)HEADS * SIZE * probe.config.M, sizeof(real), "projections");
    if (s->map == MAP_PERFORMER)
        memcpy(map.omega, probe.constants, sizeof(real) * HEADS * SIZE * (size_t)probe.config.M);
    else {
        map.map = slay_map(&map.config);
        map.outer = map.map.outer, map.inner = map.map.inner;
        for (int h = 0; h < HEADS; h++) {
            map.packed[h] = memory_allocate_zeroed(map.map.packed_size + 1, sizeof(real), "constants");
            map.map.pack(map.packed[h], probe.constants, NULL, h, &map.config);
        }
    }
    probe_close(&probe);
    return map;
}

static int tile_numbers(const Map *map) {
    return (map->outer + map->inner + map->map.tape) * TILE;
}

static HeadFeatures make_features(const Map *map, int n) {
    size_t tiles = ((size_t)n + TILE - 1) / TILE, outer = (size_t)n * map->outer, inner = (size_t)n * map->inner + 1;
    return (HeadFeatures){.outer = memory_allocate(outer, sizeof(real), "features"),
                          .d_outer = memory_allocate(outer, sizeof(real), "gradients"),
                          .inner = memory_allocate(inner, sizeof(real), "features"),
                          .d_inner = memory_allocate(inner, sizeof(real), "gradients"),
                          .tiles = memory_allocate_zeroed(tiles * tile_numbers(map) + 1, sizeof(real), "tiles")};
}

static void free_features(HeadFeatures *f) {
    free(f->outer), free(f->inner), free(f->d_outer), free(f->d_inner), free(f->tiles);
}

static LinearFeatures tile_at(const Map *map, real *tiles, int tile) {
    real *at = tiles + (size_t)tile * tile_numbers(map);
    return (LinearFeatures){
        .outer = at, .inner = at + map->outer * TILE, .tape = at + (map->outer + map->inner) * TILE};
}

// Between rows (count, width; `stride` apart) and a tile (width, TILE).
static void to_tile(real *tile, const real *rows, int stride, int width, int count) {
    memset(tile, 0, sizeof(real) * (size_t)width * TILE);
    for (int i = 0; i < count; i++)
        for (int c = 0; c < width; c++) tile[c * TILE + i] = rows[(size_t)i * stride + c];
}
static void from_tile(real *rows, int stride, const real *tile, int width, int count) {
    for (int i = 0; i < count; i++)
        for (int c = 0; c < width; c++) rows[(size_t)i * stride + c] = tile[c * TILE + i];
}

// x (n, WIDTH), of which head h is taken
static void slay_forward(HeadFeatures *f, const real *x, int n, int h, const Map *map) {
#pragma omp parallel for
    for (int first = 0; first < n; first += TILE) {
        real in[SIZE * TILE];
        int count = n - first < TILE ? n - first : TILE;
        LinearFeatures tile = tile_at(map, f->tiles, first / TILE);
        to_tile(in, x + (size_t)first * WIDTH + h * SIZE, WIDTH, SIZE, count);
        map->map.features(&tile, in, (LinearRows){0, count}, map->packed[h], &map->config);
        from_tile(f->outer + (size_t)first * map->outer, map->outer, tile.outer, map->outer, count);
        from_tile(f->inner + (size_t)first * map->inner, map->inner, tile.inner, map->inner, count);
    }
}

static void slay_backward(real *dx, const HeadFeatures *f, int n, int h, const Map *map) {
#pragma omp parallel for
    for (int first = 0; first < n; first += TILE) {
        real out[SIZE * TILE];
        real *scratch = memory_allocate_zeroed((size_t)tile_numbers(map), sizeof(real), "a tile");
        int count = n - first < TILE ? n - first : TILE;
        LinearFeatures tile = tile_at(map, f->tiles, first / TILE), d = tile_at(map, scratch, 0);
        to_tile(d.outer, f->d_outer + (size_t)first * map->outer, map->outer, map->outer, count);
        to_tile(d.inner, f->d_inner + (size_t)first * map->inner, map->inner, map->inner, count);
        map->map.gradient(out, NULL, &d, &tile, (LinearRows){0, count}, map->packed[h], &map->config);
        from_tile(dx + (size_t)first * WIDTH + h * SIZE, WIDTH, out, SIZE, count);
        free(scratch);
    }
}

static void performer_forward(HeadFeatures *f, const real *x, int n, int h, const Map *map) {
    int M = map->outer;
    const real *omega = map->omega + (size_t)h * SIZE * M; // (SIZE, M)
    real *head = memory_allocate((size_t)n * SIZE, sizeof(real), "a head");
    for (int i = 0; i < n; i++) memcpy(head + (size_t)i * SIZE, x + (size_t)i * WIDTH + h * SIZE, sizeof(real) * SIZE);
    matmul(f->outer, head, omega, n, M, SIZE, 0);
    for (size_t i = 0; i < (size_t)n * M; i++) f->outer[i] = f->outer[i] > 0 ? f->outer[i] : 0;
    free(head);
}

static void performer_backward(real *dx, const HeadFeatures *f, int n, int h, const Map *map) {
    int M = map->outer;
    const real *omega = map->omega + (size_t)h * SIZE * M;
    real *head = memory_allocate((size_t)n * SIZE, sizeof(real), "a head");
    for (size_t i = 0; i < (size_t)n * M; i++)
        if (!(f->outer[i] > 0)) f->d_outer[i] = 0;
    matmul_nt(head, f->d_outer, omega, n, SIZE, M, 0);
    for (int i = 0; i < n; i++) memcpy(dx + (size_t)i * WIDTH + h * SIZE, head + (size_t)i * SIZE, sizeof(real) * SIZE);
    free(head);
}

static void map_forward(HeadFeatures *f, const real *x, int n, int h, const Map *map) {
    (map->inner ? slay_forward : performer_forward)(f, x, n, h, map);
}

// ---- the classifier

typedef struct {
    int n;
    real *value, *gradient, *m, *v;
} Weights;

typedef struct {
    Map map;
    int features, labels;
    Weights embedding, label; // (features, WIDTH), (labels, WIDTH)
    HeadFeatures of_queries[HEADS], of_labels[HEADS];
    real *mean, *query, *dquery;       // (BATCH, WIDTH)
    real *norm;                        // (BATCH)
    real *score, *d_score, *one, *two; // (BATCH, labels)
    int64_t steps;
} Classifier;

static real *reals(size_t count) {
    return memory_allocate_zeroed(count + 1, sizeof(real), "the classifier");
}

static Weights make_weights(int rows, uint64_t seed, const char *name) {
    Weights w = {.n = rows * WIDTH};
    w.value = reals(w.n), w.gradient = reals(w.n), w.m = reals(w.n), w.v = reals(w.n);
    random_fill_normal(w.value, (size_t)w.n, random_key(seed, name, 0), 1 / sqrt(WIDTH));
    return w;
}

static Classifier make_classifier(const Settings *s, const Set *train) {
    Classifier c = {.map = make_map(s), .features = train->features, .labels = train->labels};
    size_t scores = (size_t)BATCH * c.labels;
    c.embedding = make_weights(c.features, (uint64_t)s->seed, "embedding");
    c.label = make_weights(c.labels, (uint64_t)s->seed, "label");
    for (int h = 0; h < HEADS; h++)
        c.of_queries[h] = make_features(&c.map, BATCH), c.of_labels[h] = make_features(&c.map, c.labels);
    c.mean = reals(BATCH * WIDTH), c.query = reals(BATCH * WIDTH), c.dquery = reals(BATCH * WIDTH);
    c.norm = reals(BATCH), c.score = reals(scores), c.d_score = reals(scores), c.one = reals(scores);
    c.two = reals(scores);
    return c;
}

static void free_classifier(Classifier *c) {
    Weights *weights[] = {&c->embedding, &c->label};
    for (int i = 0; i < 2; i++)
        free(weights[i]->value), free(weights[i]->gradient), free(weights[i]->m), free(weights[i]->v);
    for (int h = 0; h < HEADS; h++)
        free_features(&c->of_queries[h]), free_features(&c->of_labels[h]), free(c->map.packed[h]);
    real *rest[] = {c->map.omega, c->mean, c->query, c->dquery, c->norm, c->score, c->d_score, c->one, c->two};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) free(rest[i]);
}

// query (n, WIDTH): the mean of the embeddings of each document's features, of unit length
static void embed(Classifier *c, const Set *set, const int *documents, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        size_t first = set->feature_at[documents[i]], end = set->feature_at[documents[i] + 1];
        real *mean = c->mean + (size_t)i * WIDTH, squares = 0;
        memset(mean, 0, sizeof(real) * WIDTH);
        for (size_t f = first; f < end; f++)
            for (int k = 0; k < WIDTH; k++) mean[k] += c->embedding.value[(size_t)set->feature[f] * WIDTH + k];
        for (int k = 0; k < WIDTH; k++) mean[k] /= (real)(end > first ? end - first : 1), squares += mean[k] * mean[k];
        c->norm[i] = real_sqrt(squares) + (real)1e-4;
        for (int k = 0; k < WIDTH; k++) c->query[(size_t)i * WIDTH + k] = mean[k] / c->norm[i];
    }
}

static void embed_backward(Classifier *c, const Set *set, const int *documents, int n) {
    for (int i = 0; i < n; i++) {
        size_t first = set->feature_at[documents[i]], end = set->feature_at[documents[i] + 1];
        const real *q = c->query + (size_t)i * WIDTH, *dq = c->dquery + (size_t)i * WIDTH;
        real dot = 0, dmean[WIDTH], length = c->norm[i] - (real)1e-4;
        for (int k = 0; k < WIDTH; k++) dot += q[k] * dq[k];
        for (int k = 0; k < WIDTH; k++) // the norm's gradient is mean / length, and query = mean / norm
            dmean[k] = (dq[k] - (length > 0 ? dot * q[k] * c->norm[i] / length : 0)) / c->norm[i] / (real)(end - first);
        for (size_t f = first; f < end; f++)
            for (int k = 0; k < WIDTH; k++) c->embedding.gradient[(size_t)set->feature[f] * WIDTH + k] += dmean[k];
    }
}

// score (n, labels)
static void score_queries(Classifier *c, int n) {
    size_t count = (size_t)n * c->labels;
    for (int h = 0; h < HEADS; h++) {
        HeadFeatures *q = &c->of_queries[h], *l = &c->of_labels[h];
        map_forward(q, c->query, n, h, &c->map);
        matmul_nt(c->one, q->outer, l->outer, n, c->labels, c->map.outer, 0);
        if (c->map.inner) matmul_nt(c->two, q->inner, l->inner, n, c->labels, c->map.inner, 0);
#pragma omp parallel for
        for (size_t i = 0; i < count; i++)
            c->score[i] = (h ? c->score[i] : 0) + c->one[i] * (c->map.inner ? c->two[i] : 1);
    }
}

// Mean loss of n documents; d_score is its gradient. With logits log(score) the probabilities are shares of the sum.
static double loss_of(Classifier *c, const Set *set, const int *documents, int n) {
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int i = 0; i < n; i++) {
        real *score = c->score + (size_t)i * c->labels, *d = c->d_score + (size_t)i * c->labels;
        size_t first = set->label_at[documents[i]], end = set->label_at[documents[i] + 1];
        double sum = 0;
        for (int l = 0; l < c->labels; l++) sum += real_max(score[l], LEAST_SCORE);
        for (int l = 0; l < c->labels; l++) d[l] = score[l] >= LEAST_SCORE ? (real)(1 / sum / n) : 0;
        for (size_t t = first; t < end; t++) {
            real s = real_max(score[set->label[t]], LEAST_SCORE);
            total -= log(s / sum) / (double)(end - first) / n;
            if (score[set->label[t]] >= LEAST_SCORE) d[set->label[t]] -= 1 / s / (real)(end - first) / (real)n;
        }
    }
    return total;
}

static void scores_backward(Classifier *c, int n) {
    size_t count = (size_t)n * c->labels;
    for (int h = 0; h < HEADS; h++) {
        HeadFeatures *q = &c->of_queries[h], *l = &c->of_labels[h];
        int outer = c->map.outer, inner = c->map.inner;
        memcpy(c->one, c->d_score, sizeof(real) * count);
        if (inner) {
            matmul_nt(c->two, q->outer, l->outer, n, c->labels, outer, 0);
            for (size_t i = 0; i < count; i++) c->two[i] *= c->d_score[i]; // reaches the inner product
            matmul(q->d_inner, c->two, l->inner, n, inner, c->labels, 0);
            matmul_tn(l->d_inner, c->two, q->inner, c->labels, inner, n, 0);
            matmul_nt(c->one, q->inner, l->inner, n, c->labels, inner, 0);
            for (size_t i = 0; i < count; i++) c->one[i] *= c->d_score[i]; // reaches the outer product
        }
        matmul(q->d_outer, c->one, l->outer, n, outer, c->labels, 0);
        matmul_tn(l->d_outer, c->one, q->outer, c->labels, outer, n, 0);
        (inner ? slay_backward : performer_backward)(c->dquery, q, n, h, &c->map);
        (inner ? slay_backward : performer_backward)(c->label.gradient, l, c->labels, h, &c->map);
    }
}

static double squares(const Weights *w) {
    double sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < w->n; i++) sum += (double)w->gradient[i] * w->gradient[i];
    return sum;
}

static void adam(Weights *w, double factor, int64_t step) {
    const double b1 = 0.9, b2 = 0.999;
    double rate = 1e-3 * sqrt(1 - pow(b2, (double)step)) / (1 - pow(b1, (double)step));
#pragma omp parallel for
    for (int i = 0; i < w->n; i++) {
        real g = (real)factor * w->gradient[i];
        w->m[i] += (real)(1 - b1) * (g - w->m[i]);
        w->v[i] += (real)(1 - b2) * (g * g - w->v[i]);
        w->value[i] -= (real)rate * w->m[i] / (real_sqrt(w->v[i]) + (real)1e-8);
        w->gradient[i] = 0;
    }
}

static double train_batch(Classifier *c, const Set *set, const int *documents, int n) {
    for (int h = 0; h < HEADS; h++) map_forward(&c->of_labels[h], c->label.value, c->labels, h, &c->map);
    embed(c, set, documents, n);
    score_queries(c, n);
    double loss = loss_of(c, set, documents, n);
    scores_backward(c, n);
    embed_backward(c, set, documents, n);
    double norm = sqrt(squares(&c->embedding) + squares(&c->label));
    c->steps++;
    adam(&c->embedding, norm > 1 ? 1 / norm : 1, c->steps);
    adam(&c->label, norm > 1 ? 1 / norm : 1, c->steps);
    return loss;
}

static void train_classifier(Classifier *c, const Set *set, const Settings *s) {
    int *order = memory_allocate((size_t)set->documents, sizeof(int), "the order of documents");
    for (int i = 0; i < set->documents; i++) order[i] = i;
    for (int epoch = 0; epoch < s->epochs; epoch++) {
        uint64_t key = random_key((uint64_t)s->seed, "order", (uint64_t)epoch);
        for (int i = set->documents - 1; i > 0; i--) {
            int j = (int)random_below(key, (uint64_t)i, (uint64_t)i + 1), kept = order[i];
            order[i] = order[j], order[j] = kept;
        }
        double loss = 0;
        int batches = 0;
        for (int first = 0; first < set->documents; first += BATCH, batches++)
            loss += train_batch(c, set, order + first, set->documents - first < BATCH ? set->documents - first : BATCH);
        fprintf(stderr, "epoch %d: loss %.4f\n", epoch + 1, loss / batches);
    }
    free(order);
}

// The labels with the TOP highest of n values, best first.
static void best_of(int *top, const real *values, int n) {
    for (int l = 0, count = 0; l < n; l++) {
        int at = count;
        if (count < TOP)
            count++;
        else if (values[l] > values[top[TOP - 1]])
            at = TOP - 1;
        else
            continue;
        for (; at > 0 && values[l] > values[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = l;
    }
}

static int *predict(Classifier *c, const Set *test) {
    int *top = memory_allocate((size_t)test->documents * TOP, sizeof(int), "predictions"), documents[BATCH];
    for (int h = 0; h < HEADS; h++) map_forward(&c->of_labels[h], c->label.value, c->labels, h, &c->map);
    for (int first = 0; first < test->documents; first += BATCH) {
        int n = test->documents - first < BATCH ? test->documents - first : BATCH;
        for (int i = 0; i < n; i++) documents[i] = first + i;
        embed(c, test, documents, n);
        score_queries(c, n);
        for (int i = 0; i < n; i++) best_of(top + (first + i) * TOP, c->score + (size_t)i * c->labels, c->labels);
    }
    return top;
}

// The most frequent labels for every document: what a map has to beat.
static int *predict_popular(const Set *train, const Set *test) {
    int *top = memory_allocate((size_t)test->documents * TOP, sizeof(int), "predictions");
    real *counts = reals(train->labels);
    for (size_t i = 0; i < train->label_at[train->documents]; i++) counts[train->label[i]]++;
    for (int i = 0; i < test->documents; i++) best_of(top + i * TOP, counts, train->labels);
    free(counts);
    return top;
}

static void run(const Settings *s, const Set *train, const Set *test) {
    static const char *const names[] = {"slay", "performer", "popular"};
    if (s->predictions || s->map == MAP_POPULAR) {
        int *top = s->predictions ? read_predictions(s->predictions, test) : predict_popular(train, test);
        print_scores(s->predictions ? "predictions" : "popular", 0, top, train, test, s->seed);
        free(top);
        return;
    }
    Classifier c = make_classifier(s, train);
    train_classifier(&c, train, s);
    int *top = predict(&c, test);
    print_scores(names[s->map], HEADS * c.map.outer * (c.map.inner ? c.map.inner : 1), top, train, test, s->seed);
    free(top);
    free_classifier(&c);
}

int main(int argc, char **argv) {
    Settings s = {.slay = "R=2:M=32:P=16:eps=1e-6", .features = 64, .epochs = 3};
    s.documents = 15539, s.test_documents = 3809, s.words = 5000, s.labels = 3993; // Eurlex-4K's
    const Option items[] = {
        {"", "train", 0, OPTION_STRING, &s.train, 0, 0, "FILE", "documents to learn from", 0, ""},
        {"", "test", 0, OPTION_STRING, &s.test, 0, 0, "FILE", "documents to label", 0, ""},
        {"", "predictions", 0, OPTION_STRING, &s.predictions, 0, 0, "FILE", "five labels a line, to be scored", 0, ""},
        {"", "map", 0, OPTION_CHOICE, &s.map, 0, 0, "slay|performer|popular", "popular: always the same labels", 0, ""},
        {"", "slay", 0, OPTION_STRING, &s.slay, 0, 0, "OPTIONS", "of slay's map", 0, ""},
        {"", "features", 0, OPTION_INT, &s.features, 1, 65536, NULL, "of performer's map, per head", 0, ""},
        {"", "epochs", 0, OPTION_INT, &s.epochs, 0, 10000, NULL, "", 0, ""},
        {"", "seed", 0, OPTION_INT, &s.seed, 0, 1 << 30, NULL, "of weights, features and order", 0, ""},
        {"", "generate", 0, OPTION_STRING, &s.generate, 0, 0, "PREFIX", "write a set of Eurlex-4K's shape", 0, ""},
        {"", "documents", 0, OPTION_INT, &s.documents, 1, 1 << 26, NULL, "generated to train on", 0, ""},
        {"", "test-documents", 0, OPTION_INT, &s.test_documents, 1, 1 << 26, NULL, "generated to test on", 0, ""},
        {"", "words", 0, OPTION_INT, &s.words, 1, 1 << 26, NULL, "features of a generated set", 0, ""},
        {"", "labels", 0, OPTION_INT, &s.labels, TOP, 1 << 26, NULL, "of a generated set", 0, ""}};
    probe_parse("usage: extreme --train FILE --test FILE [options]\nExtreme classification with feature maps.", items,
                sizeof items / sizeof *items, argc, argv);
    if (s.generate) {
        generate(&s);
        return 0;
    }
    if (!s.train || !s.test) die("expected --train FILE and --test FILE, or --generate PREFIX; see --help");
    Set train = read_set(s.train), test = read_set(s.test);
    if (train.features != test.features || train.labels != test.labels)
        die("%s: expected %d features and %d labels as in %s, found %d and %d", s.test, train.features, train.labels,
            s.train, test.features, test.labels);
    run(&s, &train, &test);
    free_set(&train), free_set(&test);
    return 0;
}
