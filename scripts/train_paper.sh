#!/bin/sh
# The paper's recipe for GPT-2 small in one command: AdamW, learning rate 1e-4, weight decay 0.01, batch 32 ramped from 8
# over 500 steps, dropout 0.1, context 1024, about 10,500 steps.
#   scripts/train_paper.sh ATTENTION [options of train_gpt2]
# Shards of FineWeb come from scripts/get_corpus.sh fineweb. The paper used 8 GPUs with 32 rows each; --batch 256 makes as
# many tokens per step here. It trains on the GPU where there is one and make cuda has built train_gpt2_cuda; PROGRAM names
# another trainer.
set -eu
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
. scripts/recipe.sh
case ${1:-} in '' | -*) refuse "expected an attention first, found '${1:-}'; --help shows how it is called" ;; esac
require_attention "$1"
attention=$1
shift
program=${PROGRAM:-./train_gpt2}
[ -n "${PROGRAM:-}" ] || [ ! -x ./train_gpt2_cuda ] || [ "$(gpu_count)" = 0 ] || program=./train_gpt2_cuda
exec "$program" --model gpt2 --attention "$attention" --train 'data/fineweb/*_train_*.bin' \
    --val 'data/fineweb/*_val_*.bin' --sequence 1024 --batch 32 --batch-start 8 --batch-ramp 500 --micro-batch 4 \
    --steps 10500 --lr 1e-4 --schedule linear --warmup 500 --final-lr 0 --weight-decay 0.01 --clip 1 --beta1 0.9 \
    --beta2 0.95 --dropout 0.1 --out "runs/paper_$attention" "$@"
