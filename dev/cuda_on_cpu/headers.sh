#!/bin/sh
# Where .cu files can be compiled for the CPU, prints the directories of CUDA's headers: a toolkit's, or those fetched.
#   headers.sh --find    only look; exit code 1 and nothing printed when there are none
#   headers.sh           look, and fetch them when there are none (7 MB)
cd "$(dirname "$0")/../.." || exit 1
case ${BUILD:-build} in /*) build=$BUILD ;; *) build=$PWD/${BUILD:-build} ;; esac
has_headers() { [ -f "$1/cuda_runtime.h" ] && [ -f "$1/cublasLt.h" ] && [ -f "$1/cuda_bf16.h" ]; }
find_headers() {
    nvcc=$(command -v nvcc 2>/dev/null) && nvcc_include=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include || nvcc_include=""
    for directory in ${CUDA_HOME:+"$CUDA_HOME/include"} "$nvcc_include" /usr/local/cuda/include "$build/cuda_headers/include"; do
        if [ -n "$directory" ] && has_headers "$directory"; then
            # CUDA 13 keeps <nv/target> and its kin in a folder of their own
            echo "$directory"
            [ ! -d "$directory/cccl" ] || echo "$directory/cccl"
            return 0
        fi
    done
    return 1
}
for program in "${CXX:-g++}" python3; do # what cudacc runs
    command -v "$program" >/dev/null 2>&1 || { [ "${1:-}" = --find ] || echo "headers.sh: there is no $program" >&2; exit 1; }
done
find_headers && exit 0
[ "${1:-}" != --find ] || exit 1
python3 dev/cuda_on_cpu/fetch_headers.py "$build/cuda_headers/include" >&2 && find_headers
