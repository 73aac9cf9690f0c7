#!/bin/sh
# Runs test programs one after the other. Each ends with a line `N passed, N failed`, and where it had to leave something out
# with `N passed, N failed, N skipped` after a line `skipped: WHAT: WHY` for each; so does this, with the sums. A test that
# ends without such a line, or with a non-zero exit code that its line does not explain, counts as one failure.
#   scripts/run_tests.sh [--left-out 'TEST: WHY']... [TEST]...
# --left-out names a test that could not even be built: it counts as skipped. RUN_UNDER="valgrind --quiet" puts that before
# every program. Kernels on the CPU are compared with C code on one thread: the work is so small that several would do
# little but wait for each other.
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0 broken=""
log=$(mktemp) || exit 1
reasons=$(mktemp) || exit 1
trap 'rm -f "$log" "$reasons"' EXIT
count_of() { # what: its number in the last line of the log, which has to be such a line
    tail -n 1 "$log" | sed -n '/^[0-9]* passed, [0-9]* failed\(, [0-9]* skipped\)\{0,1\}$/s/.*\<\([0-9][0-9]*\) '"$1"'.*/\1/p'
}
run_test() {
    start=$(date +%s)
    case $1 in *.sh) command=$1 ;; *) command=./$1 ;; esac
    case $1 in */cuda_on_cpu/*/*) threads=1 ;; *) threads=${OMP_NUM_THREADS:-} ;; esac
    # shellcheck disable=SC2086
    env ${threads:+OMP_NUM_THREADS=$threads} ${RUN_UNDER:-} "$command" >"$log" 2>&1 </dev/null
    code=$?
    p=$(count_of passed) f=$(count_of failed) s=$(count_of skipped)
    s=${s:-0}
    if [ -z "$p" ] || { [ "$code" != 0 ] && [ "$f" = 0 ]; } || [ "$((p + f + s))" = 0 ] ||
        [ "$(grep -c '^skipped: ' "$log")" -lt "$s" ]; then
        p=${p:-0} f=$((${f:-0} + 1))
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-44s %4d passed %3d failed%s  %3d s\n' "$1" "$p" "$f" \
        "$([ "$s" = 0 ] || printf ' %3d skipped' "$s")" $(($(date +%s) - start))
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
    *) run_test "$1" ;;
    esac
    shift
done
[ ! -s "$reasons" ] || { echo "skipped:" && cat "$reasons"; }
[ -z "$broken" ] || echo "failed:$broken"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
