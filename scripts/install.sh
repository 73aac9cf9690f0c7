#!/bin/sh
# Installs the programs that are built here, a man page for each and completion for bash, zsh and fish, both made by the
# programs from their own tables of options. Programs for a GPU go along when they are there.
#   scripts/install.sh [PREFIX]            default: /usr/local
#   scripts/install.sh --remove [PREFIX]   removes exactly those files
# DESTDIR=/tmp/package puts that before every path, for packages.
. "$(dirname "$0")/usage.sh"
remove=""
[ "${1:-}" != --remove ] || { remove=yes && shift; }
take_words 0 1 "$@"
cd "$(dirname "$0")/.." || exit 1
set -eu
root=${DESTDIR:-}${1:-/usr/local}
programs=$(sed -n 's/^PROGRAMS := //p' Makefile)
gpu_programs=$(for program in train_gpt2 sample_gpt2 evaluate; do echo "${program}_cuda ${program}_cuda_fp32"; done)
share=$root/share
trap 'rm -f "${temporary:-}"' EXIT

for program in $programs; do
    [ -x "./$program" ] || refuse "./$program is missing; run make"
done
place() { # mode file: standard input as that file, whole or not at all; with --remove the file goes
    [ -z "$remove" ] || { rm -f "$2" && return; }
    mkdir -p "${2%/*}"
    temporary=$2.tmp.$$
    cat >"$temporary" && [ -s "$temporary" ] || refuse "$2: nothing to write there"
    chmod "$1" "$temporary" && mv "$temporary" "$2"
}
commands_of() { "./$1" --help | sed -n '/^commands$/,/^$/s/^  \([a-z]*\) .*/\1/p'; }
table() { # format program: what the program says of its options; one for a GPU has those of the program for the CPU
    cpu=${2%_fp32} && cpu=${cpu%_cuda}
    "./$cpu" "--help=$1" | sed "s/$cpu/$2/g"
}
place_pages() { # program
    table man "$1" | place 644 "$share/man/man1/$1.1"
    table zsh "$1" | place 644 "$share/zsh/site-functions/_$1"
    { table bash "$1"; for command in $(commands_of "${1%_cuda*}"); do "./$1" "$command" --help=bash; done; } |
        place 644 "$share/bash-completion/completions/$1"
    { table fish "$1"; for command in $(commands_of "${1%_cuda*}"); do "./$1" "$command" --help=fish; done; } |
        place 644 "$share/fish/vendor_completions.d/$1.fish"
    for command in $(commands_of "${1%_cuda*}"); do
        "./$1" "$command" --help=man | place 644 "$share/man/man1/$1-$command.1"
        "./$1" "$command" --help=zsh | place 644 "$share/zsh/site-functions/_$1_$command"
    done
}
for program in $programs $gpu_programs; do
    [ -x "./$program" ] || [ -n "$remove" ] || continue
    [ ! -x "./$program" ] || place 755 "$root/bin/$program" <"./$program"
    [ -x "./$program" ] || rm -f "$root/bin/$program"
    place_pages "$program"
done
if [ -n "$remove" ]; then echo "removed from $root"; else echo "installed in $root: $programs"; fi
