#!/bin/sh
# Runs test programs, as many at once as there are cores (RUN_AT_ONCE=1: one), and prints a line for each in the order in
# which they were given. Each ends with a line `N passed, N failed`, and where it had to leave something out with
# `N passed, N failed, N skipped` after a line `skipped: WHAT: WHY` for each; so does this, with the sums. A test that ends
# without such a line, or with a non-zero exit code that its line does not explain, counts as one failure.
#   scripts/run_tests.sh [--left-out 'TEST: WHY']... [TEST]...
# --left-out names a test that could not even be built: it counts as skipped. RUN_UNDER="valgrind --quiet" puts that before
# every program; PYTHON=/path/to/python runs the tests in Python, each with a cache of its own for transformers' modules. A
# script with a line `# Runs alone: WHY` has the machine to itself, when all others have ended. Kernels on the CPU are compared
# with C code on one thread: the work is so small that several would do little but wait for each other.
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0 broken=""
directory=$(mktemp -d) || exit 1
reasons=$directory/reasons
: >"$reasons"
trap 'rm -rf "$directory"' EXIT
place_of() { echo "$directory/$(echo "$1" | tr / _)"; }
# NAME PLACE: the test's output goes to PLACE.log, its exit code and seconds to PLACE.end.
# shellcheck disable=SC2016
start_test='start=$(date +%s) test=$1 place=$2
case $test in *.sh) set -- "$test" ;; *.py) set -- "$PYTHON" "$test" ;; *) set -- "./$test" ;; esac
case $test in */cuda_on_cpu/*/*) export OMP_NUM_THREADS=1 ;; *.py) export HF_HOME="$place.cache" ;; esac
$RUN_UNDER "$@" >"$place.log" 2>&1 </dev/null
echo "$? $(($(date +%s) - start))" >"$place.new" && mv "$place.new" "$place.end"'
RUN_UNDER=${RUN_UNDER:-} PYTHON=${PYTHON:-python3}
export RUN_UNDER PYTHON
runs_alone() { case $1 in *.sh) grep -q '^# Runs alone: ' "$1" ;; *) false ;; esac; }
# yes|no PROCESSES TEST...: those of the tests that do, or do not, run alone.
run_those() {
    alone=$1 processes=$2
    shift 2
    for test; do
        if runs_alone "$test"; then own=yes; else own=no; fi
        [ $own != "$alone" ] || printf '%s\n%s\n' "$test" "$(place_of "$test")"
    done | xargs -r -n 2 -P "$processes" sh -c "$start_test" sh
}
run_all() {
    run_those no "${RUN_AT_ONCE:-$(nproc 2>/dev/null || echo 1)}" "$@"
    run_those yes 1 "$@"
    : >"$directory/all"
}
count_of() { # what: its number in the last line of the log, which has to be such a line
    tail -n 1 "$log" | sed -n '/^[0-9]* passed, [0-9]* failed\(, [0-9]* skipped\)\{0,1\}$/s/.*\<\([0-9][0-9]*\) '"$1"'.*/\1/p'
}
report_test() { # when it has ended
    place=$(place_of "$1")
    while [ ! -e "$place.end" ] && [ ! -e "$directory/all" ]; do sleep 0.2; done
    [ -e "$place.end" ] || echo "127 0" >"$place.end"
    log=$place.log
    read -r code seconds <"$place.end"
    p=$(count_of passed) f=$(count_of failed) s=$(count_of skipped)
    s=${s:-0}
    if [ -z "$p" ] || { [ "$code" != 0 ] && [ "$f" = 0 ]; } || [ "$((p + f + s))" = 0 ] ||
        [ "$(grep -c '^skipped: ' "$log")" -lt "$s" ]; then
        p=${p:-0} f=$((${f:-0} + 1))
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-44s %4d passed %3d failed%s  %3d s\n' "$1" "$p" "$f" \
        "$([ "$s" = 0 ] || printf ' %3d skipped' "$s")" "$seconds"
    [ "$s" = 0 ] || sed -n "s|^skipped: |  $1: |p" "$log" >>"$reasons"
    [ "$f" != 0 ] || return
    broken="$broken $1"
    echo "---- $1 (exit code $code)"
    grep -v '^ok ' "$log" | tail -n 60
    echo "----"
}
while [ "${1#--}" != "${1:-}" ]; do
    [ "$1" = --left-out ] || refuse "unknown option $1; see --help"
    [ $# -ge 2 ] || refuse "--left-out needs a value; see --help"
    skipped=$((skipped + 1))
    echo "  $2" >>"$reasons"
    shift 2
done
for test; do case $test in -*) refuse "$test: options come before the tests; see --help" ;; esac; done
report_all() {
    for test; do report_test "$test"; done
    [ ! -s "$reasons" ] || { echo "skipped:" && cat "$reasons"; }
    [ -z "$broken" ] || echo "failed:$broken"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
# A pipe, although nothing goes through it: what runs behind an & would start with SIGINT ignored.
run_all "$@" | report_all "$@"
