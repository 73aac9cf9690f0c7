"""Means, standard errors, Welch's and the paired t test and Holm's correction, without any library."""
import math


def mean(values):
    return math.fsum(values) / len(values)


def variance(values):
    """The unbiased estimate, from at least two values."""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def standard_error(values):
    """Of the mean; None from fewer than two values, for one value tells nothing of its spread."""
    return math.sqrt(variance(values) / len(values)) if len(values) > 1 else None


def median(values):
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def incomplete_beta(a, b, x):
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * beta_fraction(a, b, x) / a


def beta_fraction(a, b, x):
    """Lentz's evaluation of the continued fraction of the incomplete beta function."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / keep_from_zero(1.0 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 10000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 / keep_from_zero(1.0 + coefficient * d, tiny)
            c = keep_from_zero(1.0 + coefficient / c, tiny)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def keep_from_zero(value, tiny):
    return value if abs(value) > tiny else tiny


def student_two_sided(t, degrees):
    """The probability of a t at least this far from zero."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def welch(first, second):
    """Welch's test of two samples with variances of their own: {t, degrees, p}; None when one has fewer than two."""
    if len(first) < 2 or len(second) < 2:
        return None
    a, b = variance(first) / len(first), variance(second) / len(second)
    difference = mean(first) - mean(second)
    if a + b == 0:  # no spread at all: any difference is beyond chance
        return {"t": math.copysign(math.inf, difference) if difference else 0.0,
                "degrees": float(len(first) + len(second) - 2), "p": 0.0 if difference else 1.0}
    t = difference / math.sqrt(a + b)
    degrees = (a + b) ** 2 / (a * a / (len(first) - 1) + b * b / (len(second) - 1))
    return {"t": t, "degrees": degrees, "p": student_two_sided(t, degrees)}


def paired(first, second):
    """Student's test of the differences of values that belong together in pairs: {t, degrees, p}; None from fewer than two."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    error, difference, degrees = standard_error(differences), mean(differences), len(differences) - 1.0
    if error == 0:  # no spread at all: any difference is beyond chance
        return {"t": math.copysign(math.inf, difference) if difference else 0.0, "degrees": degrees,
                "p": 0.0 if difference else 1.0}
    return {"t": difference / error, "degrees": degrees, "p": student_two_sided(difference / error, degrees)}


def compare(first, second):
    """Two samples {seed: value}: the mean difference and both tests. Runs of one seed share first weights and data, so the
    paired test decides, over the seeds that both have; Welch's does when they do not share two."""
    shared = [seed for seed in first if seed in second]
    pairs = [first[seed] for seed in shared], [second[seed] for seed in shared]
    by_pairs, apart = paired(*pairs), welch(list(first.values()), list(second.values()))
    one, other = pairs if by_pairs else (list(first.values()), list(second.values()))
    return {"difference": mean(one) - mean(other), "test": "paired" if by_pairs else "Welch" if apart else None,
            **(by_pairs or apart or {"t": None, "degrees": None, "p": None}), "paired_p": by_pairs and by_pairs["p"],
            "welch_p": apart and apart["p"]}


def correct(comparisons):
    """Adds Holm's correction over all comparisons that were tested."""
    for comparison, p in zip(comparisons, holm([each["p"] for each in comparisons])):
        comparison["p_corrected"] = p
    return comparisons


def holm(p_values):
    """Holm's correction for several tests at once, in the order of the input; None stays None."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted, largest = [None] * len(p_values), 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = largest
    return adjusted
