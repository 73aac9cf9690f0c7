#!/bin/sh
# Finds nvcc and NVIDIA's libraries by compiling and linking a few lines against each, writes build/cuda.mk for the
# Makefile and prints what was found. Called by `make cuda`; CUDA_HOME and NVCC choose another toolkit, USE_CUDNN=0
# leaves cuDNN out.
set -u
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
if [ "${USE_CUDNN:-1}" != 0 ] && echo '#include <cudnn_frontend.h>
int main(void){return cudnnGetVersion() < 90000;}' | links "-lcudnn -lnvrtc"; then
    flags="$flags -DUSE_CUDNN" libraries="$libraries -lcudnn -lnvrtc"
    report "cuDNN" "yes"
else
    report "cuDNN" "no (cudnn_frontend.h, libcudnn 9): softmax attention by our own kernel"
fi
if echo '#include <nccl.h>
int main(void){int v; return ncclGetVersion(&v) != 0;}' | links "-lnccl"; then
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
    echo "NVCC_FOUND := $flags"
    echo "NVCC_LIBS := -L$root/lib64 -Xlinker --as-needed $libraries -ldl"
} >"$build/cuda.mk"
