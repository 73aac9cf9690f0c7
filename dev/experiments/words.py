"""Numbers in words, and tables of them."""
from compare_lib import statistics


def spread(values, digits):
    error = statistics.standard_error(values)
    return f"{statistics.mean(values):.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")


def p_text(test):
    return "" if test is None else "< 0.001" if test["p"] < 0.001 else f"{test['p']:.3f}"


def number(value):
    return "" if value is None else f"{value:,.0f}"


def table(head, lines):
    """Markdown; the first column is text, the others are numbers. A column that would be empty is not there."""
    kept = [i for i in range(len(head)) if i == 0 or any(line[i] for line in lines)]
    head, lines = [head[i] for i in kept], [[line[i] for i in kept] for line in lines]
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *["| " + " | ".join(line) + " |" for line in lines]]) + "\n"


def compare(row, reference, key):
    """(mean difference, paired test, Welch's test) over the seeds that both have; Nones without any."""
    a, b = row.values(key), reference.values(key)
    seeds = sorted(set(a) & set(b))
    if not seeds or row is reference:
        return None, None, None
    first, second = [a[seed] for seed in seeds], [b[seed] for seed in seeds]
    return statistics.mean(first) - statistics.mean(second), statistics.paired(first, second), statistics.welch(first, second)
