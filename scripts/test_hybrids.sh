#!/bin/sh
# Tests of models that are more than one attention for all layers: lists, windows, decay, trained features, no positions.
# Training, resuming, starting from them, their trained numbers; text and losses beyond the context; the same on the
# GPU; what other formats refuse. Needs the programs; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh
build=${BUILD:-build}
for program in sample_gpt2 inspect export_gguf; do
    [ -x ./$program ] || { echo "./$program is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
done

make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 600 2
data="--train $work/train.bin --val $work/val.bin --val-every 4"
hybrid=slay:decay=learned:learn=both,softmax:window=4:decay=learned
common="--sequence 16 --batch 4 --warmup 2 --lr 1e-3 --init-std 0.1 --schedule constant --quiet"
small="$data $sizes $common"
whole="$small --attention $hybrid --positions none"

tensor() { # checkpoint, name: its numbers in one line; nothing when there is none
    header=$(od -An -tu8 -N8 "$1/model.safetensors" | tr -d ' ')
    # shellcheck disable=SC2046
    set -- "$1" $(head -c $((header + 8)) "$1/model.safetensors" | tail -c +9 |
        sed -n "s/.*\"transformer\.$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p")
    [ $# = 3 ] && od -An -v -tx4 -j $((header + 8 + $2)) -N $(($3 - $2)) "$1/model.safetensors" | tr -s ' \n' ' '
}
check_differs() { # name found other
    if [ -n "$2" ] && [ "$2" != "$3" ]; then pass; else fail "$1" "found \"$2\" twice"; fi
}

# ---- training, in one go and in halves; memory and threads that do not matter

# shellcheck disable=SC2086
same_bits() {
    last=step_00000008
    works "in one go" $whole --dropout 0.1 --steps 8 --out "$work/go"
    works "first half" $whole --dropout 0.1 --steps 4 --out "$work/halves"
    works "second half" --resume "$work/halves" --attention $hybrid --positions none --steps 8 --quiet
    check_same_run "resumed" "$work/go" "$work/halves" $last
    for recompute in cheap blocks; do
        works "--recompute $recompute" $whole --dropout 0.1 --steps 8 --recompute $recompute --out "$work/$recompute"
        check_same_run "--recompute $recompute" "$work/go" "$work/$recompute" $last
    done
    for threads in 1 2; do works "$threads threads" $whole --steps 8 --threads $threads --out "$work/threads.$threads"; done
    check_same_run "threads" "$work/threads.1" "$work/threads.2" $last
    check_refused "another list" "option --attention: the run to resume has $hybrid, found slay,softmax" \
        ./train_gpt2 --resume "$work/go" --attention slay,softmax --steps 9 --quiet
    check_refused "another decay" "option --decay: the run to resume has" ./train_gpt2 --resume "$work/go" --decay fixed --quiet
    check_refused "other positions" "option --positions: the run to resume has none, found learned" \
        ./train_gpt2 --resume "$work/go" --positions learned --quiet
    check_refused "a list for more layers" "expected a list for at most the model's 2 layers, found one for 3" \
        ./train_gpt2 $small --attention slay*2,softmax --out "$work/none"
}
same_bits

# ---- what the start and inspect say

# The weights, 2 x (V + 0 positions) and so on, and the trained numbers: decay twice, omega (3,2,8,16), anchors (8,8).
# shellcheck disable=SC2086
descriptions() {
    count=$((61 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16 + 2 * 2 + 3 * 2 * 8 * 16 + 8 * 8))
    ./train_gpt2 ${whole%--quiet*} ${whole#*--quiet} --steps 1 --out "$work/loud" >"$work/out" 2>"$work/err" </dev/null
    check_contains "the table: attention" "attention $hybrid" "$work/out"
    check_contains "the table: positions" "positions none" "$work/out"
    check_contains "the table: parameters" "parameters    $count," "$work/out"
    check "the table: memory" grep -q '^memory  *weights .* gradients .* attention constants .* in all' "$work/out"
    ./inspect "$work/loud/step_00000001" >"$work/out" 2>"$work/err"
    check_equal "inspect" "$?$(cat "$work/err")" 0
    check "inspect: the list" grep -q '^  attention  *slay,softmax$' "$work/out"
    check "inspect: its first entry" grep -q '^  attention.1.name  *slay$' "$work/out"
    check "inspect: its second entry" grep -q '^  attention.2.window  *4$' "$work/out"
    check "inspect: positions" grep -q '^  positions  *none$' "$work/out"
    check "inspect: parameters" grep -q "^  parameters  *$count\$" "$work/out"
    for name in "h.0.attn.decay *F32 *(2)" "h.1.attn.decay *F32 *(2)" "h.0.attn.omega *F32 *(3,2,8,16)" \
        "h.0.attn.anchor_vectors *F32 *(8,8)" "h.0.attn.decay.m *F32 *(2)" "h.0.attn.quad_nodes *F32 *(3)"; do
        check "inspect: $name" grep -q "^transformer.$name" "$work/out"
    done
    check_equal "constants have no moments" "$(grep -c 'quad_nodes.m\|wpe' "$work/out")" 0
}
descriptions

# ---- a model to start from

# Without a learning rate what was there stays; what was not is as in a new model.
# shellcheck disable=SC2086
starts() {
    still="--train $work/train.bin --batch 4 --sequence 16 --steps 1 --warmup 0 --lr 0 --weight-decay 0 --quiet"
    works "--init" $still --init "$work/go" --out "$work/again"
    check_same_file "--init: the same model" "$work/go/step_00000008/model.safetensors" "$work/again/step_00000001/model.safetensors"
    works "--init, resumed" --resume "$work/again" --attention slay,softmax --steps 2 --quiet
    check_refused "--init, resumed with another attention" "the run to resume has slay,softmax, found softmax" \
        ./train_gpt2 --resume "$work/again" --attention softmax --steps 3 --quiet
    check_refused "--init with an option" "option --decay: the attention is that of $work/go" \
        ./train_gpt2 $still --init "$work/go" --decay fixed --out "$work/none"
    check_refused "--init with positions" "expected other positions as asked for, found none" \
        ./train_gpt2 $still --init "$work/go" --positions learned --out "$work/none"
    works "a GPT-2" $small --steps 2 --out "$work/gpt2"
    check_refused "--init without positions" "expected other positions as asked for, found learned ones" \
        ./train_gpt2 $still --init "$work/gpt2" --positions none --out "$work/none"
    works "--init from a GPT-2" $still --init "$work/gpt2" --attention $hybrid --out "$work/made"
    works "a new one" $still $sizes --attention $hybrid --out "$work/new"
    for name in h.0.attn.decay h.1.attn.decay h.0.attn.omega h.0.attn.anchor_vectors h.0.attn.quad_nodes; do
        drawn=$(tensor "$work/made/step_00000001" $name)
        check_equal "--init from a GPT-2: $name is drawn" "$drawn" "$(tensor "$work/new/step_00000001" $name)"
        [ $name = h.0.attn.quad_nodes ] || check_differs "$name is trained" "$drawn" "$(tensor "$work/go/step_00000008" $name)"
    done
    for name in wte.weight wpe.weight h.1.attn.c_attn.weight; do
        check_equal "--init from a GPT-2: its $name" "$(tensor "$work/made/step_00000001" $name)" "$(tensor "$work/gpt2/step_00000002" $name)"
    done
    works "--init to a GPT-2's attention" $still --init "$work/made" --attention softmax --out "$work/back"
    check_same_file "and back" "$work/gpt2/step_00000002/model.safetensors" "$work/back/step_00000001/model.safetensors"
}
starts

# ---- trained numbers: weight decay leaves them alone, and a bad one is named

# The first step has the same gradient whatever the weight decay.
# shellcheck disable=SC2086
weight_decay() {
    for rate in 0 0.5; do
        works "weight decay $rate" $whole --warmup 0 --lr 0.01 --weight-decay $rate --steps 1 --out "$work/decay.$rate"
    done
    for name in h.0.attn.decay h.1.attn.decay h.0.attn.omega h.0.attn.anchor_vectors; do
        check_equal "weight decay leaves $name alone" "$(tensor "$work/decay.0.5/step_00000001" $name)" \
            "$(tensor "$work/decay.0/step_00000001" $name)"
    done
    check_differs "weight decay changes a matrix" "$(tensor "$work/decay.0.5/step_00000001" wte.weight)" \
        "$(tensor "$work/decay.0/step_00000001" wte.weight)"
}
weight_decay

# As another program would have written it: without checksums.
not_finite() { # tensor
    rm -rf "$work/foreign"
    mkdir "$work/foreign"
    cp "$work/go/step_00000008/config.json" "$work/foreign"
    file=$work/foreign/model.safetensors
    LC_ALL=C sed 's/"xxh3:/"none:/g' "$work/go/step_00000008/model.safetensors" >"$file"
    header=$(od -An -tu8 -N8 "$file" | tr -d ' ')
    at=$(head -c $((header + 8)) "$file" | tail -c +9 | sed -n "s/.*\"transformer\.$1\":{[^}]*\"data_offsets\":\[\([0-9]*\),.*/\1/p")
    printf '\0\0\300\177' | dd of="$file" bs=1 seek=$((header + 8 + at + 4)) conv=notrunc 2>/dev/null
    check_refused "NaN in $1" "tensor transformer.$1: expected finite numbers, found NaN at index 1" \
        ./sample_gpt2 "$work/foreign" --prompt-ids 1
    check_refused "NaN in $1: training" "tensor transformer.$1: expected finite numbers, found NaN at index 1" \
        ./train_gpt2 --train "$work/train.bin" --init "$work/foreign" --out "$work/none" --quiet
}
not_finite h.0.attn.decay
not_finite h.1.attn.decay
not_finite h.0.attn.omega

# ---- text and losses beyond the context

# shellcheck disable=SC2086
model() { # name, options: a model of 2 layers without positions whose numbers are large enough to tell texts apart
    name=$1
    shift
    works "a model: $name" $small --positions none --init-std 0.3 --lr 1e-2 --steps 20 "$@" --out "$work/$name"
}
model linear --attention slay --decay learned
model windowed --attention softmax --window 4
model mixed --attention slay:decay=fixed,softmax:window=4
model softmax --attention softmax
model cosformer --attention cosformer
sample() { # model, options
    model=$1
    shift
    ./sample_gpt2 "$work/$model" --prompt-ids 1,2,3 --no-stop --no-stats --threads 1 "$@" 2>"$work/err" </dev/null
}
peak_memory() { # model, tokens: in MB, and how many tokens it has written
    python3 - "$@" "$work" <<'END'
import resource, subprocess, sys
model, tokens, work = sys.argv[1:]
done = subprocess.run(["./sample_gpt2", f"{work}/{model}", "--prompt-ids", "1,2,3", "--tokens", tokens, "--no-stop", "--no-stats",
                       "--threads", "1"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, done.stdout.count(b","))
END
}
for model in linear windowed mixed; do
    short=$(peak_memory $model 1000)
    long=$(peak_memory $model 100000)
    check_equal "$model: 100000 tokens" "${long#* }" $((${short#* } + 99000))
    check_equal "$model: the memory of 1000 tokens, ${short% *} MB, and of 100000, ${long% *} MB" \
        "$((${long% *} <= ${short% *} + 3))" 1
    text=$(sample $model --tokens 300)
    for length in 304 1000 100000; do
        check_equal "$model: text with --length $length" "$(sample $model --tokens 300 --length $length)" "$text"
    done
done
text=$(sample softmax --tokens 300)
check_equal "softmax begins anew at the context" "$(sample softmax --tokens 300 --length 32)" "$text"
text=$(sample softmax --tokens 300 --length 304)
check_differs "softmax: a longer past is another text" "$text" "$(sample softmax --tokens 300)"
check_equal "softmax: text with --length 1000" "$(sample softmax --tokens 300 --length 1000)" "$text"
check_refused "--length beyond learned positions" "expected at most the context of 32 tokens, found 33: the model has learned positions" \
    ./sample_gpt2 "$work/gpt2" --prompt-ids 1 --length 33
check_refused "--length beyond cosformer's angles" "expected at most the context of 32 tokens, found 33: the attention knows no later" \
    ./sample_gpt2 "$work/cosformer" --prompt-ids 1 --length 33
check_equal "--length within the context" "$(sample gpt2 --tokens 20 --length 32)" "$(sample gpt2 --tokens 20)"

losses() { # model directory, length, then options: each target's loss with its number in the shard; nothing beyond its end
    directory=$1 length=$2
    shift 2
    ./sample_gpt2 "$directory" --loss "$work/val.bin" --no-begin --losses "$work/losses" "$@" >"$work/out" 2>"$work/err" </dev/null
    header=$(od -An -tu8 -N8 "$work/losses" | tr -d ' ')
    at=$(head -c $((header + 8)) "$work/losses" | tail -c +9 | sed 's/.*"losses":{[^}]*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/')
    od -An -v -tf4 -w4 -j $((header + 8 + ${at% *})) -N $((${at#* } - ${at% *})) "$work/losses" |
        awk -v T="$length" 'NR < 600 { print (NR - 1) % T, $1 }'
}
# Two layers of window 4 see 7 tokens: from the 7th of a row on, a loss is that of the same token in a row of any length.
losses "$work/windowed" 512 --length 512 >"$work/long"
losses "$work/windowed" 16 --length 16 >"$work/short"
check_losses() { # name, the first position that has to agree, how many of these there are, and how many others differ at least
    check_equal "$1" "$(paste -d ' ' "$work/long" "$work/short" | awk -v first="$2" -v least="$4" '
        { d = $2 - $4; agrees = d <= 2e-5 && -d <= 2e-5 }
        $1 < first || $3 < first { others += !agrees; next } { n++; bad += !agrees }
        END { print n + 0, bad + 0, (others >= least) }')" "$3 0 1"
}
check_losses "windowed: losses by position, in rows of 512 and of 16" 6 371 150
# The same model with a longer context needs no --length, and the trainer's forward pass has the same loss.
cp -r "$work/windowed/step_00000020" "$work/longer"
rm "$work/longer/state.json"
sed 's/"n_positions": 32/"n_positions": 512/' "$work/windowed/step_00000020/config.json" >"$work/longer/config.json"
losses "$work/longer" 512 >"$work/short"
check_losses "windowed: losses of a model with that context" 0 599 0
works "windowed: validation in rows of 512" --init "$work/longer" --train "$work/train.bin" --val "$work/val.bin" --batch 1 \
    --sequence 512 --steps 0 --quiet --out "$work/validated"
found=$(sed -n 's/.*"type": "validation".*"loss": \([0-9.]*\),.*/\1/p' "$work/validated/metrics.jsonl")
check_equal "windowed: the trainer's loss $found" "$(awk -v found="$found" '{ sum += $2; n++ }
    END { d = sum / n - found; print (n == 599 && d < 2e-6 && -d < 2e-6) }' "$work/long")" 1

# ---- what no other program can compute

exports() { # name, message, checkpoint
    check_refused "export_gguf: $1" "$2" ./export_gguf "$3" "$work/none.gguf"
}
exports "a list" "expected softmax attention, found several" "$work/mixed"
exports "a window" "expected softmax attention, found softmax with options" "$work/windowed"
exports "decay" "expected softmax attention, found slay" "$work/linear"
exports "no positions" "expected learned positions, found none" "$work/softmax"
# shellcheck disable=SC2086
works "softmax with decay" $small --decay fixed --steps 1 --out "$work/faded"
exports "softmax with decay" "expected softmax attention, found softmax with options" "$work/faded"
check_equal "export_gguf has written nothing" "$(find "$work" -name 'none.gguf*')" ""

# ---- the GPU's programs

gpu_trainer=$build/cuda_on_cpu/fast/train_gpt2
last_loss() { sed -n 's/.*"type": "step", "step": 4,.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl"; }
on_both() { # number, options: the losses of the fourth step agree, which has seen three updates of everything that is trained
    run=$1
    shift
    works "on the CPU: $*" "$@" --steps 4 --out "$work/cpu$run"
    check "on a GPU: $*" quietly "$gpu_trainer" "$@" --steps 4 --out "$work/gpu$run"
    check_equal "on a GPU: the losses of $*" "$(echo "$(last_loss "$work/cpu$run") $(last_loss "$work/gpu$run")" |
        awk '{ d = $1 - $2; print (NF == 2 && d < 2e-5 && -d < 2e-5) }')" 1
}
quietly() { "$@" >"$work/out" 2>"$work/err" </dev/null; }
# shellcheck disable=SC2086
if [ -x "$gpu_trainer" ]; then
    run=0
    for options in "--decay fixed" "--decay learned" "--window 8" "--attention yat --decay learned --window 5" \
        "--attention slay --learn both" "--attention slay --decay learned" "--attention slay --fusion flat" \
        "--attention elu --decay learned" "--attention slay,softmax" "--positions none"; do
        run=$((run + 1))
        on_both $run $small $options
    done
    on_both whole $whole
    check "on a GPU: resumed from the CPU" quietly "$gpu_trainer" --resume "$work/cpuwhole" --steps 6
    check "on the CPU: resumed from the GPU" quietly ./train_gpt2 --resume "$work/gpuwhole" --steps 6
else
    skip "hybrids on the GPU" "$gpu_trainer is not built"
fi

summary
