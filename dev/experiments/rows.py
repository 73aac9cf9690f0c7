"""What is compared: a name for each attention with its options. Rows are data; nothing else here knows the mechanisms."""
from compare_lib import state

# {table: {row: options of train_gpt2}}. The first row of a table is what the others are tested against.
TABLES = {
    "mechanisms": {
        "softmax": "--attention softmax",
        "softmax+decay": "--attention softmax --decay learned",
        "softmax, window 64": "--attention softmax --window 64",
        "uniform": "--attention uniform",
        "uniform+decay": "--attention uniform --decay learned",
        "elu": "--attention elu",
        "elu+decay": "--attention elu --decay learned",
        "slay": "--attention slay",
        "slay+fixed decay": "--attention slay --decay fixed",
        "slay+decay": "--attention slay --decay learned",
        "slay R1 M48, learned": "--attention slay --P 8 --R 1 --M 48 --learn both",
        "slay recall": "--attention slay --poly nystrom --P 96 --R 1 --M 4",
        "slay recall, learned": "--attention slay --poly nystrom --P 96 --R 1 --M 4 --learn omega",
        "slay recall+decay": "--attention slay --poly nystrom --P 96 --R 1 --M 4 --decay learned",
        "hybrid 3:1": "--attention slay*3,softmax:window=64 --decay learned",
    },
    # R, M and P at equal feature width, F = R M P = 384.
    "presets": {
        "P8 R3 M16": "--attention slay",
        "P32 R2 M6": "--attention slay --P 32 --R 2 --M 6",
        "P8 R1 M48": "--attention slay --P 8 --R 1 --M 48",
        "P32 R1 M12": "--attention slay --P 32 --R 1 --M 12",
        "P32 R2 M6 nystrom": "--attention slay --poly nystrom --P 32 --R 2 --M 6",
        "P96 R1 M4 nystrom (recall)": "--attention slay --poly nystrom --P 96 --R 1 --M 4",
        "P96 R2 M2": "--attention slay --P 96 --R 2 --M 2",
        "flat J384": "--attention slay --fusion flat --M 384",
    },
    # How many quadrature nodes, at P = 8: with as many features for each, and (R2 M24; R1 M48 is above) as many in all.
    "nodes": {
        "R3 M16": "--attention slay",
        "R2 M24": "--attention slay --R 2 --M 24",
        "R2 M16": "--attention slay --R 2 --M 16",
        "R1 M16": "--attention slay --R 1 --M 16",
    },
    "nodes, with decay": {
        "R3 M16+decay": "--attention slay --decay learned",
        "R2 M16+decay": "--attention slay --R 2 --M 16 --decay learned",
        "R1 M16+decay": "--attention slay --R 1 --M 16 --decay learned",
    },
}
# MQAR at states of several sizes. Rows with the same word before the comma are a mechanism at several sizes: one line in the figure.
RECALL = {
    "softmax": "--attention softmax",
    "uniform": "--attention uniform",
    "slay": "--attention slay",
    "elu": "--attention elu",
    "slay, F 64": "--attention slay --P 8 --R 1 --M 8",
    "slay recall": "--attention slay --preset recall",
    "favor": "--attention favor",
    "softmax, window 64": "--attention softmax --window 64",
    "yat-spherical": "--attention yat-spherical",
    "slay+decay": "--attention slay --decay learned",
    "favor, F 384": "--attention favor --M 384",
    "slay recall, F 64": "--attention slay --preset recall --P 16",
    "slay recall, F 1024": "--attention slay --preset recall --P 256",
    "slay, F 1024": "--attention slay --P 32 --R 2 --M 16",
    "slay recall learned": "--attention slay --preset recall --learn omega",
    "slay P32": "--attention slay --P 32 --R 2 --M 6",
    "slay flat": "--attention slay --fusion flat --M 384",
    "slay flat, F 64": "--attention slay --fusion flat --M 64",
    "slay none": "--attention slay --poly none --M 128",
    "slay hadamard": "--attention slay --fusion hadamard --M 128",
    "slay exact": "--attention slay --poly exact",
    "cosformer": "--attention cosformer",
    "favor exp, F 384": "--attention favor --features exp --M 384",
    "softmax, window 16": "--attention softmax --window 16",
    "yat": "--attention yat",
    "yat softmax": "--attention yat --normalizer softmax",
    "rff": "--attention rff",
    "slay tensorsketch": "--attention slay --poly tensorsketch",
    "slay maclaurin": "--attention slay --poly maclaurin",
    "slay rademacher": "--attention slay --poly rademacher",
}
LAYERS = {"hybrid 3:1": 4}  # a list of attentions is repeated over the layers: it needs a multiple of these


def rows_of(table, layers):
    """{row: words} of a table for a model with so many layers."""
    return {name: words.split() for name, words in TABLES[table].items() if layers % LAYERS.get(name, 1) == 0}


# ---- what decoding keeps

PRESETS = {"paper": {"P": 8, "R": 3, "M": 16, "poly": "anchor"}, "recall": {"P": 96, "R": 1, "M": 4, "poly": "nystrom"}}


def options_of(words):
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2])}


def mechanisms(words):
    """[(name, options)] of the list of attentions: "slay*3,softmax:window=64" are four; options of an entry win."""
    found, shared = [], options_of(words)
    for entry in shared["attention"].split(","):
        entry, _, own = entry.partition(":")
        name, _, times = entry.partition("*")
        found += [(name, {**shared, **dict(pair.split("=") for pair in own.split(":") if pair)})] * int(times or 1)
    return found


def attention_of(words):
    """The first mechanism of a row, for its colour."""
    return mechanisms(words)[0][0]


def complete(name, options):
    """With the sizes that train_gpt2 takes where they are not given."""
    if name in ("favor", "rff"):
        return {"M": 64, **options}
    if options.get("fusion") == "flat":
        return {"R": 1, "poly": "anchor", **options}
    return {**PRESETS[options.get("preset", "paper")], "fusion": "tensor", **options}


def width_and_state(words, size, T):
    """(F, or None where layers differ or have none; numbers per head and layer that decoding keeps at position T)"""
    return state.width_and_state([(name, complete(name, options)) for name, options in mechanisms(words)], size, T)
