#!/bin/sh
# GPT-2 124M on FineWeb, from data to evaluation, on N GPUs: llm.c's recipe, 18865 steps of 524288 tokens, any attention.
#   scripts/train_124M.sh N [options of train_gpt2]
#   scripts/train_124M.sh 8 --attention slay
# The run is runs/gpt2_124M_ATTENTION, or what --out says. The same command again goes on where the run stopped, exactly;
# of a run that is over it only repeats the evaluation: the loss over all validation shards, and a text, kept in the run
# as evaluation_STEP.txt. Shards are looked for in data/fineweb10B and data/fineweb; DATA names another folder that holds
# *_train_*.bin and *_val_*.bin and, where they are not GPT-2's tokens, vocab.tiktoken. PROGRAM and SAMPLER name other
# programs than ./train_gpt2_cuda and ./sample_gpt2_cuda, which are built where they are missing.
set -eu
. "$(dirname "$0")/usage.sh"
case ${1:-} in '' | *[!0-9]* | 0*) refuse "expected a number of GPUs first, found '${1:-}'; --help shows how it is called" ;; esac
gpus=$1
shift
cd "$(dirname "$0")/.."
. scripts/recipe.sh
for word in "$@"; do
    case $word in
    --init | --init=* | --resume | --resume=*) refuse "$word: it begins with random weights, or goes on with its own run" ;;
    esac
done
attention=$(option_value --attention -a "${ATTENTION:-softmax}" "$@")
run=$(option_value --out -o "runs/gpt2_124M_$(printf %s "$attention" | tr -c 'A-Za-z0-9_.-' _)" "$@")

# ---- data
has_shards() { ls "$1"/*_train_*.bin "$1"/*_val_*.bin >/dev/null 2>&1; }
data=${DATA:-data/fineweb10B}
[ -n "${DATA:-}" ] || has_shards "$data" || data=data/fineweb
[ -n "$(option_value --train -i '' "$@")" ] || has_shards "$data" || refuse "no shards *_train_*.bin and *_val_*.bin in ${DATA:-data/fineweb10B or data/fineweb}; fetch them \
with scripts/get_corpus.sh fineweb --shards 103 (20 GB), copy or link the fineweb10B that llm.c made into data/, or make some of \
your own text with scripts/get_corpus.sh FOLDER --vocab 50257 --out data/mine, then DATA=data/mine scripts/train_124M.sh $gpus"
val=$(option_value --val -j "$data/*_val_*.bin" "$@")
vocabulary=data/gpt2.tiktoken
[ ! -e "$data/vocab.tiktoken" ] || vocabulary=$data/vocab.tiktoken
[ ! -e "$vocabulary" ] || set -- --tokenizer "$vocabulary" "$@"

# ---- programs
program=${PROGRAM:-./train_gpt2_cuda} sampler=${SAMPLER:-./sample_gpt2_cuda}
if [ -z "${PROGRAM:-}" ]; then
    found=$(gpu_count)
    [ "$found" -ge "$gpus" ] || refuse "expected $gpus GPUs, found $found (nvidia-smi -L); PROGRAM=./train_gpt2 trains on the CPU"
    [ -x "$program" ] && [ -x "$sampler" ] || make cuda
fi
for needed in "$program" "$sampler"; do
    [ -x "$needed" ] || refuse "$needed is missing; run make cuda"
done

# ---- training: the last of equal options counts
echo "== 1. training: GPT-2 124M with $attention attention, GPUs: $gpus ($run)"
set -- --model gpt2 --attention "$attention" --train "$data/*_train_*.bin" --val "$val" --sequence 1024 --batch 512 \
    --steps 18865 --lr 6e-4 --schedule cosine --warmup 700 --final-lr 0 --weight-decay 0.1 --clip 1 --beta1 0.9 --beta2 0.95 \
    --val-every 250 --val-tokens 10485760 --save-every 1000 --out "$run" "$@"
! ls -d "$run"/step_* >/dev/null 2>&1 || set -- "$@" --resume "$run"
code=0
if [ "$gpus" = 1 ]; then
    run_until_saved "$program" "$@" || code=$?
else
    run_until_saved env PROGRAM="$program" scripts/train_mpi.sh "$gpus" --zero 1 "$@" || code=$?
fi
if [ "$code" != 0 ]; then
    echo "${script_name%.*}: not finished; the same command goes on from the last checkpoint" >&2
    exit "$code"
fi

# ---- evaluation
step=$(ls -d "$run"/step_* | tail -n 1)
kept=$run/evaluation_${step##*_}.txt
echo
echo "== 2. evaluation ($kept)"
{
    "$sampler" "$run" --loss "$val" --no-begin --no-stats </dev/null
    if [ -e "$vocabulary" ]; then
        echo
        "$sampler" "$run" --tokens 200 --seed 1 --no-stats </dev/null
    else
        echo "no text: $vocabulary is missing; scripts/get_gpt2_vocab.sh fetches it"
    fi
} >"$kept.part"
mv "$kept.part" "$kept"
cat "$kept"
