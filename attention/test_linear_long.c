// slay over 131072 positions in single precision: forward, backward and decoding keep the digits of a recurrence in
// double precision, which sums up features one position after the other.
#include "test_linear_cases.h"

enum { T = 131072, HS = 16, COLUMNS = HS + 1, R = 2, M = 3, P = 4, F = R * M * P };
static const Variant slay = {"slay", "slay", 0, "--R 2 --M 3 --P 4", 0, 0}; // the numbers above

// Positions at which everything is compared: both ends, where most has been summed up, and the middle.
static const int places[] = {0, 1, 63, 64, 65, T / 2, T - 66, T - 65, T - 64, T - 63, T - 2, T - 1};
enum { PLACES = sizeof places / sizeof places[0] };

static Case c;
static double *constants;
static double *out, *denominators;            // (T, HS), (T)
static double states[PLACES][F][COLUMNS];     // sums of phi(k) (v, 1)^T up to each place
static double query_sums[PLACES][F][COLUMNS]; // sums of phi(q) gamma^T from each place on
static double dq[PLACES][HS], dk[PLACES][HS], dv[PLACES][HS];

static void row_of(double row[HS], int t, int part) {
    for (int i = 0; i < HS; i++) row[i] = c.qkv[((size_t)t * 3 + part) * HS + i];
}

static void features_of(double phi[F], int t, int part) {
    double x[HS];
    row_of(x, t, part);
    naive_slay_features(phi, x, constants, 0, &c.config);
}

static int place_of(int t) {
    for (int p = 0; p < PLACES; p++)
        if (places[p] == t) return p;
    return -1;
}

// right (COLUMNS) is added to the state by way of phi.
static void add_to_state(double state[F][COLUMNS], const double phi[F], const double right[COLUMNS]) {
    for (int f = 0; f < F; f++)
        for (int i = 0; i < COLUMNS; i++) state[f][i] += phi[f] * right[i];
}

// phi state, (COLUMNS)
static void read_state(double sums[COLUMNS], const double phi[F], double state[F][COLUMNS]) {
    for (int i = 0; i < COLUMNS; i++) sums[i] = 0;
    for (int f = 0; f < F; f++)
        for (int i = 0; i < COLUMNS; i++) sums[i] += phi[f] * state[f][i];
}

static void reference_forward(void) {
    static double state[F][COLUMNS];
    for (int t = 0; t < T; t++) {
        double phi[F], value[COLUMNS], sums[COLUMNS];
        row_of(value, t, 2);
        value[HS] = 1;
        features_of(phi, t, 1);
        add_to_state(state, phi, value);
        features_of(phi, t, 0);
        read_state(sums, phi, state);
        denominators[t] = sums[HS] + c.config.delta;
        for (int i = 0; i < HS; i++) out[(size_t)t * HS + i] = sums[i] / denominators[t];
        if (place_of(t) >= 0) memcpy(states[place_of(t)], state, sizeof state);
    }
}

// The gradient of the numerator and, in the last column, of the denominator.
static void output_gradient(double gamma[COLUMNS], int t) {
    double dot = 0;
    for (int i = 0; i < HS; i++) {
        gamma[i] = c.dout[(size_t)t * HS + i] / denominators[t];
        dot += c.dout[(size_t)t * HS + i] * out[(size_t)t * HS + i];
    }
    gamma[HS] = -dot / denominators[t];
}

// dx of <d_phi, phi(x)>, by differences: features in double precision leave them nine digits.
static void feature_gradient(double dx[HS], const double d_phi[F], int t, int part) {
    const double h = 1e-4;
    double x[HS], plus[F], minus[F];
    row_of(x, t, part);
    for (int i = 0; i < HS; i++) {
        double kept = x[i];
        x[i] = kept + h;
        naive_slay_features(plus, x, constants, 0, &c.config);
        x[i] = kept - h;
        naive_slay_features(minus, x, constants, 0, &c.config);
        x[i] = kept;
        dx[i] = 0;
        for (int f = 0; f < F; f++) dx[i] += d_phi[f] * (plus[f] - minus[f]) / (2 * h);
    }
}

static void gradients_at(int p) {
    double gamma[COLUMNS], value[COLUMNS], phi[F], d_phi[F], sums[COLUMNS];
    int t = places[p];
    output_gradient(gamma, t);
    row_of(value, t, 2);
    value[HS] = 1;
    for (int f = 0; f < F; f++) {
        d_phi[f] = 0;
        for (int i = 0; i < COLUMNS; i++) d_phi[f] += states[p][f][i] * gamma[i];
    }
    feature_gradient(dq[p], d_phi, t, 0);
    for (int f = 0; f < F; f++) {
        d_phi[f] = 0;
        for (int i = 0; i < COLUMNS; i++) d_phi[f] += query_sums[p][f][i] * value[i];
    }
    feature_gradient(dk[p], d_phi, t, 1);
    features_of(phi, t, 1);
    read_state(sums, phi, query_sums[p]);
    memcpy(dv[p], sums, sizeof dv[p]);
}

static void reference_backward(void) {
    static double sums[F][COLUMNS];
    for (int t = T - 1; t >= 0; t--) {
        double phi[F], gamma[COLUMNS];
        features_of(phi, t, 0);
        output_gradient(gamma, t);
        add_to_state(sums, phi, gamma);
        if (place_of(t) >= 0) memcpy(query_sums[place_of(t)], sums, sizeof sums);
    }
    for (int p = 0; p < PLACES; p++) gradients_at(p);
}

// Values around 1: averages of values around 0 would be small differences of large sums.
static void make_reference(void) {
    c = make_case(&slay, 1, T, 1, HS);
    for (size_t row = 0; row < T; row++)
        for (size_t i = 0; i < HS; i++) c.qkv[row * 3 * HS + 2 * HS + i] += 1;
    constants = memory_allocate(c.constant_count, sizeof(double), "constants");
    for (size_t i = 0; i < c.constant_count; i++) constants[i] = c.constants[i];
    out = memory_allocate((size_t)T * HS, sizeof(double), "outputs");
    denominators = memory_allocate(T, sizeof(double), "denominators");
    reference_forward();
    reference_backward();
}

static void check_outputs(const real *found, const char *what) {
    double worst = 0;
    for (size_t i = 0; i < (size_t)T * HS; i++) {
        double error = fabs(found[i] - out[i]);
        worst = fmax(worst, isnan(error) ? INFINITY : error);
    }
    CHECK(worst <= 6e-6);
    printf("  %s: %.1e off\n", what, worst);
}

static void test_forward(void) {
    run_forward(&c);
    check_outputs(c.out, "outputs");
}

static double largest_of(const double *numbers, int n) {
    double largest = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs(numbers[i]));
    return largest;
}

// dk and dv against the largest number of their place: those of far places differ in size by orders of magnitude. dq
// against the largest of all: it is a difference of sums, and small where much has been summed up.
static void check_gradient(int part, double expected[PLACES][HS], const char *what) {
    double worst = 0, largest = largest_of(expected[0], PLACES * HS);
    for (int p = 0; p < PLACES; p++) {
        const real *found = c.dqkv + ((size_t)places[p] * 3 + part) * HS;
        if (part) largest = largest_of(expected[p], HS);
        for (int i = 0; i < HS; i++) {
            double error = fabs(found[i] - expected[p][i]) / largest;
            worst = fmax(worst, isnan(error) ? INFINITY : error);
        }
    }
    CHECK(worst <= 2e-5);
    printf("  %s: %.1e off\n", what, worst);
}

static void test_backward(void) {
    run_backward(&c);
    check_gradient(0, dq, "dq");
    check_gradient(1, dk, "dk");
    check_gradient(2, dv, "dv");
}

// One position after the other, from the first to the last.
static void test_decoding(void) {
    real *cache = test_buffer(c.attention->cache_size(&c.config)), *found = test_buffer(c.numbers);
    renew_work(&c);
    for (int t = 0; t < T; t++)
        run_step(&c, found + (size_t)t * HS, cache, t, 1, c.qkv + (size_t)t * 3 * HS);
    check_outputs(found, "decoded");
    free(cache);
    free(found);
}

int main(void) {
    make_reference();
    RUN(test_forward);
    RUN(test_backward);
    RUN(test_decoding);
    free_case(&c);
    free(constants), free(out), free(denominators);
    return test_summary();
}
