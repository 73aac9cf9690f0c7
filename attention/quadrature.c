#include "quadrature.h"

#include <math.h>

// Laguerre polynomial L_n at t and its derivative, by the three-term recurrence.
static double laguerre(int n, double t, double *derivative) {
    double before = 0, value = 1;
    for (int k = 0; k < n; k++) {
        double next = ((2 * k + 1 - t) * value - k * before) / (k + 1);
        before = value;
        value = next;
    }
    *derivative = n * (value - before) / t;
    return value;
}

// How many of the nodes lie below t: the Jacobi matrix (diagonal 2k+1, off-diagonal k) minus t has as many negative
// pivots.
static int nodes_below(int n, double t) {
    int count = 0;
    double pivot = 1;
    for (int k = 0; k < n; k++) {
        pivot = 2 * k + 1 - t - (k ? k * (double)k / pivot : 0);
        if (pivot == 0) pivot = 1e-300;
        count += pivot < 0;
    }
    return count;
}

// Bisection cannot miss a node however close they lie; Newton's method then gives the last digits, and with them
// weights that are right to all digits however small they are.
void quadrature_laguerre(double *nodes, double *weights, int n) {
    for (int r = 0; r < n; r++) {
        double low = 0, high = 4.0 * n + 2, derivative;
        for (int halving = 0; halving < 50; halving++) {
            double middle = 0.5 * (low + high);
            if (nodes_below(n, middle) > r)
                high = middle;
            else
                low = middle;
        }
        double t = 0.5 * (low + high);
        for (int newton = 0; newton < 3; newton++) {
            double value = laguerre(n, t, &derivative);
            t -= value / derivative;
        }
        laguerre(n, t, &derivative);
        nodes[r] = t;
        weights[r] = 1 / (t * derivative * derivative);
    }
}
