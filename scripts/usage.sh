# For scripts, to be read by `.` before anything else: --help prints the comment at the script's beginning, and what the
# script does not know is refused before it does anything.
script_name=${0##*/}
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script_path"; }
refuse() {
    echo "${script_name%.*}: $*" >&2
    exit 1
}
take_words() { # least, most, then the script's arguments: so many words, none of them an option
    least=$1 most=$2
    shift 2
    for word in "$@"; do
        case $word in -*) refuse "unknown option $word; --help shows how it is called" ;; esac
    done
    [ $# -ge "$least" ] || refuse "expected at least $least words, found $#; --help shows how it is called"
    [ $# -le "$most" ] || refuse "expected at most $most words, found $#; --help shows how it is called"
}
case $0 in /*) script_path=$0 ;; *) script_path=$PWD/$0 ;; esac
case ${1:-} in --help | -h) usage && exit 0 ;; esac
