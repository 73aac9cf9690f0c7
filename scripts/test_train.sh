#!/bin/sh
# Tests of the program train_gpt2 as its user meets it: error messages and exit codes, odd sizes, exact resumption,
# signals, the lock, numbers that are not finite. Needs ./train_gpt2; makes its own data. Each failure says what was
# compared. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh

# ---- data

mkdir "$work/train" || exit 1
make_shard "$work/train/a.bin" 1500 1 # shards of unequal size, none a multiple of a row
make_shard "$work/train/b.bin" 377 2
make_shard "$work/val.bin" 200 3
check_equal "a shard's size" "$(wc -c <"$work/train/b.bin" | tr -d ' ')" $((1024 + 2 * 377))

data="--train $work/train"
small="$data $sizes --sequence 16 --batch 4 --warmup 3"

# ---- refusals: exit code 1, one line that says what is wrong, nothing else

refuse() { # name, part of the message, options
    name=$1 part=$2
    shift 2
    train "$@"
    code=$?
    check_equal "$name: exit code" "$code" 1
    check_equal "$name: lines on standard error" "$(wc -l <"$work/err" | tr -d ' ')" 1
    check_contains "$name: message" "$part" "$work/err"
}
# shellcheck disable=SC2086
refusals() {
    out="--out $work/refused --quiet"
    refuse "unknown option" "unknown option --bacth; did you mean --batch?" $small $out --bacth 4
    refuse "missing value" "option --batch: expected a value after it, found nothing" $small $out --batch
    refuse "batch 0" "option --batch: expected a whole number from 1 to" $small $out --batch 0
    refuse "batch as text" "expected a whole number, found \"four\"" $small $out --batch four
    refuse "batch 1e9" "found 1e9" $small $out --batch 1e9
    refuse "negative batch" "found -3" $small $out --batch -3
    refuse "layers 0" "option --layers" $small $out --layers 0
    refuse "T above the context" "expected at most the context of 32, found 64" $small $out --sequence 64
    refuse "width not divisible" "16 channels cannot be split into 3 heads" $small $out --heads 3
    refuse "option of another attention" "not to softmax" $small $out --attention softmax --R 3
    refuse "unknown attention" "softmax" $small $out --attention sotfmax
    refuse "a stray word" "unexpected word" $small $out stray
    refuse "no data" "no training data" $sizes $out
    refuse "missing data" "$work/nowhere" $sizes $out --train "$work/nowhere"
    refuse "glob without a match" "$work/nowhere*" $sizes $out --train "$work/nowhere*"
    refuse "token outside the vocabulary" "a.bin" $small $out --vocab 40
    refuse "too few tokens for a row" "b.bin" $small $out --train "$work/train/b.bin" --context 512 --sequence 400
    refuse "no such run" "expected a run to resume, found no such directory" --resume "$work/nowhere" --quiet
    mkdir -p "$work/empty"
    refuse "a run without checkpoints" "$work/empty" --resume "$work/empty" --quiet
    refuse "resume and init" "exclude each other" $small $out --resume a --init b
    refuse "init that is no model" "$work/val.bin" $data $out --init "$work/val.bin"
    long=$(head -c 10240 /dev/zero | tr '\0' x)
    refuse "10 kB path for the data" "xxxx" $sizes $out --train "$long"
    refuse "10 kB path for the run" "xxxx" $small --quiet --out "$long"
    touch "$work/file"
    refuse "a file as the run" "$work/file" $small --quiet --out "$work/file"
    check_equal "no checkpoint was written by any of these" "$(saved_steps "$work/refused")" ""
}
refusals

# ---- what must work

# shellcheck disable=SC2086
odd_sizes() {
    works "T = 1" $small --sequence 1 --steps 3 --out "$work/t1"
    works "odd T" $small --sequence 13 --steps 3 --out "$work/t13"
    works "batch not divisible by the micro-batch" $small --batch 5 --micro-batch 2 --steps 3 --out "$work/b5"
    works "batch ramp" $small --batch 7 --batch-start 1 --batch-ramp 4 --micro-batch 3 --steps 6 --out "$work/ramp"
    check_equal "the ramp's tokens" "$(sed -n 's/.*"type": "step".*"tokens": \([0-9]*\),.*/\1/p' "$work/ramp/metrics.jsonl" | tr '\n' ' ')" \
        "16 48 112 192 304 416 "
    works "one layer, one head" $small --layers 1 --heads 1 --steps 2 --out "$work/one"
    works "a space in the path" $small --steps 2 --out "$work/a run"
    train --help
    check_equal "--help: exit code" $? 0
    check_contains "--help: lists the options" "--micro-batch" "$work/out"
    train --attention list
    check_equal "--attention list: exit code" $? 0
    check_contains "--attention list: softmax" "softmax" "$work/out"
    refuse "a run is there already" "a run is there already" $small --steps 2 --out "$work/one" --quiet
}
odd_sizes

# Validation only, and the same loss from a checkpoint as the run itself reported.
# shellcheck disable=SC2086
validation() {
    works "a run with validation" $small --val "$work/val.bin" --steps 4 --out "$work/validated"
    works "--steps 0" $small --val "$work/val.bin" --init "$work/validated" --sequence 16 --steps 0 --out "$work/looked"
    loss='s/.*"type": "validation".*"loss": \([0-9.]*\),.*"tokens": \([0-9]*\).*/\1 \2/p'
    check_equal "validation of a checkpoint" "$(sed -n "$loss" "$work/looked/metrics.jsonl")" \
        "$(sed -n "$loss" "$work/validated/metrics.jsonl")"
    check_equal "--steps 0 saves nothing" "$(saved_steps "$work/looked")" ""
    train $small --val "$work/train/b.bin" --steps 1 --quiet --out "$work/leak"
    check_contains "training data among the validation data" "warning" "$work/err"
}
validation

# ---- exact resumption: weights, moments, and what the metrics say of each step

# N + resume + N against 2N in one go, with dropout, a ramp, micro-batches, and more than one epoch.
# shellcheck disable=SC2086
resume_exactly() { # attention
    run="$work/resume_$1"
    options="$small --attention $1 --dropout 0.1 --batch 6 --micro-batch 4 --batch-start 2 --batch-ramp 12 --schedule constant"
    works "$1: in one go" $options --steps 30 --out "$run.whole"
    works "$1: the first half" $options --steps 15 --out "$run.halves"
    works "$1: the second half" --resume "$run.halves" --steps 30
    check_same_run "$1, resumed" "$run.whole" "$run.halves" step_00000030
    check_equal "$1: lines in the metrics" "$(step_lines "$run.halves" | wc -l | tr -d ' ')" 30
}
for attention in $(./train_gpt2 --attention list | cut -d ' ' -f 1); do resume_exactly "$attention"; done

# ---- Muon: exact too, and no optimiser's checkpoint is another's
# shellcheck disable=SC2086
muon() {
    options="$small --optimizer muon --muon-lr 0.01 --dropout 0.1 --batch 6 --micro-batch 4 --schedule constant"
    works "Muon in one go" $options --steps 20 --out "$work/muon.whole"
    works "Muon, the first half" $options --steps 10 --out "$work/muon.halves"
    works "Muon, the second half" --resume "$work/muon.halves" --steps 20
    check_same_run "Muon, resumed" "$work/muon.whole" "$work/muon.halves" step_00000020
    for what in "h.0.attn.c_attn.weight.m 1" "h.0.attn.c_attn.weight.v 0" "wte.weight.v 1"; do
        check_equal "Muon's file: ${what% *}" "$(grep -acF "\"transformer.${what% *}\"" "$work/muon.whole/step_00000020/optimizer.safetensors")" "${what#* }"
    done
    refuse "another optimiser" "option --optimizer: the run to resume has muon, found adamw; leave the option out" \
        --resume "$work/muon.halves" --steps 30 --optimizer adamw --force --quiet
    refuse "the other way round" "option --optimizer: the run to resume has adamw, found muon" \
        --resume "$work/resume_softmax.halves" --steps 40 --optimizer muon --force --quiet
    works "AdamW by name" --resume "$work/resume_softmax.halves" --steps 31 --optimizer adamw
    works "Muon from another's weights" $data --init "$work/muon.whole" --sequence 16 --batch 4 --steps 2 --out "$work/muon.from"
    works "Muon with --learn and a list" $small --optimizer muon --attention 'slay,softmax:window=8' --learn both --steps 3 --out "$work/muon.list"
}
muon

# ---- documents: a row that holds several of them has the losses that each has in a row of its own

val_loss() { sed -n 's/.*"type": "validation".*"loss": \([0-9.]*\),.*"tokens": \([0-9]*\).*/\1 \2/p' "$1/metrics.jsonl" | tail -n 1; }
# shellcheck disable=SC2086
documents() { # rows of 16 tokens; each file's last document ends with a row
    make_documents "$work/documents.bin" 4 5 11 16 1 9 6 2 14 16 8 8 3 5 7 1 1 15
    make_documents "$work/documents_val.bin" 5 7 9 16 1 15 12 4
    vocabulary="--tokenizer dev/fixtures/tokenizer_small.tiktoken"
    options="--train $work/documents.bin --val $work/documents_val.bin $vocabulary --layers 2 --heads 2 --width 16 --context 32"
    options="$options --sequence 16 --batch 4 --micro-batch 3 --warmup 3 --init-std 0.3"
    for attention in softmax slay 'slay:decay=learned,yat:window=5'; do
        run="$work/apart"
        rm -rf "$run".*
        works "$attention: documents apart" $options --attention "$attention" --document-mask --steps 8 --out "$run.whole"
        works "$attention: the first half" $options --attention "$attention" --document-mask --steps 4 --out "$run.half"
        works "$attention: the second half" --resume "$run.half" --steps 8
        check_same_run "$attention: documents apart, resumed" "$run.whole" "$run.half" step_00000008
        # In validation --documents gives each a row of its own.
        look="--val $work/documents_val.bin $vocabulary --init $run.whole --sequence 16 --batch 4 --steps 0"
        works "$attention: one document in a row" $look --documents --out "$run.alone"
        works "$attention: rows of documents" $look --document-mask --out "$run.packed"
        works "$attention: rows of text" $look --out "$run.text"
        check_equal "$attention: the loss of documents in rows" "$(val_loss "$run.packed")" "$(val_loss "$run.alone")"
        check_equal "$attention: the run's own" "$(val_loss "$run.whole")" "$(val_loss "$run.alone")"
        [ "$(val_loss "$run.text")" != "$(val_loss "$run.alone")" ] && pass || fail "$attention: attention across documents" "$(val_loss "$run.text")"
    done
    refuse "documents that were apart" "option --document-mask: the run to resume has yes, found no; leave the option out, or add --force" \
        --resume "$run.whole" --steps 9 --no-document-mask --quiet
    refuse "end-of-text is not known" "option --document-mask: which of the 61 tokens is end-of-text is not known" \
        $small --document-mask --quiet --out "$work/refused"
}
documents

# shellcheck disable=SC2086
resume_refusals() {
    half="$work/resume_softmax.halves"
    refuse "another batch" "the run to resume has 6, found 8" --resume "$half" --steps 40 --batch 8 --quiet
    refuse "another seed" "--seed" --resume "$half" --steps 40 --seed 4 --quiet
    refuse "another width" "--width" --resume "$half" --steps 40 --width 32 --quiet
    refuse "other data" "$work/train/b.bin" --resume "$half" --steps 40 --train "$work/train/b.bin" --quiet
    works "another batch, forced" --resume "$half" --steps 32 --batch 8 --force
    refuse "weights alone" "use --init" --resume "$work/weights_alone" --quiet
}
mkdir -p "$work/weights_alone"
cp "$work/resume_softmax.whole/step_00000030/config.json" "$work/resume_softmax.whole/step_00000030/model.safetensors" "$work/weights_alone"
resume_refusals

# The newest checkpoint is damaged: the one before is taken, the warning says so, and the end is the same.
# shellcheck disable=SC2086
damaged_checkpoint() {
    works "two checkpoints" $small --steps 20 --save-every 10 --keep 3 --out "$work/damaged"
    cp -r "$work/damaged" "$work/intact"
    printf '\377\377' | dd of="$work/damaged/step_00000020/model.safetensors" bs=1 seek=9000 conv=notrunc 2>/dev/null
    train --resume "$work/damaged" --steps 20 --quiet
    check_equal "damaged: exit code" $? 0
    check_contains "damaged: the warning names the file" "step_00000020" "$work/err"
    check_same_run "damaged, resumed from the one before" "$work/damaged" "$work/intact" step_00000020
}
damaged_checkpoint

# ---- signals and the lock

long="$small --dropout 0.1 --schedule constant --save-every 0"
start_long_run() { # run: one that ends by a signal only
    # shellcheck disable=SC2086
    ./train_gpt2 $long --steps 1G --quiet --out "$1" >/dev/null 2>"$work/background_err" </dev/null &
    running=$!
    wait_for_steps "$1" 5
}
# shellcheck disable=SC2086
signals() {
    start_long_run "$work/stopped"
    refuse "a second run in the same directory" "expected a directory that no other run uses, found process" $small --quiet --out "$work/stopped"
    end_run TERM
    check_equal "SIGTERM: exit code" "$code" 143
    check_equal "SIGTERM: the step it saved" "$(saved_steps "$work/stopped")" "$(step_lines "$work/stopped" | wc -l | tr -d ' ')"
    end=$(($(saved_steps "$work/stopped") + 20))
    works "resumed after SIGTERM" --resume "$work/stopped" --steps $end
    works "the same without a signal" $long --steps $end --out "$work/calm"
    check_same_run "resumed after SIGTERM" "$work/calm" "$work/stopped" "step_$(printf %08d $end)"
    start_long_run "$work/interrupted"
    end_run INT
    check_equal "SIGINT: exit code" "$code" 130
    works "resumed after SIGINT" --resume "$work/interrupted" --steps $(($(saved_steps "$work/interrupted") + 1))
    start_long_run "$work/killed"
    end_run KILL
    works "the lock of a killed run is free" $small --steps 2 --out "$work/killed"
}
signals

# ---- any number of threads gives the same bits, where products are our own (BLAS promises no such thing); the model is wide
# enough for its products to be shared out

# shellcheck disable=SC2086
threads_do_not_matter() { # attention
    wide="$data --layers 2 --heads 4 --width 128 --context 32 --vocab 61 --sequence 25 --batch 4 --attention $1 --steps 4"
    works "$1: one thread" $wide --threads 1 --out "$work/threads_$1.1"
    if ! grep -q '"blas": "own products' "$work/threads_$1.1/metrics.jsonl"; then
        skip "$1: the same bits with any number of threads" "products are BLAS's here"
        return
    fi
    for threads in 2 3 7; do
        works "$1: $threads threads" $wide --threads $threads --out "$work/threads_$1.$threads"
        check_same_run "$1, $threads threads" "$work/threads_$1.1" "$work/threads_$1.$threads" step_00000004
    done
}
for attention in $(./train_gpt2 --attention list | cut -d ' ' -f 1); do threads_do_not_matter "$attention"; done

# ---- numbers that are not finite: a weight decay that multiplies the weights by -9999 each step

not_finite="$small --lr 100 --weight-decay 100 --warmup 0 --clip 0 --schedule constant --steps 24 --save-every 1 --keep 30"
# shellcheck disable=SC2086
stop_on_nan() {
    train $not_finite --quiet --out "$work/stop"
    check_equal "stop: exit code" $? 1
    check_contains "stop: message" "is not finite" "$work/err"
    check_contains "stop: names what to do" "--on-nan skip" "$work/err"
    newest=$(printf 'step_%08d' "$(saved_steps "$work/stop" | tr " " "\n" | tail -n 1)")
    works "stop: the last checkpoint is finite ($newest)" $data --init "$work/stop/$newest" --steps 0 --out "$work/stop_look"
}
# shellcheck disable=SC2086
skip_on_nan() {
    train $not_finite --on-nan skip --nan-limit 30 --quiet --out "$work/skip"
    check_equal "skip: exit code" $? 0
    check_contains "skip: reported" '"event": "skipped"' "$work/skip/metrics.jsonl"
    last_good=$(step_lines "$work/skip" | sed -n '$s/.*"step": \([0-9]*\),.*/\1/p')
    good=$(printf 'step_%08d' "${last_good:-0}")
    for file in model optimizer; do
        check_same_file "skip: $file untouched since $good" "$work/skip/$good/$file.safetensors" "$work/skip/step_00000024/$file.safetensors"
    done
    works "skip: the last checkpoint is finite" $data --init "$work/skip/step_00000024" --steps 0 --out "$work/skip_look"
}
stop_on_nan
skip_on_nan

summary
