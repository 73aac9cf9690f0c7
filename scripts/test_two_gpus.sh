#!/bin/sh
# NCCL between two real GPUs: the test programs in TWO_GPU_PROGRAMS, each on two ranks. Part of `make test-gpu`; says why
# where it cannot be done. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
. scripts/checks.sh
leave_out() { # why
    skip "NCCL between two GPUs" "$1"
    summary
    exit
}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ "$gpus" -ge 2 ] || leave_out "nvidia-smi -L shows $gpus"
command -v mpirun >/dev/null 2>&1 || leave_out "there is no mpirun (openmpi-bin)"
for library in NCCL MPI; do
    grep -q "DHAVE_$library" "${BUILD:-build}/cuda.mk" || leave_out "the programs were built without $library"
done
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for program in $TWO_GPU_PROGRAMS; do
    if timeout -k 5 120 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none -np 2 "$program" >"$log" 2>&1 </dev/null &&
        tail -n 1 "$log" | tr -d '\r' | grep -q '^[1-9][0-9]* passed, 0 failed$'; then
        pass
    else
        fail "$program on two ranks" "$(tail -n 20 "$log")"
    fi
done
summary
