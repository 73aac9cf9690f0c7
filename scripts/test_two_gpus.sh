#!/bin/sh
# NCCL between two real GPUs: the test programs in TWO_GPU_PROGRAMS, each on two ranks that meet by --rendezvous, and under
# mpirun where there is MPI. Part of `make test-gpu`; says why where it cannot be done. Last line: `N passed, N failed`.
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
grep -q "DHAVE_NCCL" "${BUILD:-build}/cuda.mk" || leave_out "the programs were built without NCCL"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
check_passed() { # name, exit code: the program's last line in $work/log
    if [ "$2" = 0 ] && tail -n 1 "$work/log" | tr -d '\r' | grep -q '^[1-9][0-9]* passed, 0 failed$'; then pass; else
        fail "$1" "exit code $2" "$(tail -n 20 "$work/log")"
    fi
}
for program in $TWO_GPU_PROGRAMS; do
    meeting="--ranks 2 --rendezvous file:127.0.0.1@$work/meeting --rank-timeout 60"
    # shellcheck disable=SC2086
    {
        timeout -k 5 120 "$program" $meeting --rank 1 >"$work/second" 2>&1 </dev/null &
        timeout -k 5 120 "$program" $meeting --rank 0 >"$work/log" 2>&1 </dev/null
        code=$?
        wait $! || { code=1 && cat "$work/second" >>"$work/log"; }
    }
    check_passed "$program on two ranks that meet" $code
done
if ! command -v mpirun >/dev/null 2>&1 || ! grep -q "DHAVE_MPI" "${BUILD:-build}/cuda.mk"; then
    skip "NCCL between two GPUs under mpirun" "there is no MPI"
    summary
    exit
fi
for program in $TWO_GPU_PROGRAMS; do
    timeout -k 5 120 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca orte_tmpdir_base "$work" -np 2 "$program" >"$work/log" 2>&1 </dev/null
    check_passed "$program on two ranks of mpirun" $?
done
summary
