# For tests of many processes, to be read by `.` after scripts/checks.sh: data and options of a small run, mpirun, and how
# two runs are compared. Needs $work, a folder of the test's own, and ./train_gpt2.
. scripts/tiny_shard.sh
mkdir "$work/train" || exit 1
make_shard "$work/train/a.bin" 1500 1
make_shard "$work/train/b.bin" 377 2
make_shard "$work/val.bin" 200 3
data="--train $work/train --val $work/val.bin"
sizes="--layers 2 --heads 2 --width 16 --context 32 --vocab 61 --sequence 16 --init-std 0.05 --warmup 3 --lr 1e-3"
small="$data $sizes --batch 6 --dropout 0.1 --val-every 10 --quiet"

# mpirun that ends in a minute whatever happens; standard output and error go to $work/out and $work/err, with $slot
# after their names. Its files go there too: mpiruns that share a folder remove it under each other's feet.
slot=""
ranks() { # number, program, arguments
    number=$1
    shift
    mkdir -p "$work/mpi$slot"
    timeout -k 5 60 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
        --mca orte_tmpdir_base "$work/mpi$slot" -np "$number" "$@" >"$work/out$slot" 2>"$work/err$slot" </dev/null
}
check_worked() { # name, exit code, standard error: nothing but warnings
    if [ "$2" = 0 ] && ! grep -qv ': warning: ' "$3"; then pass; else fail "$1" "exit code $2" "$(cat "$3")"; fi
}
works() { # name, then a command
    name=$1
    shift
    "$@"
    check_worked "$name" $? "$work/err"
}
alone() { ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null; }

# ---- two runs beside each other

losses() { # run: the losses of its steps and validations
    sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl"
}
check_losses() { # name run run [lines]: 20 steps and 2 validations; a difference that is no number fails
    losses "$2" >"$work/losses_a"
    losses "$3" >"$work/losses_b"
    worst=$(paste -d ' ' "$work/losses_a" "$work/losses_b" | awk -v lines="${4:-22}" '
        { d = $1 > $2 ? $1 - $2 : $2 - $1; if (!(d <= 1e-5 * $1)) bad = bad " " NR ": " $1 " " $2; n++ }
        END { print n == lines && !bad ? "close" : n " lines," bad }')
    check_equal "$1" "$worst" close
}
check_same_run() { # name run run step
    check_same_file "$1: weights" "$2/$4/model.safetensors" "$3/$4/model.safetensors"
    check_same_file "$1: moments" "$2/$4/optimizer.safetensors" "$3/$4/optimizer.safetensors"
}
check_tensors() { # name run run step [bound]: every weight and moment, within 2e-5; the files' headers are the same
    for file in model optimizer; do
        header=$(od -An -tu4 -N4 "$2/$4/$file.safetensors" | tr -d ' ')
        for run in "$2" "$3"; do
            tail -c +$((header + 9)) "$run/$4/$file.safetensors" | od -An -v -tf4 -w4 >"$run.numbers"
        done
        worst=$(paste "$2.numbers" "$3.numbers" | awk -v bound="${5:-2e-5}" '
            { d = $1 > $2 ? $1 - $2 : $2 - $1; if (!(d <= bound)) bad++; if (!(d <= most)) most = d; n++ }
            END { print (n > 5000 && !bad ? "close" : bad + 0 " of " n " differ, by " most) }')
        check_equal "$1: $file" "$worst" close
    done
}

# ---- ranks that die

wait_for_checkpoint() { # run
    for _ in $(seq 600); do
        ls -d "$1"/step_*[0-9] >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    fail "waiting for a checkpoint of $1" "$(cat "$work/err")"
}
process_of_rank() { # rank, run: its process id
    for directory in /proc/[0-9]*; do
        { tr '\0' ' ' <"$directory/cmdline"; } 2>/dev/null | grep -q "^[^ ]*/train_gpt2 .*$2" || continue
        { tr '\0' '\n' <"$directory/environ"; } 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && basename "$directory"
    done
}
start_run() { # run, ranks, program, options: one that does not end by itself
    run=$1 number=$2
    shift 2
    # shellcheck disable=SC2086
    ranks "$number" "$@" $small --steps 1G --out "$run" &
    running=$!
    wait_for_checkpoint "$run"
}
a_rank_hangs() { # program, options
    rm -rf "$work/hung"
    start_run "$work/hung" 3 "$@" --rank-timeout 2
    hung=$(process_of_rank 1 "$work/hung")
    kill -STOP "$hung"
    wait $running
    check_equal "hung: exit code" $? 1
    running=""
    kill -KILL "$hung" 2>/dev/null
    check_equal "hung: one message, which names the rank" \
        "$(grep -c "for rank 1 (process $hung, which is stopped) (.*): it is dead or hangs, and all end" "$work/err")" 1
}
a_rank_dies() { # program, options
    rm -rf "$work/killed"
    start_run "$work/killed" 3 "$@"
    kill -9 "$(process_of_rank 1 "$work/killed")"
    began=$(date +%s)
    wait $running
    running=""
    check_equal "killed: all ranks end within 20 s" "$(($(date +%s) - began < 20))" 1
    check_contains "killed: the message names the rank" "train_gpt2: rank 1 (process" "$work/err"
    check_equal "killed: one message" "$(grep -c 'was killed; all ranks end' "$work/err")" 1
    alone --resume "$work/killed" --steps 0 --quiet
    check_equal "killed: the last checkpoint is intact" "$?$(cat "$work/err")" 0
}
