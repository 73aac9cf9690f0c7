#!/bin/sh
# Trains on many processes of one machine, or of several with a hostfile. Options after -- or after the number are the
# trainer's:
#   scripts/train_mpi.sh 4 --train 'data/fineweb/*_train_*.bin' --batch 64 --out runs/four
#   scripts/train_mpi.sh --hostfile hosts 16 --train ...       # hosts: a line "name slots=8" for each machine
# Each process gets its share of the machine's cores (OMP_NUM_THREADS, --threads: another number). PROGRAM names another
# trainer than ./train_gpt2. Ctrl-C, SIGTERM or SIGUSR1: all finish the step, rank 0 saves, as without MPI.
. "$(dirname "$0")/usage.sh"
. "$(dirname "$0")/recipe.sh"
hostfile="" program=${PROGRAM:-./train_gpt2}
[ "${1:-}" = --hostfile ] && { hostfile=${2:-}; [ -r "$hostfile" ] || refuse "cannot read the hostfile \"$hostfile\""; shift 2; }
case ${1:-} in '' | *[!0-9]* | 0) refuse "expected a number of processes first, found '${1:-}'; --help shows how it is called" ;; esac
ranks=$1
shift
[ "${1:-}" = -- ] && shift
command -v mpirun >/dev/null 2>&1 || refuse "no mpirun; install openmpi-bin and libopenmpi-dev, then run make again"
[ -x "$program" ] || refuse "$program is missing; run make"

# Not bound to single cores, mpirun's own way: the trainer's threads share the machine.
set -- --bind-to none -np "$ranks" "$program" "$@"
[ -n "${OMP_NUM_THREADS:-}" ] && set -- -x OMP_NUM_THREADS "$@"
if [ -n "$hostfile" ]; then
    # a machine that vanishes is noticed after half a minute instead of five
    set -- --hostfile "$hostfile" --mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 4 "$@"
else
    [ "$ranks" -le "$(nproc)" ] || set -- --oversubscribe "$@"
fi
[ "$(id -u)" != 0 ] || set -- --allow-run-as-root "$@" # as in containers
# mpiruns that share a folder for their session files remove it under each other's feet: this one has its own.
session=$(mktemp -d) || refuse "cannot make a folder for mpirun's session in ${TMPDIR:-/tmp}"
trap 'rm -rf "$session"' EXIT
# Ranks that wait let others run; mpirun keeps its essays about exit codes to itself: the trainer has said what happened.
# It answers SIGTERM by killing everything a second later; SIGUSR1 it hands on.
run_until_saved mpirun --quiet --mca mpi_yield_when_idle 1 --mca "orte_${hostfile:+local_}tmpdir_base" "$session" "$@"
