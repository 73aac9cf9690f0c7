"""The SLAY paper's order of the attentions beside the order that was found here."""
from . import statistics

# Validation loss after about 10.5 K steps of GPT-2 small (2.5 billion tokens of FineWeb, WikiText-2), one seed each.
LOSSES = {"yat": 4.5747, "softmax": 4.6417, "slay": 4.6760, "yat-spherical": 4.7180, "elu": 5.0884, "cosformer": 5.1983,
          "favor": 5.4524}
SIGNIFICANT = 0.05
FEWEST = 3  # of fewer attentions an order says nothing


def ranks(values):
    """{label: 1, 2, ...}, the lowest value first."""
    return {label: rank for rank, label in enumerate(sorted(values, key=values.get), 1)}


def rank_correlation(first, second):
    """Spearman's, of two rankings of the same labels without ties: 1 the same order, -1 the opposite one."""
    n = len(first)
    return 1 - 6 * sum((first[label] - second[label]) ** 2 for label in first) / (n * (n * n - 1))


def count_pairs(samples):
    """How many pairs stand in the paper's order for certain, how many in the opposite one, and how many are undecided."""
    labels = sorted(samples, key=LOSSES.get)
    pairs = [(better, worse) for i, better in enumerate(labels) for worse in labels[i + 1:]]
    tests = statistics.correct([statistics.compare(samples[better], samples[worse]) for better, worse in pairs])
    signs = [0 if test["p"] is None or test["p_corrected"] >= SIGNIFICANT else test["difference"] for test in tests]
    return {"same": sum(sign < 0 for sign in signs), "opposite": sum(sign > 0 for sign in signs),
            "undecided": sum(sign == 0 for sign in signs)}


def compare(rows, metric):
    """The rows that the paper has too, in its order; None when they are too few."""
    samples = {row["label"]: dict(zip(row[metric]["seeds"], row[metric]["values"])) for row in rows
               if row["label"] in LOSSES and row[metric]["values"]}
    if len(samples) < FEWEST:
        return None
    means = {label: statistics.mean(list(found.values())) for label, found in samples.items()}
    theirs = {label: loss for label, loss in LOSSES.items() if label in samples}
    here, there = ranks(means), ranks(theirs)
    return {"attentions": [{"label": label, "rank_here": here[label], "rank_paper": there[label], "loss_here": means[label],
                            "loss_paper": loss} for label, loss in theirs.items()],
            "rank_correlation": rank_correlation(here, there), "pairs": count_pairs(samples)}


def in_words(found):
    """What the order is worth, in two sentences."""
    pairs, total = found["pairs"], sum(found["pairs"].values())
    return (f"Spearman's rank correlation of the two orders is {found['rank_correlation']:+.2f}. Of {total} pairs, {pairs['same']} "
            f"stand in the paper's order, {pairs['opposite']} in the opposite one; undecided: {pairs['undecided']} "
            "(tested over their seeds, p < 0.05 after Holm's correction). The paper trained GPT-2 small on 2.5 billion "
            "tokens, one seed each, and validated on another text, so the orders, not the losses, can be compared.")
