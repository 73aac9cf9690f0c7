#!/bin/sh
# Runs test programs one after the other. Each ends with a line `N passed, N failed`; so does this, with the sums. A test
# that ends without such a line, or with a non-zero exit code that its line does not explain, counts as one failure.
# RUN_UNDER="valgrind --quiet" puts that before every program. Kernels on the CPU are compared with C code on one thread:
# the work is so small that several would do little but wait for each other.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 broken=""
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for test in "$@"; do
    start=$(date +%s)
    case $test in *.sh) command=$test ;; *) command=./$test ;; esac
    case $test in */cuda_on_cpu/*/*) threads=1 ;; *) threads=${OMP_NUM_THREADS:-} ;; esac
    # shellcheck disable=SC2086
    env ${threads:+OMP_NUM_THREADS=$threads} ${RUN_UNDER:-} "$command" >"$log" 2>&1 </dev/null
    code=$?
    last=$(tail -n 1 "$log")
    p=$(echo "$last" | sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed$/\1/p')
    f=$(echo "$last" | sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed$/\2/p')
    if [ -z "$p" ] || { [ "$code" != 0 ] && [ "$f" = 0 ]; } || { [ "$p" = 0 ] && [ "$f" = 0 ]; }; then
        p=${p:-0} f=1
    fi
    passed=$((passed + p)) failed=$((failed + f))
    printf '%-44s %4d passed %3d failed  %3d s\n' "$test" "$p" "$f" $(($(date +%s) - start))
    if [ "$f" != 0 ]; then
        broken="$broken $test"
        echo "---- $test (exit code $code)"
        tail -n 60 "$log"
        echo "----"
    fi
done
[ -z "$broken" ] || echo "failed:$broken"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
