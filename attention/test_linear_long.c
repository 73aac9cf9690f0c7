// slay over 131072 positions in single precision, with and without decay: forward, backward and decoding keep the
// digits of a recurrence in double precision, which sums up features one position after the other.
#include "test_linear_cases.h"

enum { T = 131072, HS = 16, COLUMNS = HS + 1, R = 2, M = 3, P = 4, F = R * M * P };
static const Variant slay = {"slay", "slay", 0, "--R 2 --M 3 --P 4", 0, 0}; // the numbers above
static const Variant fading_slay = {"slay, learned decay", "slay", 0, "--R 2 --M 3 --P 4 --decay learned", 0, 0};

// Positions at which everything is compared: both ends, where most has been summed up, and the middle.
static const int places[] = {0, 1, 63, 64, 65, T / 2, T - 66, T - 65, T - 64, T - 63, T - 2, T - 1};
enum { PLACES = sizeof places / sizeof places[0] };

static Case c;
static double *constants;

typedef struct { // a case: the decay is the logistic function of `logit`; infinity: there is none
    double logit, output_tolerance, gradient_tolerance;
} Fading;
// From 0.001, where an output is so nearly its own value that its slopes are small differences, to as near to 1 as
// floats get.
static const Fading fadings[] = {{INFINITY, 6e-6, 2e-5}, {-7, 6e-6, 5e-5}, {0, 1e-5, 2e-5},
                                 {4, 6e-6, 2e-5},        {9, 6e-6, 2e-5},  {17, 6e-6, 2e-5}};
static Fading fading;
static double decay;
static double d_log_decay, d_log_decay_size;  // its gradient, and the sum of the magnitudes of what that sums up
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

// The state fades, and right (COLUMNS) is added to it by way of phi.
static void add_to_state(double state[F][COLUMNS], const double phi[F], const double right[COLUMNS]) {
    for (int f = 0; f < F; f++)
        for (int i = 0; i < COLUMNS; i++) state[f][i] = decay * state[f][i] + phi[f] * right[i];
}

// phi state, (COLUMNS)
static void read_state(double sums[COLUMNS], const double phi[F], double state[F][COLUMNS]) {
    for (int i = 0; i < COLUMNS; i++) sums[i] = 0;
    for (int f = 0; f < F; f++)
        for (int i = 0; i < COLUMNS; i++) sums[i] += phi[f] * state[f][i];
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

// The share of a row: `slope` is the derivative of the state with respect to the logarithm of the decay.
static void add_decay_gradient(const double phi[F], double slope[F][COLUMNS], int t) {
    double sums[COLUMNS], gamma[COLUMNS], share = 0;
    read_state(sums, phi, slope);
    output_gradient(gamma, t);
    for (int i = 0; i < COLUMNS; i++) share += sums[i] * gamma[i];
    d_log_decay += share;
    d_log_decay_size += fabs(share);
}

static void reference_forward(void) {
    static double state[F][COLUMNS], slope[F][COLUMNS];
    memset(state, 0, sizeof state), memset(slope, 0, sizeof slope);
    d_log_decay = d_log_decay_size = 0;
    for (int t = 0; t < T; t++) {
        double phi[F], value[COLUMNS], sums[COLUMNS];
        row_of(value, t, 2);
        value[HS] = 1;
        features_of(phi, t, 1);
        for (int f = 0; f < F; f++)
            for (int i = 0; i < COLUMNS; i++) slope[f][i] = decay * (slope[f][i] + state[f][i]);
        add_to_state(state, phi, value);
        features_of(phi, t, 0);
        read_state(sums, phi, state);
        denominators[t] = sums[HS] + c.config.delta;
        for (int i = 0; i < HS; i++) out[(size_t)t * HS + i] = sums[i] / denominators[t];
        add_decay_gradient(phi, slope, t);
        if (place_of(t) >= 0) memcpy(states[place_of(t)], state, sizeof state);
    }
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
    memset(sums, 0, sizeof sums);
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
    c = make_case(fading.logit < INFINITY ? &fading_slay : &slay, 1, T, 1, HS);
    if (c.parameter_count) c.parameters[0] = (real)fading.logit;
    decay = 1 / (1 + exp(-fading.logit));
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
    CHECK(worst <= fading.output_tolerance);
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
// against the largest of all: it is a difference of sums, and small where much has been summed up. Where all but a
// row's own key fades at once, so is dk: what a row has of itself nearly cancels, and leaves the same rounding at every
// place.
static void check_gradient(int part, double expected[PLACES][HS], const char *what) {
    double worst = 0, largest = largest_of(expected[0], PLACES * HS);
    int is_sum = part == 2 || (part == 1 && decay > 0.5);
    for (int p = 0; p < PLACES; p++) {
        const real *found = c.dqkv + ((size_t)places[p] * 3 + part) * HS;
        if (is_sum) largest = largest_of(expected[p], HS);
        for (int i = 0; i < HS; i++) {
            double error = fabs(found[i] - expected[p][i]) / largest;
            worst = fmax(worst, isnan(error) ? INFINITY : error);
        }
    }
    CHECK(worst <= fading.gradient_tolerance);
    printf("  %s: %.1e off\n", what, worst);
}

static void test_backward(void) {
    run_backward(&c);
    check_gradient(0, dq, "dq");
    check_gradient(1, dk, "dk");
    check_gradient(2, dv, "dv");
    if (!c.parameter_count) return;
    double error = fabs(c.dparameters[0] / (1 - decay) - d_log_decay) / d_log_decay_size;
    CHECK(error <= 4e-6);
    printf("  d log decay: %.1e off\n", error);
}

// One position after the other, from the first to the last.
static void test_decoding(void) {
    real *cache = test_buffer(c.attention->cache_size(&c.config)), *found = test_buffer(c.numbers);
    renew_work(&c);
    for (int t = 0; t < T; t++) run_step(&c, found + (size_t)t * HS, cache, t, 1, c.qkv + (size_t)t * 3 * HS);
    check_outputs(found, "decoded");
    free(cache);
    free(found);
}

static int all_finite(const real *numbers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(numbers[i])) return 0;
    return 1;
}

// Whatever an optimiser may make of the parameter.
static void test_every_decay_is_finite(void) {
    static const Variant others[] = {{"uniform", "uniform", 0, "--decay learned", 0, 0},
                                     {"elu", "elu", 0, "--decay learned", 0, 0},
                                     {"favor exp", "favor", 0, "--M 6 --features exp --decay learned", 0, 0},
                                     {"rff", "rff", 0, "--M 6 --decay learned", 0, 0}};
    static const real logits[] = {-1e30f, -100, -7, 17, 100, 1e30f};
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < 6; i++) {
            Case other = make_case(&others[v], 1, T, 1, 4);
            other.parameters[0] = logits[i];
            run_backward(&other);
            CHECK_VARIANT(other.variant, all_finite(other.out, other.numbers));
            CHECK_VARIANT(other.variant, all_finite(other.dqkv, 3 * other.numbers));
            CHECK_VARIANT(other.variant, all_finite(other.dparameters, 1));
            free_case(&other);
        }
}

int main(void) {
    for (size_t i = 0; i < sizeof fadings / sizeof fadings[0]; i++) {
        fading = fadings[i];
        make_reference();
        printf("decay %.9g\n", decay);
        RUN(test_forward);
        RUN(test_backward);
        RUN(test_decoding);
        free_case(&c);
        free(constants), free(out), free(denominators);
    }
    RUN(test_every_decay_is_finite);
    return test_summary();
}
