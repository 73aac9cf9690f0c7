#!/bin/sh
# The pages: links and anchors lead somewhere, paths exist, make's targets and the programs' options are there, and
# every command in a block of `sh` or after a `$` of `console` is run on small data in a sandbox, or at least read when
# running it would need a network, a GPU or an hour. DOCS='A.md B.md' takes other pages. Needs the programs and python3.
# Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/checks.sh
passed=0 failed=0
command -v python3 >/dev/null || { skip "the pages" "no python3"; summary; exit; }
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# ---- the sandbox: the programs and scripts, with data and runs of the names that the pages use, but small
tree=$work/tree
mkdir -p "$tree/novels" "$tree/data" && cp -r scripts docs "$tree/" && ln -s "$PWD/dev" "$tree/" || exit 1
for program in train_gpt2 sample_gpt2 evaluate stories tokenize inspect export_gguf export_llmc; do ln -s "$PWD/$program" "$tree/"; done
(
    cd "$tree" &&
        ./stories --stories 300 --out novels/one.txt --validation-stories 20 --validation-out val.txt &&
        echo '{"ctx": "The old", "endings": ["lantern was", "was lantern"], "label": 0}' >set.jsonl &&
        ./stories --stories 40 --seed 2 --out samples.txt && cp novels/one.txt novels/two.txt &&
        ./tokenize train --vocab 2048 --out data/gpt2.tiktoken novels/one.txt &&
        for corpus in stories austen fineweb; do
            ./tokenize encode --vocab-file data/gpt2.tiktoken --out "data/$corpus/$corpus" --validation-file val.txt \
                novels/one.txt || exit 1
            cp data/gpt2.tiktoken "data/$corpus/vocab.tiktoken" && cp novels/one.txt "data/$corpus/train.txt"
        done &&
        for run in softmax slay; do
            ./train_gpt2 --train data/stories/stories_train_000000.bin --val data/stories/stories_val_000000.bin \
                --tokenizer data/stories/vocab.tiktoken --attention $run --layers 1 --heads 2 --width 16 --context 64 \
                --batch 4 --steps 6 --save-every 3 --warmup 1 --out "runs/quickstart_$run" || exit 1
        done && cp -r runs/quickstart_slay runs/slay && cp -r runs/quickstart_slay runs/austen
) >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }

# shellcheck disable=SC2086
PYTHONDONTWRITEBYTECODE=1 python3 - "$tree" ${DOCS:-} <<'PYTHON'
import ast, functools, glob, os, re, shlex, subprocess, sys, textwrap

TREE, ROOT = sys.argv[1], os.getcwd()
PAGES = sys.argv[2:] or [page for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "dev/cuda_on_cpu/README.md",
                         *sorted(glob.glob("docs/**/*.md", recursive=True))) if os.path.exists(page)]
PROGRAMS = "train_gpt2", "sample_gpt2", "evaluate", "tokenize", "stories", "inspect", "export_gguf", "export_llmc"
passed = failed = 0

# Made when something runs, with the file that makes it; with a slash at the end only the folder itself is meant.
MADE = {"build/report": "scripts/test_report.sh", "build/cuda_headers": "dev/cuda_on_cpu/headers.sh",
        "build/mutants": "dev/cuda_on_cpu/mutants.py", "build/venv-interop": "scripts/test_interop.sh",
        "build/clang": "dev/cuda_on_cpu/README.md", "build/cuda_on_cpu": "dev/cuda_on_cpu/harness.mk",
        "build/": "Makefile",
        "modeling_slay.py": "core/model/modeling.c", "runs/quickstart_slay": "scripts/quickstart.sh",
        "runs/compare": "scripts/compare_lib/settings.py", "runs/quickstart_softmax_2": "scripts/recipe.sh",
        **dict.fromkeys(["data/novels", "runs/novels", "runs/best", "runs/best_in_pytorch", "runs/gpt2_124M_softmax",
                         "runs/gpt2_124M_slay"], "scripts/test_recipes.sh"),
        "runs/": ".gitignore", "data/": ".gitignore", "data/austen_512": "docs/results/austen/README.md"}
# Options of programs that are not ours, or that have no --help.
FOREIGN = {"--bind-to": "mpirun", "--nodes": "sbatch", "--ntasks-per-node": "sbatch", "--cpus-per-task": "sbatch",
           "--gpus-per-task": "sbatch", "--kill-on-bad-exit": "srun", "--mode": "cudacc", "--only": "mutants.py",
           "--list": "mutants.py", "--trust": "mutants.py", "--seconds": "mutants.py", "--hostfile": "train_mpi.sh",
           "--left-out": "run_tests.sh", "--quick": "test_interop.sh", "--errors": "interop_modeling.py"}
# What is only read, and why. A script of ours besides these may be only read where a test of its own runs it.
ONLY_READ = {"make": "targets are resolved; make test would run itself", "mpirun": "scripts/test_parallel.sh runs it",
             "sbatch": "scripts/test_scripts.sh runs it",
             "dev/cuda_on_cpu/cudacc": "make test compiles every .cu file with it",
             "build": "tests and tools are targets; make test runs the tests",
             "scripts/get_gpt2_vocab.sh": "needs a network", "dev/faults/test_faults.py": ".ci/run runs it"}
# What makes a command short: the last of equal options counts.
SHORTER = {"train_gpt2": "--steps 7 --val-every 0", "sample_gpt2": "--tokens 20", "stories": ""}


def check(name, good, what=""):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {name}" + (f"\n    {what}" if what else ""))


def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, **options)


# ---- reading pages: blocks of code, and the text around them
def split(page):
    blocks, text, fence = [], [], None
    for number, line in enumerate(open(page), 1):
        mark = re.match(r"\s*```(\w*)", line)
        if mark and fence is None:
            fence = (mark[1], number, [])
        elif mark:
            blocks.append((fence[0], fence[1], "".join(fence[2])))
            fence = None
        elif fence:
            fence[2].append(line)
        text.append("\n" if mark or fence else line)
    return blocks, "".join(text)


def anchors(page):
    """GitHub's: lower case, punctuation gone, dashes for spaces."""
    headings = re.findall(r"^#+ (.*)", split(page)[1], re.M)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)) for heading in headings]
    return {heading.lower().replace(" ", "-") for heading in plain}


def commands(kind, block):
    """The commands of a block, continued lines joined, comments and placeholders gone."""
    lines = block.replace("\\\n", " ").split("\n")
    if kind == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


# ---- what there is
TARGETS = set(re.findall(r"^([\w./-]+):", output("make", "-pqn", "all").stdout, re.M)) | {"all"}


@functools.cache
def options_of(*program):
    """Those that --help names; flags also with --no-."""
    found = set(re.findall(r"--[a-zA-Z][\w-]*", output(*program, "--help", cwd=TREE).stdout))
    return found | {"--no-" + option[2:] for option in found} | {"--help"}


def is_explained(name):
    """Whether it has a --help: programs, and the scripts that are not tests."""
    script = re.fullmatch(r"scripts/(?!test_)\w+(\.sh|\.sbatch)?|dev/experiments/(kernel/)?\w+", name)
    return name in PROGRAMS or bool(script and os.path.isfile(name) and os.access(name, os.X_OK))


@functools.cache
def all_options():
    subcommands = [("./tokenize", name) for name in ("train", "encode", "decode", "info", "export")]
    tools = [("./" + path,) for path in glob.glob("scripts/*") if is_explained(path)]
    programs = [("./" + name,) for name in PROGRAMS] + subcommands + tools
    return set(FOREIGN).union(*(options_of(*program) for program in programs))


@functools.cache
def is_target(path):
    path = re.sub("^build/", os.environ.get("BUILD", "build") + "/", path)
    return path in TARGETS or output("make", "-n", path).returncode == 0


def exists(path):
    """A path of the repository, of the sandbox or of what is built; words of capitals stand for anything."""
    path = re.sub(r"(?<![\w])[A-Z]{2,}(?![\w])|\bN\b", "*", path)
    if any(glob.glob(os.path.join(root, path)) for root in (ROOT, TREE)):
        return True
    for made, maker in MADE.items():
        if path == made or path.startswith(made + "/") and not made.endswith("/"):
            return os.path.exists(maker)
    if path in outputs:
        return True
    if path.startswith("build/"):
        return is_target(path)
    return False


# ---- links
def check_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        check(f"{page}: link {target}", os.path.exists(path), "no such file")
        if anchor and os.path.isfile(path):
            check(f"{page}: link {target}", anchor in anchors(path), f"no such heading in {path}")


# ---- words in backquotes
ROOMS = r"(?:core|attention|dataloader|scripts|docs|dev|build|data|runs)/"
SOURCE = r"[\w./*-]+\.(?:cuh|cu|cpp|c|h|py|sh|mk|css|js|sbatch|tsv|md)"


def check_word(page, word):
    word = word.strip("',\"").removeprefix("./")
    if re.fullmatch(ROOMS + r"[\w./*-]*", word):
        check(f"{page}: `{word}`", exists(word), "no such path, target or file that a command makes")
    elif re.fullmatch(SOURCE, word):
        names = [word, os.path.join(os.path.dirname(page), word), "**/" + word]
        check(f"{page}: `{word}`", any(glob.glob(name, recursive=True) for name in names) or exists(word), "no such file")


def check_words(page, text):
    for span in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text):
        words = span.split()
        for word in words:
            check_word(page, word)
        if words[0] == "make":
            check_make(page, span)
        elif is_ours(words[0]):
            check_options(page, span)
        for option in words if words[0].startswith("--") else []:
            option = re.match(r"(--[a-zA-Z][\w-]*)?", option)[1]
            check(f"{page}: `{option}`", not option or option in all_options(), "no program has such an option")


# ---- commands
def strip_environment(words):
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


def check_make(page, command):
    for word in strip_environment(shlex.split(command))[1:]:
        if re.fullmatch(r"[a-z][\w./-]*", word):
            check(f"{page}: make {word}", is_target(word), "no such target")


def is_ours(word):
    name = word.removeprefix("./").removesuffix("_cuda")
    return name in PROGRAMS or bool(re.match(r"(?:scripts|dev)/[\w/]+(\.sh|\.sbatch)?$", name)) and os.path.isfile(name)


def check_options(page, command):
    """Every option has to be one that the program's --help names; what follows -- is the trainer's."""
    words = strip_environment(re.sub(r"[<>|]+ ?\S+", " ", command).split())
    own, _, trainers = " ".join(words).partition(" -- ")
    name = words[0].removeprefix("./").removesuffix("_cuda")
    program = ("./" + name,) + tuple(words[1:2] if name == "tokenize" and words[1:] else ())
    takes = [program] if is_explained(name) else []
    takes += [("./train_gpt2",)] if name.startswith("scripts/train_") else []
    for part, programs in (own, takes), (trainers, [("./train_gpt2",)]):
        for option in re.findall(r"(?<!\S)--[a-zA-Z][\w-]*", part):
            known = option in FOREIGN or any(option in options_of(*one) for one in programs)
            check(f"{page}: {command}", known, f"{' '.join(program)} has no {option}")


def is_only_read(words):
    first = words[0].removeprefix("./")
    if first in ONLY_READ or first.split("/")[0] in ONLY_READ or first.endswith("_cuda") or "..." in words:
        return True  # _cuda: there may be no GPU; ...: the page leaves something out
    tests = set(glob.glob("**/test_*.sh", recursive=True)) - {"scripts/test_docs.sh"}
    return first in tests or first.startswith("scripts/") and first != "scripts/report" and any(
        os.path.basename(first) in open(test).read() for test in [*tests, ".ci/run"])


def run(page, command):
    first = strip_environment(shlex.split(command))[0].removeprefix("./")
    if first == "train_gpt2" and "--help" not in command and "--attention list" not in command:
        command = re.sub(r"--(seconds|steps) \S+", "", command) + " " + SHORTER[first]
    elif first == "sample_gpt2" and "--loss" not in command:
        command = re.sub(r"--tokens \S+", "", command).replace(first, first + " " + SHORTER[first], 1)
    elif first == "stories":
        command = re.sub(r"--bytes \S+", "--bytes 100k", command)
    elif first == "tokenize":
        command = re.sub(r"--vocab \d+", "--vocab 512", command)
    result = output("sh", "-c", command, cwd=TREE)
    check(f"{page}: {command}", result.returncode == 0, (result.stderr or result.stdout)[-300:].strip())


def is_followed_elsewhere(page, command):
    """Recipes, by scripts/test_recipes.sh; the mechanisms that docs/attentions.md makes up, by scripts/test_new_attention.sh."""
    return page == "docs/recipes.md" or page == "docs/attentions.md" and re.search(r"\b(squared-relu|cosine)\b", command)


def check_command(page, command):
    if is_followed_elsewhere(page, command):
        return
    words = strip_environment(command.replace("'", " ").split())
    for word in words:
        if re.match(ROOMS, word.removeprefix("./")) and "..." not in word:
            check_word(page, word)
    if words[0] == "make":
        check_make(page, command)
    if is_ours(words[0]):
        check_options(page, command)
    for word in words[1:]:
        if words[0] in ("mpirun", "sbatch") and is_ours(word):
            check_options(page, command[command.index(word):])
    if is_only_read(words):
        return
    if is_ours(words[0]):
        run(page, command)
    else:
        check(f"{page}: {command}", False, "neither run nor read here; say in ONLY_READ why")


def check_python(page, line, block):
    """Only read: it needs transformers, with which make test-interop does the same."""
    try:
        ast.parse(textwrap.dedent(block))
        check(page, True)
    except SyntaxError as error:
        check(f"{page}:{line + error.lineno}: Python", False, error.msg)
    for path in re.findall(r'"((?:data|runs)/[^"]*)"', block):
        check(f"{page}: {path}", exists(path), "no such path")


pages = {page: split(page) for page in PAGES}
found = [(page, command) for page, (blocks, _) in pages.items() for kind, _, block in blocks
         if kind in ("sh", "console") for command in commands(kind, block)]
outputs = {word for _, command in found for word in re.findall(r"(?:--out|-o) (\S+)", command)}
for page, command in found:
    check_command(page, command)
for page, (blocks, text) in pages.items():
    check_links(page, text)
    check_words(page, text)
    for kind, line, block in blocks:
        if kind == "python":
            check_python(page, line, block)
        for path in re.findall(rf"^({ROOMS}[\w./-]*)  ", block, re.M) if kind == "" else []:  # a list of what is where
            check_word(page, path)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
PYTHON
