#!/bin/sh
# Where .cu files can be compiled for the CPU, prints the directories of CUDA's headers: a toolkit's, or those fetched.
#   headers.sh --find    only look; exit code 1 and nothing printed when there are none
#   headers.sh --why     why there are none; nothing printed when there are some
#   headers.sh           look, and fetch them when there are none (7 MB)
. "$(dirname "$0")/../../scripts/usage.sh"
case ${1:-} in --find | --why | '') ;; *) refuse "unknown option $1; see --help" ;; esac
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
missing_program() {
    for program in "${CXX:-g++}" python3; do # what cudacc runs
        command -v "$program" >/dev/null 2>&1 || { echo "there is no $program" && return; }
    done
    return 1
}
case ${1:-} in
--find) missing_program >/dev/null && exit 1; find_headers; exit ;;
--why) missing_program || find_headers >/dev/null || echo "there are no CUDA headers; dev/cuda_on_cpu/headers.sh fetches them"; exit 0 ;;
esac
! why=$(missing_program) || refuse "$why"
find_headers && exit 0
python3 dev/cuda_on_cpu/fetch_headers.py "$build/cuda_headers/include" >&2 && find_headers
