"""The 22 synthetic tasks of the paper's benchmark as rows of (tokens, {position: target}), and repaired forms of those that tell
nothing: a generator each, with its length, vocabulary, and what a trivial answer scores."""
import collections
import random


def uniform(source, count, below):
    return [int(source.random() * below) for _ in range(count)]


def everywhere(answer):
    return dict(enumerate(answer))


# ---- as the benchmark has them


def copy(source, T, V):
    x = uniform(source, T, V)
    return x, everywhere(x)


def sort(source, T, V):
    x = uniform(source, T, V)
    return x, everywhere(sorted(x))


def reverse(source, T, V):
    x = uniform(source, T, V)
    return x, everywhere(x[::-1])


def retrieval(source, T, V):
    """The target is always the needle itself: a constant."""
    x = uniform(source, T, V - 2)
    x[int(source.random() * (T - 2))], x[-1] = V - 1, V - 2
    return x, {T - 1: V - 1}


def kv_recall(source, T, V):
    pairs = (T - 2) // 2
    keys, values = source.sample(range(V - 1), pairs), uniform(source, pairs, V - 1)
    asked = int(source.random() * pairs)
    x = [token for pair in zip(keys, values) for token in pair] + [V - 1, keys[asked]]
    return x, {T - 1: values[asked]}


def first_token(source, T, V):
    x = uniform(source, T, V)
    return x, {T - 1: x[0]}


def selective_copy(source, T, V):
    """Almost all targets are 0."""
    x, half, y = uniform(source, T, V - 1), T // 2, [0] * T
    marked = sorted(source.sample(range(half), 8))
    for at in marked:
        x[at] = V - 1
    for i, at in enumerate(marked):
        y[half + i] = x[at + 1] if at + 1 < half else 0
    return x, everywhere(y)


def distant_match(source, T, V):
    x = uniform(source, T, V)
    return x, {T // 2: x[0]} if x[0] else {}


def multihop(source, T, V):
    x = uniform(source, T, V - 2)
    second = T // 3 + int(source.random() * (T // 3))
    x[int(source.random() * (T // 3))], x[second] = V - 2, V - 1
    return x, {T - 1: x[second + 1]}


def stack(source, T, V):
    """What is pushed does not stand in the row, so that no model can know what is popped."""
    x, y, held = [], [], []
    for _ in range(T):
        if held and source.random() < 0.3:
            x, y = x + [2], y + [held.pop()]
        elif source.random() < 0.5:
            held.append(3 + int(source.random() * (V - 3)))
            x, y = x + [1], y + [0]
        else:
            x, y = x + [0], y + [0]
    return x, everywhere(y)


def induction(source, T, V):
    x = uniform(source, T, V)
    at = 1 + int(source.random() * (T // 2 - 1))
    x[T - 2] = x[at]
    return x, {T - 1: x[at + 1]}


def pattern(source, T, V):
    period = uniform(source, 4, V)
    x = [period[i % 4] for i in range(T + 1)]
    return x[:T], everywhere(x[1:])


def counting(source, T, V):
    x = uniform(source, T, 10)
    return x, {T - 1: min(x.count(0), V - 1)}


def parity(source, T, V):
    x = uniform(source, T, 2)
    return x, {T - 1: sum(x) % 2}


def addition(source, T, V):
    x = uniform(source, T, 2)
    return x, {T - 1: sum(x)}


def modular(source, T, V):
    x = uniform(source, T, 7)
    return x, {T - 1: sum(x) % 7}


def bigram(source, T, V):
    table = uniform(random.Random("bigram"), V, V)
    x = uniform(source, T, V)
    return x, everywhere([table[token] for token in x])


def majority(source, T, V):
    x = uniform(source, T, 5)
    return x, {T - 1: max(range(5), key=x.count)}


def noisy_copy(source, T, V):
    x, half = uniform(source, T, V), T // 2
    y = x[:half] + [0] * half
    return x[:half] + [V - 1 if source.random() < 0.3 else token for token in x[half:]], everywhere(y)


def compression(source, T, V):
    x, heads = [], []
    while len(x) < T:
        heads.append(1 + int(source.random() * (V - 1)))
        x += [heads[-1]] * (1 + int(source.random() * 3))
    return x[:T], everywhere(heads[:T] + [0] * (T - len(heads)))


def histogram(source, T, V):
    """Counts at the beginning, of what comes later; the rest is 0."""
    x = uniform(source, T, 5)
    return x, everywhere([min(x.count(token), V - 1) for token in range(5)] + [0] * (T - 5))


# ---- repaired, and harder


def retrieval_repaired(source, T, V):
    """What follows the needle is asked for."""
    x = uniform(source, T, V - 2)
    at = int(source.random() * (T - 2))
    x[at], x[-1] = V - 1, V - 2
    return x, {T - 1: x[at + 1]}


def selective_copy_repaired(source, T, V):
    """Only the positions that have something to copy count; no marker is followed by another or by the end."""
    x, half = uniform(source, T, V - 1), T // 2
    marked = sorted(2 * place for place in source.sample(range(half // 2), 8))
    for at in marked:
        x[at] = V - 1
    return x, {half + i: x[at + 1] for i, at in enumerate(marked)}


def stack_repaired(source, T, V):
    """What is pushed stands in the row; only what is popped counts."""
    x, y, held = [], {}, []
    for i in range(T):
        if held and source.random() < 0.3:
            y[i] = held.pop()
            x.append(V - 1)
        else:
            x.append(int(source.random() * (V - 1)))
            held.append(x[-1])
    return x, y


def histogram_repaired(source, T, V):
    """The counts are asked for at the end, one token after the other."""
    x = uniform(source, T - 5, 5)
    return x + list(range(5, 10)), {T - 5 + token: min(x.count(token), V - 1) for token in range(5)}


def induction_repaired(source, T, V):
    """The target stands where the repeated token does."""
    x = uniform(source, T, V)
    at = 1 + int(source.random() * (T // 2 - 1))
    x[T - 1] = x[at]
    return x, {T - 1: x[at + 1]}


def delayed_copy(source, T, V):
    """16 tokens, a long pause, then all of them again."""
    first, n = uniform(source, 16, V - 2), 16
    return first + [V - 2] * (T - 2 * n) + [V - 1] * n, {T - n + i: token for i, token in enumerate(first)}


class Task:
    """A generator with its sizes. `same`: every training batch is the first, which stands in the test rows too."""

    def __init__(self, generator, T, V, same=False):
        self.generator, self.T, self.V, self.same = generator, T, V, same

    def rows(self, name, what, count, seed):
        source = random.Random(f"{name} {'' if self.same else what} {seed}")
        return [self.generator(source, self.T, self.V) for _ in range(count)]

    def training(self, name, steps, batch, seed):
        if self.same:
            return self.rows(name, "train", batch, seed) * steps
        return self.rows(name, "train", steps * batch, seed)


TASKS = {
    "copy": Task(copy, 32, 32), "sort": Task(sort, 16, 32), "reverse": Task(reverse, 32, 32), "retrieval": Task(retrieval, 64, 64),
    "kv_recall": Task(kv_recall, 22, 64), "first_token": Task(first_token, 64, 32), "selective_copy": Task(selective_copy, 64, 32),
    "long_copy": Task(copy, 256, 32), "distant_match": Task(distant_match, 128, 32), "multihop": Task(multihop, 64, 32),
    "stack": Task(stack, 32, 32), "induction": Task(induction, 64, 64), "pattern": Task(pattern, 32, 16), "counting": Task(counting, 32, 32),
    "parity": Task(parity, 32, 2), "addition": Task(addition, 16, 32), "modular": Task(modular, 16, 8),
    "bigram": Task(bigram, 32, 32, same=True), "majority": Task(majority, 32, 8), "noisy_copy": Task(noisy_copy, 64, 32),
    "compression": Task(compression, 32, 16), "histogram": Task(histogram, 32, 16),
}
REPAIRED = {
    "retrieval, repaired": Task(retrieval_repaired, 64, 64), "selective_copy, repaired": Task(selective_copy_repaired, 64, 32),
    "stack, repaired": Task(stack_repaired, 32, 32), "bigram, repaired": Task(bigram, 32, 32),
    "histogram, repaired": Task(histogram_repaired, 32, 32), "induction, repaired": Task(induction_repaired, 64, 64),
    "delayed_copy, T 64": Task(delayed_copy, 64, 32), "delayed_copy, T 256": Task(delayed_copy, 256, 32),
}


def trivial(training, testing):
    """(name, accuracy) of the best answer that looks at nothing but one input, of three: what stands at the position, the commonest
    target of all, the commonest at each position."""
    counts, everything = collections.defaultdict(collections.Counter), collections.Counter()
    for _, targets in training:
        for at, target in targets.items():
            counts[at][target] += 1
            everything[target] += 1
    common = {at: found.most_common(1)[0][0] for at, found in counts.items()}
    constant = everything.most_common(1)[0][0]
    asked = [(x[at], at, target) for x, targets in testing for at, target in targets.items()]
    scores = {"copies the input": [x == y for x, _, y in asked], f"always {constant}": [y == constant for _, _, y in asked],
              "commonest by position": [y == common.get(at) for _, at, y in asked]}
    return max(((name, sum(right) / len(right)) for name, right in scores.items()), key=lambda pair: pair[1])
