#!/bin/sh
# Runs test programs one after the other; those of kernels on the CPU, which take one core, as many at once as there are
# cores (RUN_AT_ONCE=1: one). Each ends with a line `N passed, N failed`, and where it had to leave something out with
# `N passed, N failed, N skipped` after a line `skipped: WHAT: WHY` for each; so does this, with the sums. A test that ends
# without such a line, or with a non-zero exit code that its line does not explain, counts as one failure.
#   scripts/run_tests.sh [--left-out 'TEST: WHY']... [TEST]...
# --left-out names a test that could not even be built: it counts as skipped. RUN_UNDER="valgrind --quiet" puts that before
# every program. Kernels on the CPU are compared with C code on one thread: the work is so small that several would do
# little but wait for each other.
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0 broken=""
directory=$(mktemp -d) || exit 1
reasons=$directory/reasons
: >"$reasons"
trap 'rm -rf "$directory"' EXIT
takes_one_core() { case $1 in */cuda_on_cpu/*/*) ;; *) false ;; esac; }
place_of() { echo "$directory/$(echo "$1" | tr / _)"; }
# NAME PLACE: the test's output goes to PLACE.log, its exit code and seconds to PLACE.end.
# shellcheck disable=SC2016
start_test='start=$(date +%s)
case $1 in *.sh) command=$1 ;; *) command=./$1 ;; esac
$RUN_UNDER "$command" >"$2.log" 2>&1 </dev/null
echo "$? $(($(date +%s) - start))" >"$2.end"'
RUN_UNDER=${RUN_UNDER:-}
export RUN_UNDER
# Those of the arguments that take one core each.
run_at_once() {
    for test; do ! takes_one_core "$test" || printf '%s\n%s\n' "$test" "$(place_of "$test")"; done |
        OMP_NUM_THREADS=1 xargs -r -n 2 -P "${RUN_AT_ONCE:-$(nproc 2>/dev/null || echo 1)}" sh -c "$start_test" sh
}
count_of() { # what: its number in the last line of the log, which has to be such a line
    tail -n 1 "$log" | sed -n '/^[0-9]* passed, [0-9]* failed\(, [0-9]* skipped\)\{0,1\}$/s/.*\<\([0-9][0-9]*\) '"$1"'.*/\1/p'
}
run_test() { # the first of the arguments; others may run beside it
    place=$(place_of "$1")
    [ -e "$place.end" ] || if takes_one_core "$1"; then run_at_once "$@"; else sh -c "$start_test" sh "$1" "$place"; fi
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
    tail -n 60 "$log"
    echo "----"
}
while [ $# -gt 0 ]; do
    case $1 in
    --left-out)
        [ $# -ge 2 ] || refuse "--left-out needs a value; see --help"
        skipped=$((skipped + 1))
        echo "  $2" >>"$reasons"
        shift
        ;;
    -*) refuse "unknown option $1; see --help" ;;
    *) run_test "$@" ;;
    esac
    shift
done
[ ! -s "$reasons" ] || { echo "skipped:" && cat "$reasons"; }
[ -z "$broken" ] || echo "failed:$broken"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
