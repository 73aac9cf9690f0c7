#!/bin/sh
# Compares what each lane and register of tile_gpu.h's instructions holds, as their twins have it, with the layout tables
# of NVIDIA's CUTLASS, one check for each instruction and fragment. Fetches the wheel `nvidia-cutlass` (6 MB) into
# $BUILD/cutlass, which nothing else needs; without it, and without CUDA's headers, that is said and counted as skipped.
# Last line: `N passed, N failed`.
cd "$(dirname "$0")/../.." || exit 1
export BUILD="${BUILD:-build}"
work=$BUILD/core/gpu/tile_layouts cutlass=$BUILD/cutlass harness=dev/cuda_on_cpu
passed=0 failed=0
. scripts/checks.sh
mkdir -p "$work"
give_up() { # why
    skip "lanes and registers beside CUTLASS's tables" "$1"
    summary
    exit
}

"$harness/headers.sh" >/dev/null 2>"$work/log" || give_up "$(tail -n 1 "$work/log")"
# CUTLASS wants more of CUDA's library for C++ than headers.sh fetches. Other versions after a look at what changed.
fetch_cutlass() {
    # shellcheck disable=SC2046
    has_cccl=$(find $("$harness/headers.sh" --find) -path '*/cuda/std/tuple' -print -quit)
    rm -rf "$work/wheels" "$cutlass"
    # shellcheck disable=SC2046
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
        nvidia-cutlass==4.2.0.0 $([ -n "$has_cccl" ] || echo nvidia-cuda-cccl==13.0.85) || return
    for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/wheels" || return; done
    includes=$work/wheels/cutlass_library/source/include
    [ -n "$has_cccl" ] || cp -R "$work"/wheels/nvidia/*/include/cccl/* "$includes" || return
    mv "$includes" "$cutlass" && rm -rf "$work/wheels"
}
[ -f "$cutlass/cute/atom/mma_traits_sm80.hpp" ] || fetch_cutlass >"$work/log" 2>&1 ||
    give_up "nvidia-cutlass could not be fetched: $(tail -n 1 "$work/log")"

system=$("$harness/headers.sh" --find | sed 's/^/-isystem /')
build_programs() {
    # shellcheck disable=SC2086
    ${CXX:-g++} -std=c++17 -O1 -Wall -Wextra $system -isystem "$cutlass" core/gpu/test_tile_layouts.cpp \
        -o "$work/tables" &&
        "$harness/cudacc" -I. -Wall -Wextra -c core/gpu/cuda_common.cu -o "$work/cuda_common.o" &&
        "$harness/cudacc" -I. -Wall -Wextra -c "$harness/tile_layouts.cu" -o "$work/twins.o" &&
        "$harness/cudacc" "$work/twins.o" "$work/cuda_common.o" -o "$work/twins"
}
check "the programs that print the tables are built" build_programs
for program in tables twins; do
    check "$program" sh -c "'$work/$program' >'$work/$program.txt'"
    LC_ALL=C sort -o "$work/$program.txt" "$work/$program.txt"
done
# A table is all lines that begin alike, up to ` lane`.
tables=$(sed 's/ lane .*//' "$work/tables.txt" "$work/twins.txt" | LC_ALL=C sort -u)
check_equal "the number of tables" "$(echo "$tables" | wc -l)" 20
echo "$tables" >"$work/names"
while read -r name; do
    for program in tables twins; do grep -F "$name lane " "$work/$program.txt" >"$work/$program.part"; done
    if difference=$(diff "$work/tables.part" "$work/twins.part"); then pass; else
        fail "$name" "CUTLASS (<) and the twin (>) differ:" "$(echo "$difference" | head -n 6)"
    fi
done <"$work/names"
summary
