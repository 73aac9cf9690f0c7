# For tests of train_gpt2 as a program, to be read by `.` from the repository's root: a folder $work that goes at the end, with
# a run in the background ($running) if there is one; checks; tiny shards; running the trainer and looking at what it left.
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
running=""
trap '[ -z "$running" ] || kill -9 "$running" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
# Models this small spend their time waiting; without this, threads that spin would slow each other on a busy machine.
export OMP_WAIT_POLICY=passive
. scripts/checks.sh
. scripts/tiny_shard.sh
sizes="--layers 2 --heads 2 --width 16 --context 32 --vocab 61"

train() { # options; standard output and error go to $work/out and $work/err
    ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null
}
works() { # name, options: exit code 0 and nothing but warnings on standard error
    name=$1
    shift
    train "$@"
    code=$?
    if [ "$code" = 0 ] && ! grep -qv ': warning: ' "$work/err"; then pass; else fail "$name" "exit code $code" "$(cat "$work/err")"; fi
}
saved_steps() { # run: the steps of its checkpoints in one line
    find "$1" -maxdepth 1 -name 'step_*' 2>/dev/null | sed -n 's/.*step_0*\([0-9][0-9]*\)$/\1/p' | sort -n | tr '\n' ' ' | sed 's/ $//'
}
step_lines() { # run: its step lines without the fields that tell the time
    sed -n '/"type": "step"/s/, "ms":.*//p' "$1/metrics.jsonl"
}
last_step() { step_lines "$1" 2>/dev/null | sed -n '$s/.*"step": \([0-9]*\),.*/\1/p'; }
check_same_run() { # name run run step: weights, moments, and what the metrics say of each step
    check_same_file "$1: weights" "$2/$4/model.safetensors" "$3/$4/model.safetensors"
    check_same_file "$1: moments" "$2/$4/optimizer.safetensors" "$3/$4/optimizer.safetensors"
    step_lines "$2" >"$work/steps_a"
    step_lines "$3" >"$work/steps_b"
    check_same_file "$1: metrics" "$work/steps_a" "$work/steps_b"
}
wait_for_steps() { # run step: until its metrics have come so far, 20 seconds at most
    for _ in $(seq 400); do
        now=$(last_step "$1")
        [ "${now:-0}" -ge "$2" ] && return 0
        sleep 0.05
    done
    fail "waiting for step $2 of $1" "found step ${now:-0}, and on standard error: $(cat "$work/background_err")"
}
end_run() { # signal, or "" to wait: ends the run in the background; $code is its exit code
    [ -z "$1" ] || kill "-$1" "$running"
    wait "$running" 2>/dev/null
    code=$?
    running=""
}
