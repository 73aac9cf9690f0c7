"""What the kernel experiments run: the programs beside this file, their lists of attentions and their sizes."""
import csv
import io
import os
import shutil
import subprocess
import sys
import time

from dev.experiments import runs

BUILD = os.path.join(os.environ.get("BUILD", "build"), "dev", "experiments", "kernel")
SCRATCH = os.path.join(os.environ.get("BUILD", "build"), "experiments", "kernel")

# Every list has names for the pages beside what the programs' --attentions takes.
KERNELS = {"softmax": "softmax", "yat": "yat", "yat-spherical": "yat-spherical", "elu": "elu", "favor": "favor",
           "cosformer": "cosformer", "slay": "slay", "slay exact": "slay:poly=exact", "slay none": "slay:poly=none",
           "slay hadamard": "slay:fusion=hadamard", "slay flat": "slay:fusion=flat:M=384"}
SUMS = {"yat-spherical": "yat-spherical", "elu": "elu", "favor": "favor", "cosformer": "cosformer", "rff": "rff",
        "slay": "slay", "slay none": "slay:poly=none:M=128", "slay flat": "slay:fusion=flat:M=384",
        "slay hadamard": "slay:fusion=hadamard:M=128", "slay exact": "slay:poly=exact", "slay nystrom": "slay:poly=nystrom",
        "slay tensorsketch": "slay:poly=tensorsketch", "slay maclaurin": "slay:poly=maclaurin",
        "slay rademacher": "slay:poly=rademacher"}
POSITIVE = {"uniform": "uniform", "softmax": "softmax", "yat": "yat", "yat-spherical": "yat-spherical", "elu": "elu",
            "favor": "favor", "cosformer": "cosformer", "slay": "slay", "slay exact": "slay:poly=exact",
            "slay none": "slay:poly=none:M=128", "slay hadamard": "slay:fusion=hadamard:M=128",
            "slay flat": "slay:fusion=flat:M=384"}
ON_THE_SPHERE = {"softmax": "softmax", "yat-spherical": "yat-spherical", "elu": "elu", "slay": "slay",
                 "slay exact": "slay:poly=exact", "slay flat": "slay:fusion=flat:M=384"}
PATTERNS = {"yat-spherical": "yat-spherical", "slay": "slay", "slay P32 R2": "slay:P=32:R=2", "slay exact": "slay:poly=exact",
            "slay flat": "slay:fusion=flat:M=384", "elu": "elu", "favor": "favor", "uniform": "uniform"}
MODELS = ("yat-spherical", "slay")  # that are trained
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
# Slay's maps of width F, with two nodes where they have any.
RECONSTRUCTIONS = {"slay": "slay:R=2:P=8:M={sixteenth}", "slay none": "slay:poly=none:R=2:M={half}",
                   "slay hadamard": "slay:fusion=hadamard:R=2:M={half}", "slay flat": "slay:fusion=flat:M={all}"}
FLOORS = {f"{poly} P={P}": f"slay:poly={poly}:R=1:M=1:P={P}:eps=1e3" for poly in ("anchor", "nystrom") for P in (8, 32, 96)}
BUDGETS = {"S": (128, 2, 8, 8), "M": (256, 2, 16, 16), "L": (512, 2, 32, 32)}  # T, R, M, P
QUICK_BUDGETS = {"S": (32, 2, 4, 4)}
RHO = 0.9
CLASSIFIERS = {"popular": "--map popular", "performer, F = 4 x 64": "--map performer --features 64",
               "performer, F = 4 x 1024": "--map performer --features 1024",
               "slay, F = 4 x 64": "--map slay --slay R=2:M=4:P=8:eps=1e-6",
               "slay, F = 4 x 1024": "--map slay --slay R=2:M=32:P=16:eps=1e-6",
               "performer, F = 4 x 64, 15 epochs": "--map performer --features 64",
               "slay, F = 4 x 64, 15 epochs": "--map slay --slay R=2:M=4:P=8:eps=1e-6"}


def reconstructions():
    return {(name, F): words.format(sixteenth=F // 16, half=F // 2, all=F)
            for name, words in RECONSTRUCTIONS.items() for F in WIDTHS}


class Trouble(Exception):
    """A program failed; the text says which, and what it printed."""


def output(command):
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # one core: the same sums on every machine
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise Trouble(f"{command[0]}: {error.strerror}; `make all kernel-programs` builds the programs") from error
    if found.returncode:
        raise Trouble(f"{' '.join(command)}: {found.stderr.strip().splitlines()[-1] if found.stderr else found.returncode}")
    return found.stdout


def program(name, *words, **options):
    """The CSV of one of the programs, as a table: a list whose first row has the names."""
    command = [os.path.join(BUILD, name), *words]
    for option, value in options.items():
        command += [f"--{option}", ";".join(value.values()) if isinstance(value, dict) else str(value)]
    return list(csv.reader(io.StringIO(output(command))))


def joined(tables, names=(), values=()):
    """Tables of the same columns below one another; behind `names` each has its own of `values`."""
    found = [[*names, *tables[0][0]]]
    for i, table in enumerate(tables):
        found += [[*(values[i] if names else ()), *row] for row in table[1:]]
    return found


# ---- the experiments: {table: rows} of each; `quick` sizes are for the test


def fidelity(quick):
    sets, draws = (1, 2) if quick else (3, 4)
    tables, values = [], []
    for data in ("module", "independent", "correlated"):
        for name, (T, R, M, P) in (QUICK_BUDGETS if quick else BUDGETS).items():
            rho = RHO if data == "correlated" else 0
            tables.append(program("fidelity", data=data, T=T, R=R, M=M, P=P, rho=rho, datasets=sets, draws=draws))
            values.append([name])
    return {"fidelity": joined(tables, ["budget"], values)}


def neurons(quick):
    return {"neurons": program("neurons", attentions=KERNELS, cells=8 if quick else 48)}


def response(quick):
    return {"response": program("response", "--gradients", attentions=KERNELS, size=16, draws=2 if quick else 64,
                                step=30 if quick else 2)}


def denominators(quick):
    sizes = {"attentions": SUMS, "T": 32 if quick else 256, "size": 16 if quick else 64, "draws": 2 if quick else 32}
    return {"denominators": program("denominators", **sizes), "denominators_histogram": program("denominators", bins=80, **sizes)}


def quadrature(quick):
    tables = {f"quadrature_{table}": program("quadrature", table=table, draws=256 if quick else 65536)
              for table in ("nodes", "values", "shares", "variance", "eps")}
    maps = {" ".join(map(str, key)): words for key, words in reconstructions().items()}
    tables["reconstruction"] = program("reconstruction", attentions=maps, size=16, draws=4 if quick else 128, step=15 if quick else 2)
    tables["floors"] = program("response", attentions=FLOORS, size=64, draws=4 if quick else 1000, step=90)
    return tables


def entropy(quick):
    draws = 2 if quick else 64
    return {"entropy": program("entropy", attentions=POSITIVE, keys=64, size=16, draws=draws),
            "entropy_distribution": program("entropy", attentions=POSITIVE, keys=64, size=16, draws=draws, bins=50)}


def sphere(quick):
    return {"sphere": program("sphere", attentions=ON_THE_SPHERE, rows=4 if quick else 18, draws=2 if quick else 64)}


def mechanisms(_quick):
    return {"mechanisms": program("mechanisms", size=64, T=1024)}


def stories(quick):
    """A folder with the generated stories as shards, and their vocabulary."""
    if not quick:
        output(["scripts/make_stories.sh"])
        return os.path.join("data", "stories")
    folder = os.path.join(SCRATCH, "quick_stories")
    os.makedirs(folder, exist_ok=True)
    train, val, vocab = (os.path.join(folder, name) for name in ("train.txt", "val.txt", "vocab.tiktoken"))
    output(["./stories", "--bytes", "100k", "--seed", "3", "--out", train, "--validation-stories", "5", "--validation-out", val])
    output(["./tokenize", "train", "--vocab", "300", "--out", vocab, train])
    output(["./tokenize", "encode", "--vocab-file", vocab, "--validation-file", val, "--out", os.path.join(folder, "stories"), train])
    return folder


def train_model(attention, corpus, quick):
    """A small model; kept, and trained only once."""
    size = ("--layers 1 --heads 2 --width 32 --context 32 --batch 4 --steps 5" if quick else
            "--layers 2 --heads 2 --width 128 --context 128 --batch 16 --steps 1000")
    command = ["./train_gpt2", "--train", f"{corpus}/stories_train_*.bin", "--val", f"{corpus}/stories_val_*.bin",
               "--tokenizer", f"{corpus}/vocab.tiktoken", "--documents", "--attention", attention, *size.split(),
               *"--init-std 0.06 --lr 3e-3 --schedule wsd --warmup 60 --val-every 0 --save-every 0 --seed 1".split()]
    folder = os.path.join(SCRATCH, f"model_{attention}_{runs.key_of(command)}")
    if not os.path.exists(folder):
        shutil.rmtree(folder + ".tmp", ignore_errors=True)
        output([*command, "--out", folder + ".tmp"])
        os.rename(folder + ".tmp", folder)
    return folder


def patterns(quick):
    corpus = stories(quick)
    shard, T = os.path.join(corpus, "stories_val_000000.bin"), 32 if quick else 128
    models = [train_model(model, corpus, quick) for model in MODELS]
    options = {"shard": shard, "attentions": PATTERNS, "T": T, "rows": 2 if quick else 8}
    found = {"patterns_outputs": [program("patterns", model, table="outputs", draws=2 if quick else 4, **options) for model in models],
             "patterns_entropy": [program("patterns", model, table="entropy", **options) for model in models]}
    tables = {name: joined(each, ["model"], [[model] for model in MODELS]) for name, each in found.items()}
    options |= {"T": 32 if quick else 48, "rows": 1}
    return {**tables, "patterns_weights": program("patterns", models[0], table="weights", **options)}


def extreme(quick):
    prefix = os.path.join(SCRATCH, "quick" if quick else "eurlex")
    os.makedirs(SCRATCH, exist_ok=True)
    size = {"documents": 600, "test-documents": 100, "words": 200, "labels": 60} if quick else {}
    program("extreme", generate=prefix, **size)
    tables, values = [], []
    for name, words in CLASSIFIERS.items():
        is_long = "15 epochs" in name
        if quick and ("1024" in name or is_long):
            continue
        for seed in range(1 if quick or is_long or name == "popular" else 3):
            tables.append(program("extreme", *words.split(), train=prefix + "_train.txt", test=prefix + "_test.txt", seed=seed,
                                  epochs=1 if quick else 15 if is_long else 3))
            values.append([name])
    return {"extreme": joined(tables, ["classifier"], values)}


def latency(quick):
    """Of the fidelity's attentions, at its budgets; not among the others, since it wants a quiet machine."""
    tables, values = [], []
    for name, (T, R, M, P) in (QUICK_BUDGETS if quick else BUDGETS).items():
        rows = program("fidelity", T=T, R=R, M=M, P=P, datasets=1, draws=1)
        attentions = {row[6]: row[7] for row in rows[1:]}
        tables.append(program("latency", attentions=attentions, T=T, passes=3 if quick else 101))
        values.append([name])
    return {"latency": joined(tables, ["budget"], values)}


EXPERIMENTS = {each.__name__: each for each in (fidelity, neurons, response, denominators, quadrature, entropy, sphere,
                                                patterns, mechanisms, extreme)}


def run(names, folder, quick):
    """Runs experiments and keeps their tables as files."""
    os.makedirs(folder, exist_ok=True)
    for name in names:
        begun = time.time()
        tables = {**EXPERIMENTS, "latency": latency}[name](quick)
        for table, rows in tables.items():
            with open(os.path.join(folder, table + ".csv"), "w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        print(f"{name}: {time.time() - begun:.0f} s", file=sys.stderr)
