#!/bin/sh
# The kernels' tests on a real GPU under NVIDIA's compute-sanitizer: memcheck finds accesses out of bounds, racecheck races on
# shared memory. SANITIZER_TESTS are words PROGRAM=TEST,TEST: those that launch every kernel with the smallest shapes, for
# both take a hundred times as long as without. Part of `make test-gpu`; says why where it cannot be done. Last line:
# `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
. scripts/checks.sh
nvcc=$(sed -n 's/^NVCC := //p' "${BUILD:-build}/cuda.mk" 2>/dev/null)
beside=$(dirname "$(command -v "${nvcc:-nvcc}" || echo nvcc)")/compute-sanitizer
sanitizer=$(command -v compute-sanitizer || command -v "$beside")
if [ -z "$sanitizer" ]; then
    skip "compute-sanitizer" "it is not on the PATH or beside nvcc; it comes with the CUDA toolkit"
    summary
    exit
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
for test in ${SANITIZER_TESTS:?is set by make test-gpu}; do
    for tool in memcheck racecheck; do
        TEST_ONLY=${test#*=} "$sanitizer" --tool "$tool" --error-exitcode 99 --log-file "$work/report" "${test%%=*}" \
            >"$work/out" 2>&1 </dev/null
        code=$?
        if [ "$code" = 0 ] && tail -n 1 "$work/out" | grep -q '^[1-9][0-9]* passed, 0 failed'; then pass; else
            fail "$tool ${test%%=*}: exit code $code" "$(tail -n 20 "$work/report" 2>/dev/null)" "$(tail -n 5 "$work/out")"
        fi
    done
done
summary
