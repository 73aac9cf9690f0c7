#!/bin/sh
# Finds nvcc and NVIDIA's libraries by compiling and linking a few lines against each, writes build/cuda.mk for the
# Makefile and prints what was found. Called by `make cuda`; CUDA_HOME and NVCC choose another toolkit. cuDNN comes in two
# parts: the library and, separately, the header of its C++ frontend. Where only the header is missing it is fetched (11 MB);
# USE_CUDNN=fetch fetches the library too (540 MB), USE_CUDNN=0 leaves cuDNN out. Both come from Python packages.
#   scripts/setup_cuda.sh
set -u
. "$(dirname "$0")/usage.sh"
take_words 0 0 "$@"
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
mkdir -p "$build" || exit 1
probe_dir=$(mktemp -d) || exit 1
trap 'rm -rf "$probe_dir"' EXIT INT TERM

for nvcc in ${NVCC:-} ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} nvcc /usr/local/cuda/bin/nvcc; do
    command -v "$nvcc" >/dev/null 2>&1 && break
    nvcc=""
done
if [ -z "$nvcc" ]; then
    echo "make cuda: no nvcc found; install NVIDIA's CUDA toolkit (12.0 or later) or set CUDA_HOME" >&2
    exit 1
fi
root=$(cd "$(dirname "$(command -v "$nvcc")")/.." && pwd)

links() { # links "flags and libraries" <program on standard input
    cat >"$probe_dir/a.cu"
    # shellcheck disable=SC2086
    "$nvcc" -std=c++17 -o "$probe_dir/a" "$probe_dir/a.cu" -L"$root/lib64" $1 >"$probe_dir/log" 2>&1
}
report() { printf '%-10s %s\n' "$1" "$2"; }

if ! echo '#include <cublas_v2.h>
#include <cublasLt.h>
int main(void){cublasHandle_t h; cublasLtHandle_t l; return cublasCreate(&h) != 0 || cublasLtCreate(&l) != 0;}' | links "-lcublas -lcublasLt"; then
    tail -n 3 "$probe_dir/log" >&2
    echo "make cuda: $nvcc cannot link cuBLAS and cuBLASLt; install the whole CUDA toolkit" >&2
    exit 1
fi
flags="" libraries="-lcublas -lcublasLt"
report "nvcc" "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') ($nvcc)"
report "cuBLASLt" "yes"
# ---- architectures: those of CUDA_ARCH's default that this nvcc knows; make cuda reports what it builds for
wanted="80 90 100 120" architectures="" missing=""
known=$("$nvcc" --list-gpu-code 2>/dev/null)
for architecture in $wanted; do
    if [ -z "$known" ] || echo "$known" | grep -qx "sm_$architecture"; then architectures="$architectures $architecture"
    else missing="$missing $architecture"; fi
done
[ -z "$missing" ] || [ -n "${CUDA_ARCH:-}" ] ||
    report "GPUs" "not sm$missing, which this nvcc does not know (100 and 120 need CUDA 12.8, 90 needs 11.8)"
# ---- cuDNN
cudnn=$(pwd)/$build/cudnn # what was fetched
case $build in /*) cudnn=$build/cudnn ;; esac
fetch_package() { # package==version
    python3 -m pip download --quiet --no-deps --disable-pip-version-check --only-binary=:all: -d "$probe_dir/packages" "$1" \
        >"$probe_dir/log" 2>&1 && python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' \
        "$(ls "$probe_dir"/packages/*)" "$probe_dir/unpacked" && rm -rf "$probe_dir/packages" && mkdir -p "$cudnn"
}
fetch_cudnn_header() {
    [ -f "$cudnn/include/cudnn_frontend.h" ] && return
    fetch_package "nvidia-cudnn-frontend==1.32.0" && mkdir -p "$cudnn/include" && cp -r "$probe_dir"/unpacked/include/. "$cudnn/include"
}
fetch_cudnn_library() {
    [ -f "$cudnn/lib/libcudnn.so" ] && return
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
    fetch_package "nvidia-cudnn-cu$release>=9,<10" && mkdir -p "$cudnn/include" && cp -r "$probe_dir"/unpacked/nvidia/cudnn/. "$cudnn" &&
        for file in "$cudnn"/lib/*.so.9; do ln -sf "$(basename "$file")" "${file%.9}"; done
}
links_cudnn() { # header; of the frontend the small one, for the other takes a minute. $too_old: why not, where it is that
    echo "#include <cudnn.h>
#include <$1>
#if CUDNN_MAJOR < 9
#error cuDNN is older than version 9
#endif
#if defined CUDNN_FRONTEND_MAJOR_VERSION && CUDNN_FRONTEND_MAJOR_VERSION * 100 + CUDNN_FRONTEND_MINOR_VERSION < 113
#error the frontend of cuDNN is older than version 1.13
#endif
int main(void){return cudnnGetVersion() < 90000;}" | links "-isystem $cudnn/include -L$cudnn/lib -Xlinker -rpath=$cudnn/lib -lcudnn -lnvrtc"
    linked=$? too_old=$(sed -n 's/.*#error *//p' "$probe_dir/log" | sed q)
    return $linked
}
case ${USE_CUDNN:-1} in
0) ;;
fetch) links_cudnn cudnn.h || fetch_cudnn_library; links_cudnn cudnn_frontend_version.h || fetch_cudnn_header ;;
*) links_cudnn cudnn_frontend_version.h || { links_cudnn cudnn.h && fetch_cudnn_header; } ;;
esac
if [ "${USE_CUDNN:-1}" != 0 ] && links_cudnn cudnn_frontend_version.h; then
    flags="$flags -DUSE_CUDNN -isystem $cudnn/include"
    libraries="$libraries -L$cudnn/lib -Xlinker -rpath=$cudnn/lib -lcudnn -lnvrtc"
    report "cuDNN" "yes"
else
    report "cuDNN" "no (${too_old:-libcudnn 9, cudnn_frontend.h}; USE_CUDNN=fetch fetches both): softmax attention by our own kernel"
fi
if echo '#include <nccl.h>
int main(void){ncclConfig_t config = NCCL_CONFIG_INITIALIZER; ncclUniqueId id = {}; ncclComm_t made; // since NCCL 2.14
return ncclCommInitRankConfig(&made, 1, id, 0, &config) != 0;}' | links "-lnccl"; then
    flags="$flags -DHAVE_NCCL" libraries="$libraries -lnccl"
    report "NCCL" "yes"
else
    report "NCCL" "no: one GPU per run"
fi
mpi_flags=$(mpicc --showme:compile 2>/dev/null || mpicc -compile_info 2>/dev/null | sed 's/^[^ ]* //')
mpi_libraries=$(mpicc --showme:link 2>/dev/null | sed 's/-Wl,/-Xlinker /g; s/-pthread//g')
if [ -n "$mpi_flags" ] && echo '#define OMPI_SKIP_MPICXX
#include <mpi.h>
int main(int c,char**v){return MPI_Init(&c,&v);}' | links "$(echo "$mpi_flags" | sed 's/-pthread//g') $mpi_libraries"; then
    flags="$flags -DHAVE_MPI -DOMPI_SKIP_MPICXX $(echo "$mpi_flags" | sed 's/-pthread//g')" libraries="$libraries $mpi_libraries"
    report "MPI" "yes"
else
    report "MPI" "no: one process per run"
fi
if echo '#include <nvtx3/nvToolsExt.h>
int main(void){return nvtxRangePushA("a") < -9;}' | links "-ldl"; then
    report "NVTX" "yes"
else
    echo "make cuda: nvtx3/nvToolsExt.h is missing; it is part of the CUDA toolkit since 10.0" >&2
    exit 1
fi
{
    echo "# written by scripts/setup_cuda.sh"
    echo "NVCC := $nvcc"
    echo "CUDA_ARCH ?=$architectures"
    echo "NVCC_FOUND := $flags"
    echo "NVCC_LIBS := -L$root/lib64 -Xlinker --as-needed $libraries -ldl"
} >"$build/cuda.mk"
