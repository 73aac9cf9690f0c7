"""What scripts/compare was asked for: attentions, seeds, budget, corpus, model; and the commands that follow from it."""
import argparse
import functools
import math
import os
import re
import shlex

DEFAULT_ATTENTIONS = ["softmax", "yat", "yat-spherical", "elu", "cosformer", "favor", "slay", "uniform"]
PRESETS = ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
SIZES = ("layers", "heads", "width", "context")
DEFAULTS = {"attentions": DEFAULT_ATTENTIONS, "seeds": [1, 2], "budget": "500steps", "corpus": "stories",
            "model": "quickstart", "options": [], "rates": [], "sweep_budget": None, "sweep_seed": None}
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
VALUE = re.compile(r"[A-Za-z0-9_.+-]+")
# Options that the comparison itself decides.
OWN_OPTIONS = {"train", "val", "tokenizer", "documents", "out", "resume", "init", "force", "seed", "threads", "model", "layers",
               "heads", "width", "context", "vocab", "attention", "steps", "seconds", "val-every", "save-every", "keep",
               "keep-every", "quiet", "help"}
OWN_ALIASES = set("ijomLaxvsqh")


class BadInput(Exception):
    """One line for the user."""


@functools.cache
def quick_recipe():
    """The quick start's options, which models this small learn fastest with: {"layers": "2", ...}."""
    with open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "recipe.txt"), encoding="utf-8") as file:
        words = shlex.split(file.read(), comments=True)
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2])}


# ---- entries like slay:poly=exact,R=2


def split_pairs(text, what):
    """'poly=exact,R=2' -> {"poly": "exact", "R": "2"}."""
    pairs = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not WORD.fullmatch(key) or not VALUE.fullmatch(value):
            raise BadInput(f"{what}: expected NAME=VALUE, found '{part}'")
        if key in pairs:
            raise BadInput(f"{what}: {key} is there twice")
        pairs[key] = value
    return pairs


def parse_attention(entry):
    """'slay:poly=exact,R=2' -> ("slay", {"poly": "exact", "R": "2"}).

    A list over the layers has + between its parts: 'slay*3:decay=fixed,R=2+softmax' -> ("slay*3:decay=fixed:R=2,softmax", {})."""
    if "+" in entry or "*" in entry:
        for part in entry.split("+"):
            name, colon, options = re.sub(r"\*\d+", "", part, count=1).partition(":")
            if not WORD.fullmatch(name):
                raise BadInput(f"--attentions: expected an attention's name, found '{part}'")
            if colon:
                split_pairs(options, f"--attentions {entry}")
        return entry.replace(",", ":").replace("+", ","), {}
    name, colon, options = entry.partition(":")
    if not WORD.fullmatch(name):
        raise BadInput(f"--attentions: expected an attention's name, found '{entry}'")
    return name, split_pairs(options, f"--attentions {entry}") if colon else {}


def split_attentions(words):
    """Entries may be separated by spaces or commas: a part NAME=VALUE belongs to the entry before it."""
    entries = []
    for word in words:
        for part in word.split(","):
            if entries and "=" in part and ":" not in part:
                entries[-1] += "," + part
            elif part:
                entries.append(part)
    for entry in entries:
        parse_attention(entry)
    if len(set(entries)) < len(entries):
        raise BadInput("--attentions: the same attention twice")
    if not entries:
        raise BadInput("--attentions: expected at least one")
    return entries


def parse_seeds(text):
    """'3' is three seeds, 1 to 3; '5,8' are these two, and '5,' is that one."""
    if not re.fullmatch(r"\d{1,15}(,\d{1,15})*,?", text):
        raise BadInput(f"--seeds: expected a number of seeds or a list like 1,2,3, found '{text}'")
    numbers = [int(part) for part in text.split(",") if part]
    if "," not in text:
        if not 1 <= numbers[0] <= 1000:
            raise BadInput(f"--seeds: expected from 1 to 1000 seeds, found {text}; the one seed {text} is written {text},")
        return list(range(1, numbers[0] + 1))
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"--seeds: the same seed twice in {text}")
    return numbers


def parse_budget(text):
    """'600steps', '2Mtokens', '90s', '2min' -> (unit, amount), the unit steps, tokens or seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMG]?)\s*(steps?|tokens?|seconds?|sec|s|minutes?|min|hours?|h)", text)
    if not match:
        raise BadInput(f"--budget: expected a number and a unit, like 600steps, 2Mtokens, 90s or 5min, found '{text}'")
    unit = match[3]
    amount = float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[match[2]]
    amount *= 60 if unit.startswith("min") else 3600 if unit.startswith("h") else 1
    unit = "steps" if unit.startswith("st") else "tokens" if unit.startswith("t") else "seconds"
    if not 1 <= amount <= 1e12:
        raise BadInput(f"--budget: expected from 1 to 10^12 {unit}, found {text}")
    return unit, amount


def neighbour(rate, up):
    """The next rate on the ladder 1e-3, 3e-3, 1e-2, 3e-2, ..."""
    digit, power = rate.split("e")
    return (f"3e{power}" if digit == "1" else f"1e{int(power) + 1}") if up else \
        (f"1e{power}" if digit == "3" else f"3e{int(power) - 1}")


def parse_rates(text):
    """'1e-3,3e-3,1e-2' -> ["1e-3", "3e-3", "1e-2"], on the ladder 1, 3, 10, 30 ..., one step after another."""
    rates = text.split(",")
    steps = all(neighbour(a, True) == b for a, b in zip(rates, rates[1:]) if re.fullmatch(r"[13]e-?\d", a))
    if not all(re.fullmatch(r"[13]e-?\d", rate) for rate in rates) or len(rates) < 3 or not steps:
        raise BadInput(f"--rates: expected at least three neighbours on the ladder 1e-3, 3e-3, 1e-2, 3e-2 ..., found '{text}'")
    return rates


def parse_model(text):
    """'quickstart', 'tiny', 'small,context=512', 'layers=2,heads=2,width=128,context=256' -> options of train_gpt2."""
    first, _, rest = text.partition(",")
    if "=" in first:
        first, rest = None, text
    if first not in (None, "quickstart", *PRESETS):
        raise BadInput(f"--model: expected quickstart, {', '.join(PRESETS)} or sizes like layers=2,width=128, found '{first}'")
    sizes = {key: quick_recipe()[key] for key in SIZES} if first in (None, "quickstart") else {"model": first}
    for key, value in (split_pairs(rest, "--model") if rest else {}).items():
        if key not in SIZES or not re.fullmatch(r"\d{1,8}", value):
            raise BadInput(f"--model: expected one of {', '.join(SIZES)} with a whole number, found {key}={value}")
        sizes[key] = value
    return sizes


def check_own_options(words):
    """What stands after -- goes to every run alike; the comparison's own options are refused there."""
    for word in words:
        name = word[2:].partition("=")[0] if word.startswith("--") else None
        alias = word[1:2] if re.match(r"-[A-Za-z]", word) else None
        if (name and (name in OWN_OPTIONS or name.removeprefix("no-") in OWN_OPTIONS)) or alias in OWN_ALIASES:
            raise BadInput(f"after --: {word} is decided by the comparison itself; see --help")
    return words


# ---- the command line

HELP = """\
Trains the same GPT-2 with several attentions and several seeds, all else equal, and compares them with softmax.

examples
  scripts/compare                                       all attentions, 2 seeds, on the generated stories
  scripts/compare --attentions softmax slay slay:poly=exact,R=2 --seeds 3 --budget 2Mtokens
  scripts/compare --corpus austen --model small --budget 10min --out runs/austen
  scripts/compare --out runs/austen                     continues it after an interruption
  scripts/compare --rates 1e-3,3e-3,1e-2 --seeds 3      each attention with its own rate, the best of these
  scripts/compare --corpus ~/letters                    a folder of text
  scripts/compare --budget 1000steps -- --lr 1e-3 --batch 16"""


def build_parser():
    parser = argparse.ArgumentParser(prog="compare", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="scripts/compare [options] [-- options of train_gpt2 for every run]")
    parser.add_argument("--attentions", nargs="+", metavar="NAME[:OPTION=VALUE,...]",
                        help="which (%s)" % " ".join(DEFAULT_ATTENTIONS))
    parser.add_argument("--seeds", metavar="N|A,B,...", help="how many, or which (2)")
    parser.add_argument("--budget", metavar="AMOUNT", help="of each run: 600steps, 2Mtokens, 90s, 5min (500steps)")
    parser.add_argument("--corpus", metavar="NAME|DIR", help="stories, austen, enwik8, a directory of shards, or a folder of "
                        ".txt and .md files (stories)")
    parser.add_argument("--model", metavar="NAME|SIZES", help="quickstart, %s, or layers=2,heads=2,width=128,context=256; "
                        "also small,context=512 (quickstart)" % ", ".join(PRESETS))
    parser.add_argument("--rates", metavar="A,B,C,...", help="learning rates that are tried for each attention, on one seed; the other "
                        "seeds have the best (one rate for all)")
    parser.add_argument("--sweep-budget", metavar="AMOUNT", help="of each run that tries a rate (that of the others)")
    parser.add_argument("--sweep-seed", metavar="N", help="the seed that rates are tried on (the largest plus 1)")
    parser.add_argument("--out", metavar="DIR", help="where the results go: a small file of each run, the table, the page (runs/compare)")
    parser.add_argument("--runs", metavar="DIR", help="where the run directories go (that of --out)")
    parser.add_argument("--no-costs", action="store_true", help="do not measure speed, decoding and lengths, on a busy machine")
    parser.add_argument("--jobs", metavar="N", help="runs at the same time; the cores are shared out (measured)")
    parser.add_argument("--no-scaling", action="store_true", help="do not measure time and memory against the length")
    parser.add_argument("--scaling", metavar="FILE", help="take those from a file of bench_attention_scaling instead")
    return parser


def split_at_dashes(arguments):
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1:]


def asked_settings(parsed, behind):
    """What was given on the command line, checked; only that."""
    asked = {}
    if parsed.attentions is not None:
        asked["attentions"] = split_attentions(parsed.attentions)
    if parsed.seeds is not None:
        asked["seeds"] = parse_seeds(parsed.seeds)
    if parsed.budget is not None:
        parse_budget(parsed.budget)
        asked["budget"] = parsed.budget
    if parsed.corpus is not None:
        asked["corpus"] = parsed.corpus
    if parsed.model is not None:
        parse_model(parsed.model)
        asked["model"] = parsed.model
    asked.update(asked_sweep(parsed))
    if behind:
        asked["options"] = check_own_options(behind)
    return asked


def asked_sweep(parsed):
    """What was said about rates."""
    asked = {}
    if parsed.rates is not None:
        asked["rates"] = parse_rates(parsed.rates)
    if parsed.sweep_budget is not None:
        if parse_budget(parsed.sweep_budget)[0] == "seconds":
            raise BadInput("--sweep-budget: expected steps or tokens, found a time")
        asked["sweep_budget"] = parsed.sweep_budget
    if parsed.sweep_seed is not None:
        asked["sweep_seed"] = parse_seeds(parsed.sweep_seed + ",")[0]
    return asked


def settle_sweep(settings):
    """The settings with what the sweep takes when nothing was said; its seed is not one of those that are reported."""
    if not settings["rates"]:
        if settings["sweep_budget"] or settings["sweep_seed"] is not None:
            raise BadInput("--sweep-budget, --sweep-seed: expected --rates beside them")
        return settings
    if parse_budget(settings["budget"])[0] == "seconds" and not settings["sweep_budget"]:
        raise BadInput("--rates: under a time budget expected a --sweep-budget in steps or tokens")
    if last_rate(settings["options"]):
        raise BadInput("--rates: expected no --lr after --, found one")
    seed = max(settings["seeds"]) + 1 if settings["sweep_seed"] is None else settings["sweep_seed"]
    if seed in settings["seeds"]:
        raise BadInput(f"--sweep-seed: expected none of the seeds that are reported, found {seed}")
    return {**settings, "sweep_budget": settings["sweep_budget"] or settings["budget"], "sweep_seed": seed}


def last_rate(words):
    return any(word in ("--lr", "-l") or word.startswith(("--lr=", "-l")) for word in words)


def parse_jobs(text):
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,3}", text) or int(text) < 1:
        raise BadInput(f"--jobs: expected a number of runs from 1 to 999, found '{text}'")
    return int(text)


def merge_settings(asked, stored):
    """The settings of a directory that is there already, and more attentions or seeds; anything else is refused."""
    if stored is None:
        return {**DEFAULTS, **asked}
    merged = dict(stored)
    for key, value in asked.items():
        if key in ("attentions", "seeds"):
            missing = [item for item in stored[key] if item not in value]
            if missing:
                raise BadInput(f"--{key}: the comparison there has {', '.join(map(str, stored[key]))}, which lacks "
                               f"{', '.join(map(str, missing))} here; leave the option out, add to the list, or choose another --out")
            merged[key] = stored[key] + [item for item in value if item not in stored[key]]
        elif value != stored[key]:
            name = "after --" if key == "options" else f"--{key}"
            raise BadInput(f"{name}: the comparison there has {show(stored[key])}, found {show(value)}; leave the option "
                           "out to continue it, or choose another --out")
    return merged


def show(value):
    return shlex.join(value) if isinstance(value, list) else str(value)


# ---- what follows from the settings

VALIDATION_TOKENS = 65536


def recipe(settings):
    """Options of the optimiser that suit the model's size; those after -- come later and win."""
    model = parse_model(settings["model"])
    quick = quick_recipe()
    options = {} if model.get("model", "").startswith("gpt2") else {key: quick[key] for key in quick if key not in SIZES}
    steps, warmup = planned_steps(settings), int(quick["warmup"])
    options["warmup"] = str(max(1, min(warmup, steps // 10)) if steps else warmup)
    options["val-tokens"] = str(VALIDATION_TOKENS)
    return options


def last_value(words, name, alias):
    """The value of an option among words like --batch 16, --batch=16, -b 16; None when it is not there."""
    found = None
    for i, word in enumerate(words):
        if word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word in (f"--{name}", f"-{alias}") and i + 1 < len(words):
            found = words[i + 1]
    return int(found) if found and re.fullmatch(r"\d{1,9}", found) else None


def tokens_per_step(settings):
    contexts = {"tiny": 256, "small": 256}
    model = parse_model(settings["model"])
    context = int(model.get("context", contexts.get(model.get("model"), 1024)))
    return (last_value(settings["options"], "batch", "b") or 8) * (last_value(settings["options"], "sequence", "t") or context)


def planned_steps(settings):
    """The steps of each run; None under a time budget, where they are a result."""
    unit, amount = parse_budget(settings["budget"])
    if unit == "seconds":
        return None
    return int(amount) if unit == "steps" else max(1, math.ceil(amount / tokens_per_step(settings)))


def budget_options(settings):
    unit, amount = parse_budget(settings["budget"])
    return {"seconds": f"{amount:g}"} if unit == "seconds" else {"steps": str(planned_steps(settings))}


def as_words(options):
    return [word for key, value in options.items() for word in (f"--{key}", value)]


def run_name(entry, seed, rate=None):
    """A run's name: slay:poly=exact,R=2 with seed 1 -> slay_poly-exact_R-2_seed1, and with a rate of its own ..._lr-3e-3_seed1."""
    return re.sub(r"[:,+*]", "_", entry).replace("=", "-") + (f"_lr-{rate}" if rate else "") + f"_seed{seed}"


def train_command(settings, corpus, entry, seed, directory, threads, val_every, rate=None):
    """One run from its beginning. `corpus` is the list of data options; `rate` is the attention's own."""
    name, options = parse_attention(entry)
    return ["./train_gpt2", *corpus, *as_words(parse_model(settings["model"])), *as_words(recipe(settings)),
            *settings["options"], *(["--lr", rate] if rate else []), "--attention", name, *as_words(options), *as_words(budget_options(settings)),
            "--val-every", str(val_every), "--save-every", "200", "--keep", "1",
            "--seed", str(seed), "--threads", str(threads), "--out", directory]
