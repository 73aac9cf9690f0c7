"""What is compared: a name for each attention with its options. Rows are data; nothing else here knows the mechanisms."""

# {table: {row: options of train_gpt2}}. The first row of a table is what the others are tested against.
TABLES = {
    "mechanisms": {
        "softmax": "--attention softmax",
        "softmax+decay": "--attention softmax --decay learned",
        "softmax, window 32": "--attention softmax --window 32",
        "uniform": "--attention uniform",
        "uniform+decay": "--attention uniform --decay learned",
        "elu": "--attention elu",
        "elu+decay": "--attention elu --decay learned",
        "slay": "--attention slay",
        "slay+fixed decay": "--attention slay --decay fixed",
        "slay+decay": "--attention slay --decay learned",
        "slay recall": "--attention slay --preset recall",
        "slay recall+decay": "--attention slay --preset recall --decay learned",
        "hybrid 1:1": "--attention slay,softmax --preset recall --decay learned",
        "hybrid 3:1": "--attention slay*3,softmax --preset recall --decay learned",
    },
    # R, M and P at equal feature width, F = R M P = 384.
    "presets": {
        "P8 R3 M16": "--attention slay --P 8 --R 3 --M 16",
        "P16 R3 M8": "--attention slay --P 16 --R 3 --M 8",
        "P24 R2 M8": "--attention slay --P 24 --R 2 --M 8",
        "P32 R3 M4": "--attention slay --P 32 --R 3 --M 4",
        "P32 R2 M6": "--attention slay --P 32 --R 2 --M 6",
        "P48 R2 M4": "--attention slay --P 48 --R 2 --M 4",
        "P96 R2 M2": "--attention slay --P 96 --R 2 --M 2",
        "P192 R1 M2": "--attention slay --P 192 --R 1 --M 2",
        "flat J384": "--attention slay --fusion flat --M 384",
    },
}
QUADRATIC = ("softmax", "yat", "yat-spherical")
LAYERS = {"hybrid 3:1": 4}  # a list of attentions is repeated over the layers: it needs a multiple of these


def rows_of(table, layers):
    """{row: words} of a table for a model with so many layers."""
    return {name: words.split() for name, words in TABLES[table].items() if layers % LAYERS.get(name, 1) == 0}


def attention_of(words):
    """The first mechanism that a row's options name, for its colour."""
    return words[words.index("--attention") + 1].partition(",")[0].partition("*")[0].partition(":")[0]
