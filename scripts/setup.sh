#!/bin/sh
# Finds what slay.c needs by trying to compile and link it, installs what is missing (Debian, Ubuntu), and writes
# build/config.mk for the Makefile.
#   scripts/setup.sh           install what is missing
#   scripts/setup.sh --tests   and what the tests use besides
#   scripts/setup.sh --probe   only look; stop with a message when something is missing
set -u
. "$(dirname "$0")/usage.sh"
case ${1:-} in --tests | --probe | '') [ $# -le 1 ] || refuse "unexpected word $2; see --help" ;; *) refuse "unknown option $1; see --help" ;; esac
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
mkdir -p "$build" || exit 1
probe_dir=$(mktemp -d) || exit 1
trap 'rm -rf "$probe_dir"' EXIT INT TERM

# ---- probes: each compiles and links a few lines
compiler() {
    for candidate in ${CC:-gcc clang cc}; do
        echo 'int main(void){return 0;}' >"$probe_dir/a.c"
        "$candidate" -o "$probe_dir/a" "$probe_dir/a.c" >/dev/null 2>&1 && { echo "$candidate"; return 0; }
    done
    return 1
}
links() { # links "flags" "libs" <program on standard input
    cat >"$probe_dir/a.c"
    # shellcheck disable=SC2086
    "$cc" $1 -o "$probe_dir/a" "$probe_dir/a.c" $2 >/dev/null 2>&1
}
probe_openmp() { echo '#include <omp.h>
int main(void){return omp_get_max_threads() < 1;}' | links "-fopenmp" ""; }
probe_blas() { # the openmp flavour: BLAS threads and ours are then the same threads
    for flags in "$(pkg-config --libs openblas 2>/dev/null)" "-L/usr/lib/$(uname -m)-linux-gnu/openblas-openmp -lopenblas" "-lopenblas"; do
        [ -n "$flags" ] || continue
        # shellcheck disable=SC2086
        echo '#include <cblas.h>
char *openblas_get_config(void); int openblas_get_parallel(void);
int main(void){float a=1,c=0;cblas_sgemm(CblasRowMajor,CblasNoTrans,CblasNoTrans,1,1,1,1,&a,1,&a,1,0,&c,1);return openblas_get_parallel()!=2 || c!=1;}' |
            links "-fopenmp" "$flags" && "$probe_dir/a" && { blas_libs=$flags; return 0; }
    done
    return 1
}
probe_jansson() { echo '#include <jansson.h>
int main(void){return json_object()==0;}' | links "" "-ljansson"; }
probe_xxhash() { echo '#include <xxhash.h>
int main(void){return XXH3_64bits("a",1)==0;}' | links "" "-lxxhash"; }
probe_vector_math() { echo '__attribute__((simd("notinbranch"))) float expf(float);
int main(int n,char**v){(void)v;float a[8];for(int i=0;i<8;i++)a[i]=expf((float)(n+i));return a[0]<0;}' |
    links "-O3 -fopenmp -fno-math-errno" "-lmvec -lm"; }
probe_mpi() { # for runs on many processes; the trainer works alone without
    mpi_cflags="" mpi_libs=""
    for source in "pkg-config --cflags ompi-c|pkg-config --libs ompi-c" "mpicc -showme:compile|mpicc -showme:link" \
        "pkg-config --cflags mpich|pkg-config --libs mpich" "true|echo -lmpi"; do
        flags=$(${source%|*} 2>/dev/null) && libs=$(${source#*|} 2>/dev/null) || continue
        echo '#include <mpi.h>
int main(void){int n;MPI_Request r;MPI_Comm_size(MPI_COMM_WORLD,&n);MPI_Ialltoallv(0,0,0,MPI_FLOAT,0,0,0,MPI_FLOAT,MPI_COMM_WORLD,&r);return 0;}' |
            links "$flags" "$libs" && { mpi_cflags="-DHAVE_MPI $flags" mpi_libs=$libs; return 0; }
    done
    return 1
}
# ---- what is missing, as Debian package names
find_missing() {
    missing=""
    cc=$(compiler) || { missing="gcc libc6-dev"; cc=gcc; }
    probe_openmp || { case $cc in *clang*) missing="$missing libomp-dev" ;; *) [ -n "$missing" ] || missing="gcc libc6-dev" ;; esac; }
    blas_libs=""
    probe_blas || missing="$missing libopenblas-openmp-dev"
    probe_jansson || missing="$missing libjansson-dev"
    probe_xxhash || missing="$missing libxxhash-dev"
    command -v ar >/dev/null 2>&1 || missing="$missing binutils"
    # Only compare, report and their tests are in Python: what builds does not need it.
    [ "${1:-}" = --probe ] || command -v python3 >/dev/null 2>&1 || missing="$missing python3"
    missing=$(echo $missing)
}

apt_install() { # packages; once more with fresh lists, for the old ones may name what is gone
    apt_install_once "$@" || { $sudo apt-get update -qq >"$probe_dir/log" 2>&1 && apt_install_once "$@"; }
}
apt_install_once() {
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$probe_dir/log" 2>&1
}

install_missing() {
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: missing here: $missing (Debian's names); install their like with this system's package manager, then run make again" >&2
        exit 1
    fi
    sudo=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || { echo "setup: missing: $missing; as root: apt-get install $missing" >&2; exit 1; }
        sudo=sudo
    fi
    echo "setup: will install $missing (${sudo:+$sudo }apt-get install)"
    # shellcheck disable=SC2086
    apt_install $missing ||
        { tail -5 "$probe_dir/log" >&2; echo "setup: apt-get could not install $missing; install them by hand, then run make again" >&2; exit 1; }
}

write_config() {
    cflags="-fopenmp${mpi_cflags:+ $mpi_cflags}"
    # clang tells of every `omp simd` loop that it leaves scalar; that is slower, not wrong
    case $cc in *clang*) cflags="$cflags -Wno-pass-failed" ;; esac
    libs="$blas_libs -ljansson -lxxhash"
    vector_math="scalar"
    if probe_vector_math; then
        libs="$libs -lmvec"
        cflags="$cflags -DHAVE_VECTOR_MATH"
        vector_math="glibc libmvec"
        case $cc in *clang*) cflags="$cflags -fveclib=libmvec" ;; esac
    fi
    {
        echo "# written by scripts/setup.sh"
        echo "CC := $cc"
        echo "CONFIG_CFLAGS := $cflags"
        echo "CONFIG_LIBS := $libs"
        echo "CONFIG_MPI_LIBS := $mpi_libs"
    } >"$probe_dir/config.mk"
    cmp -s "$probe_dir/config.mk" "$build/config.mk" && return
    cp "$probe_dir/config.mk" "$build/config.mk" || exit 1
    printf '%-14s %s\n' "compiler" "$($cc --version | head -n 1)" "BLAS" "OpenBLAS, openmp flavour ($blas_libs)" \
        "JSON" "jansson" "checksums" "xxHash" "vector math" "$vector_math" \
        "MPI" "${mpi_libs:-none: one process only (libopenmpi-dev and openmpi-bin bring it)}"
}

# ---- what is wanted, not needed: what can be installed without asking is, and nobody is stopped for its sake
want() { # mode, probe, Debian's packages, what they are good for, what is without them
    "$2" && return
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    [ "$1" != --probe ] && command -v apt-get >/dev/null 2>&1 && { [ -z "$sudo" ] || $sudo true 2>/dev/null; } || return
    echo "setup: will install $3, $4 (${sudo:+$sudo }apt-get install)"
    # shellcheck disable=SC2086
    apt_install $3 && "$2" || echo "setup: $5"
}
# The tests execute the GPU's code by g++ and Python, with CUDA's headers: a toolkit's, or fetched through pip.
probe_for_tests() {
    wanted=""
    [ -n "${CXX:-}" ] || command -v g++ >/dev/null 2>&1 || wanted=g++
    if [ "$(dev/cuda_on_cpu/headers.sh --why)" ]; then
        python3 -m pip --version >/dev/null 2>&1 || wanted="$wanted python3-pip"
        [ -e /etc/ssl/certs/ca-certificates.crt ] || wanted="$wanted ca-certificates"
    fi
    [ -z "$wanted" ]
}

find_missing "$@"
if [ -n "$missing" ]; then
    if [ "${1:-}" = --probe ]; then
        echo "setup: missing: $missing; run scripts/setup.sh to install them" >&2
        exit 1
    fi
    install_missing
    find_missing "$@"
    [ -z "$missing" ] || { echo "setup: still missing after installing: $missing" >&2; exit 1; }
fi
want "${1:-}" probe_mpi "libopenmpi-dev openmpi-bin" "to train on many processes" "no MPI; the trainer works as one process"
[ "${1:-}" != --tests ] || probe_for_tests ||
    want --tests probe_for_tests "$wanted" "for the tests of the GPU's code" "no $wanted; those tests are skipped"
write_config
