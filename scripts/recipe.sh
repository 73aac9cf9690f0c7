# For scripts, to be read by `.` and used from the repository's root: what is trained, on what, and where it may go.
quick_recipe() { grep -v '^#' scripts/recipe.txt | tr '\n' ' ' | sed 's/ $//'; }
require_attention() { # name
    [ -x ./train_gpt2 ] || refuse "./train_gpt2 is missing; run make"
    ./train_gpt2 --attention list | grep -q "^$1 " ||
        refuse "expected one of $(./train_gpt2 --attention list | awk '{printf "%s%s", sep, $1; sep = ", "}') as the attention, found '$1'"
}
# What is there, a run or data, is somebody's work and stays: prints NAME, or NAME_2, NAME_3 ... that nothing has yet.
free_name() { # name
    free=$1 number=1
    while [ -e "$free" ] || [ -L "$free" ]; do
        number=$((number + 1))
        free=$1_$number
    done
    echo "$free"
}
gpu_count() { nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true; }
option_value() { # --long, -short, what it is otherwise, then the words of a command line: the last value of the option
    long=$1 short=$2 value=$3 previous=""
    shift 3
    for word in "$@"; do
        case $previous in "$long" | "$short") value=$word ;; esac
        case $word in "$long"=*) value=${word#*=} ;; esac
        previous=$word
    done
    printf '%s\n' "$value"
}
# Runs a trainer, or what starts it, and returns its exit code. A signal that would end this script is handed on as SIGUSR1,
# upon which a trainer finishes its step and saves, and which mpirun passes to all ranks; then the end is waited for.
run_until_saved() { # command
    "$@" &
    child=$!
    trap 'kill -USR1 $child' INT TERM USR1
    code=0
    wait $child || code=$?
    while kill -0 $child 2>/dev/null; do # the signal ended the wait, not the child
        code=0
        wait $child || code=$?
    done
    trap - INT TERM USR1
    return $code
}
