#!/bin/sh
# Compares with the software that others use: runs every */interop_*.py from the project's root in a Python environment
# made for this alone (build/venv-interop: tiktoken, transformers, torch, safetensors, numpy, llama.cpp as xllamacpp with
# gguf, and lm-eval; installed once). Each prints `N passed, N failed` as its last line, and so does this, with the sums.
#   scripts/test_interop.sh --quick      a part of each, in minutes; where the packages cannot be had it is skipped
#   INTEROP_PYTHON=/path/to/python scripts/test_interop.sh     with an environment that is there already
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.." || exit 1
packages="tiktoken transformers torch safetensors numpy xllamacpp gguf lm_eval accelerate"
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
    timeout $patience build/venv-interop/bin/python -m pip install --quiet --retries 1 --timeout 20 $packages ||
        cannot_have "cannot install $packages within $((patience / 60)) minutes; is the network there?"
}

python=${INTEROP_PYTHON:-}
[ -n "$python" ] || { mkdir -p build && make_environment && python=build/venv-interop/bin/python; }
has_packages "$python" || give_up "$python: expected a Python with $packages, found some missing"
"$python" -m pip list --format freeze 2>/dev/null | grep -E '^(tiktoken|transformers|torch|xllamacpp|gguf|lm_eval)=' | tr '\n' ' '
echo
make --no-print-directory all >/dev/null || give_up "the programs do not build; run make"

passed=0 failed=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for test in */interop_*.py */*/interop_*.py; do
    [ -e "$test" ] || give_up "expected tests named */interop_*.py, found none"
    start=$(date +%s)
    HF_HUB_OFFLINE=1 HF_HOME=build/interop-cache TRANSFORMERS_VERBOSITY=error "$python" "$test" >"$log" 2>&1 </dev/null
    code=$?
    sums=$(tail -n 1 "$log" | sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed$/\1 \2/p')
    p=${sums% *} f=${sums#* }
    if [ -z "$sums" ] || { [ "$code" != 0 ] && [ "$f" = 0 ]; }; then p=${p:-0} f=1; fi
    passed=$((passed + p)) failed=$((failed + f))
    printf '%-44s %4d passed %3d failed  %3d s\n' "$test" "$p" "$f" $(($(date +%s) - start))
    [ "$f" = 0 ] || { echo "---- $test (exit code $code)"; grep -v '^ok ' "$log" | tail -n 60; echo "----"; }
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
