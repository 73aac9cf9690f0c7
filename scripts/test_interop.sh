#!/bin/sh
# Compares with the software that others use: runs every */interop_*.py from the project's root in a Python environment
# made for this alone (build/venv-interop: tiktoken, transformers, torch, safetensors, numpy, llama.cpp as xllamacpp with
# gguf, lm-eval and TensorBoard; installed once), scripts/test_tensorboard.sh, for aim and trackio in one of its own, and
# scripts/test_recipes.sh with its blocks of Python. Each prints `N passed, N failed` as its last line, so does this.
#   scripts/test_interop.sh --quick      a part of each, without aim and trackio; skipped where packages cannot be had
#   INTEROP_PYTHON=/path/to/python scripts/test_interop.sh     with an environment that is there already
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.." || exit 1
packages="tiktoken transformers torch safetensors numpy xllamacpp gguf lm_eval accelerate tensorboard"
QUICK="" patience=3600
case $* in '') ;; --quick) QUICK=yes patience=600 ;; *) refuse "expected --quick or nothing, found '$*'" ;; esac
export QUICK

give_up() {
    printf '%s\n' "$@" "0 passed, 1 failed"
    exit 1
}
cannot_have() { # what is missing, which is no fault of this project
    [ -n "$QUICK" ] || give_up "$1"
    echo "skipped: comparisons with others' software: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
has_packages() {
    "$1" -c "import $(echo "$packages" | tr ' ' ',')" >/dev/null 2>&1
}
make_environment() {
    [ -x build/venv-interop/bin/python ] || python3 -m venv build/venv-interop ||
        cannot_have "cannot make a Python environment; on Debian and Ubuntu: apt install python3-venv"
    has_packages build/venv-interop/bin/python && return
    echo "installing $packages into build/venv-interop (once; torch is large)"
    # shellcheck disable=SC2086
    timeout $patience build/venv-interop/bin/python -m pip install --quiet --no-compile --retries 1 --timeout 20 $packages \
        >build/venv-interop.txt 2>&1 ||
        cannot_have "cannot install them within $((patience / 60)) minutes; is the network there? See build/venv-interop.txt"
    has_packages build/venv-interop/bin/python || cannot_have "what was installed cannot be imported; see build/venv-interop.txt"
}

python=${INTEROP_PYTHON:-}
[ -n "$python" ] || { mkdir -p build && make_environment && python=build/venv-interop/bin/python; }
has_packages "$python" || give_up "$python: expected a Python with $packages, found some missing"
"$python" -m pip list --format freeze 2>/dev/null | grep -E '^(tiktoken|transformers|torch|xllamacpp|gguf|lm_eval)=' | tr '\n' ' '
echo
make --no-print-directory all build/dev/gpt2_eval build/dev/gpt2_eval_double >/dev/null || give_up "the programs do not build; run make"
if [ -n "$QUICK" ]; then export TENSORBOARD_PYTHON="$python"; else export INSTALL=yes; fi
PYTHON=$python RECIPE_PYTHON=$python HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error \
    scripts/run_tests.sh */interop_*.py */*/interop_*.py scripts/test_tensorboard.sh scripts/test_recipes.sh
