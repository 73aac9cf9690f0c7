#!/bin/sh
# NCCL between two real GPUs: the test programs named as arguments, each on two ranks. Part of `make test-gpu`; says why
# where it cannot be done. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
skip() {
    echo "skipped: NCCL between two GPUs, $1"
    echo "0 passed, 0 failed"
    exit 0
}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ "$gpus" -ge 2 ] || skip "nvidia-smi -L shows $gpus"
command -v mpirun >/dev/null 2>&1 || skip "there is no mpirun (openmpi-bin)"
for library in NCCL MPI; do
    grep -q "DHAVE_$library" "${BUILD:-build}/cuda.mk" || skip "the programs were built without $library"
done
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0
for program in "$@"; do
    if timeout -k 5 120 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none -np 2 "$program" >"$log" 2>&1 </dev/null &&
        tail -n 1 "$log" | tr -d '\r' | grep -q '^[1-9][0-9]* passed, 0 failed$'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $program on two ranks"
        tail -n 20 "$log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
