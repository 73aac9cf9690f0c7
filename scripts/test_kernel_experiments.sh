#!/bin/sh
# Tests of the experiments on the kernel: dev/experiments/kernel/test_kernel.py. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/checks.sh
passed=0 failed=0
command -v python3 >/dev/null 2>&1 || { skip "the experiments on the kernel" "no python3"; summary; exit; }
[ -x "${BUILD:-build}/dev/experiments/kernel/fidelity" ] && [ -x ./train_gpt2 ] ||
    { echo "the programs are missing; run make all kernel-programs"; echo "0 passed, 1 failed"; exit 1; }
OMP_WAIT_POLICY=passive exec python3 dev/experiments/kernel/test_kernel.py
