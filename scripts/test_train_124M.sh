#!/bin/sh
# Tests of scripts/train_124M.sh: what it refuses and says, the options that it gives to one process and to mpirun, and a
# small run from data to evaluation by the GPU's programs of the harness: stopped by a signal, continued, evaluated, and on
# two ranks. Needs the programs; without the harness's the CPU's take their place. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
root=$PWD
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
. scripts/checks.sh
. scripts/tiny_shard.sh
unset DATA PROGRAM SAMPLER ATTENTION
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
stand_in() { # path; the script is standard input
    { echo '#!/bin/sh' && cat; } >"$1" && chmod +x "$1"
}

# A tree of its own, where nothing is built; two GPUs; programs that say what they are asked for.
tree=$work/tree
mkdir -p "$tree" "$work/bin" "$work/shards" && cp -r scripts "$tree/" && cd "$tree" || exit 1
make_shard "$work/shards/fineweb_train_000001.bin" 20000 1
make_shard "$work/shards/fineweb_val_000000.bin" 1000 3
printf 'printf "GPU 0: one\\nGPU 1: two\\n"\n' | stand_in "$work/bin/nvidia-smi"
printf 'echo "mpirun $*"\n' | stand_in "$work/bin/mpirun"
stand_in "$work/bin/make" <<'END_OF_MAKE'
echo "make $*"
printf '#!/bin/sh\necho "train $*"\nmkdir -p runs/gpt2_124M_softmax/step_00018865\n' >train_gpt2_cuda
printf '#!/bin/sh\necho "sample $*"\n' >sample_gpt2_cuda
chmod +x train_gpt2_cuda sample_gpt2_cuda
END_OF_MAKE
PATH=$work/bin:$PATH

# ---- refused in one line, before anything is made
check_refused "no number" "expected a number of GPUs first, found ''" scripts/train_124M.sh
check_refused "none" "found '0'" scripts/train_124M.sh 0
check_refused "an option first" "found '--attention'" scripts/train_124M.sh --attention slay
check_refused "other weights" "--init: it begins with random weights" scripts/train_124M.sh 1 --init gpt2_124M.bin
check_refused "no shards: how to fetch them" "scripts/get_corpus.sh fineweb --shards 103 (20 GB)" scripts/train_124M.sh 1
check_refused "no shards: how to make them" "DATA=data/mine scripts/train_124M.sh 2" scripts/train_124M.sh 2
check_refused "no shards where DATA says" "in $work/bin;" env DATA="$work/bin" scripts/train_124M.sh 1
check_refused "too few GPUs" "expected 3 GPUs, found 2" env DATA="$work/shards" scripts/train_124M.sh 3
check_refused "a program that is not there" "./none is missing" env DATA="$work/shards" PROGRAM=./none scripts/train_124M.sh 1
check_equal "none of these made anything" "$(ls)" scripts

# ---- the recipe
mkdir data && ln -s "$work/shards" data/fineweb
scripts/train_124M.sh 1 --weight-decay 0.2 >"$work/out" 2>&1
check_equal "one GPU: exit code" "$?" 0
check_contains "what is missing is built" "make cuda" "$work/out"
recipe="--model gpt2 --attention softmax --train data/fineweb/*_train_*.bin --val data/fineweb/*_val_*.bin --sequence 1024 \
--batch 512 --steps 18865 --lr 6e-4 --schedule cosine --warmup 700 --final-lr 0 --weight-decay 0.1 --clip 1 --beta1 0.9 \
--beta2 0.95 --val-every 250 --val-tokens 10485760 --save-every 1000 --out"
check_equal "llm.c's recipe, one's own options last" "$(grep '^train ' "$work/out")" \
    "train $recipe runs/gpt2_124M_softmax --weight-decay 0.2"
check_contains "then the whole validation" "sample runs/gpt2_124M_softmax --loss data/fineweb/*_val_*.bin --no-begin" "$work/out"
check_contains "and why there is no text" "no text: data/gpt2.tiktoken is missing; scripts/get_gpt2_vocab.sh" "$work/out"
touch data/gpt2.tiktoken
scripts/train_124M.sh 2 >"$work/out" 2>&1
check_contains "two GPUs: ranks" "-np 2 ./train_gpt2_cuda --zero 1 $recipe runs/gpt2_124M_softmax --tokenizer data/gpt2.tiktoken \
--resume runs/gpt2_124M_softmax" "$work/out"
check_contains "a text" "sample runs/gpt2_124M_softmax --tokens 200" "$work/out"
check_equal "nothing is built again" "$(grep -c '^make' "$work/out")" 0
ln -s "$work/shards" data/fineweb10B
ATTENTION='slay*3,softmax:window=64' scripts/train_124M.sh 1 >"$work/out" 2>&1
check_contains "a list as the attention" "--attention slay*3,softmax:window=64 --train data/fineweb10B/" "$work/out"
check_contains "and its run's name" "--out runs/gpt2_124M_slay_3_softmax_window_64" "$work/out"

# ---- a small run, by the harness's programs
PATH=${PATH#*:}
case ${BUILD:-build} in /*) build=$BUILD ;; *) build=$root/${BUILD:-build} ;; esac
programs=$build/cuda_on_cpu/fast-bf16 steps=40
if [ ! -x "$programs/train_gpt2" ] || [ ! -x "$programs/sample_gpt2" ]; then
    skip "the GPU's programs" "they are not built; the CPU's run in their place"
    programs=$root steps=4000
fi
export DATA="$work/shards" PROGRAM="$programs/train_gpt2" SAMPLER="$programs/sample_gpt2"
cp "$root/dev/fixtures/tokenizer_small.tiktoken" "$work/shards/vocab.tiktoken"
small="--attention slay --layers 1 --heads 2 --width 16 --context 32 --sequence 32 --batch 4 --warmup 2 --val-every 0
    --save-every 0 --steps $steps"
train() { # GPUs, run
    # shellcheck disable=SC2086
    exec scripts/train_124M.sh "$1" $small --out "$work/$2" >"$work/out" 2>"$work/err" </dev/null
}
losses() { sed -n 's/.*"type": "step", "step": \([0-9]*\),.*"loss": \([0-9.]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
agree() { # number, number
    awk -v a="$1" -v b="$2" 'BEGIN { print (a > 0 && a - b < 0.005 && b - a < 0.005 ? "they agree" : a " and " b) }'
}
saved() { (cd "$work/$1" && echo step_*); }
last=$(printf '%08d' $steps)
(train 1 whole)
check_equal "a run: exit code" "$? $(cat "$work/err")" "0 "
check_equal "all steps" "$(saved whole)" "step_$last"
kept=$work/whole/evaluation_$last.txt
validated=$(sed -n 's/.*"type": "validation".*"loss": \([0-9.]*\),.*/\1/p' "$work/whole/metrics.jsonl")
check_equal "the evaluation's loss is the last validation's" \
    "$(agree "$(sed -n '1s/loss \([0-9.]*\) .*/\1/p' "$kept")" "$validated")" "they agree"
check_contains "over all of the data" "(999 tokens)" "$kept"
check_equal "and a text" "$([ "$(wc -c <"$kept")" -gt 200 ] && echo yes)" yes
cp -r "$work/whole" "$work/before"
(train 1 whole)
check_equal "over and called again: exit code" "$? $(cat "$work/err")" "0 "
check_contains "which is said" "is at step $steps already" "$work/out"
check_equal "and its checkpoint stays" "$(cd "$work/whole" && cksum step_*/*)" "$(cd "$work/before" && cksum step_*/*)"

train 1 stopped &
script=$!
while ! grep -q '"type": "step"' "$work/stopped/metrics.jsonl" 2>/dev/null && kill -0 $script; do sleep 0.05; done
kill $script
wait $script
check_equal "stopped: exit code" "$?" 143
check_contains "how to go on" "the same command goes on from the last checkpoint" "$work/err"
check_equal "saved on the way" "$([ "$(saved stopped)" != "step_$last" ] && ls -d "$work"/stopped/step_* | wc -l)" 1
(train 1 stopped)
check_equal "continued: exit code" "$? $(cat "$work/err")" "0 "
check_equal "as if it had not been stopped" "$(losses stopped)" "$(losses whole)"

has_header() { [ -n "$(find $("$root/dev/cuda_on_cpu/headers.sh" --find) -maxdepth 1 -name "$1" -print -quit 2>/dev/null)" ]; }
if ! command -v mpirun >/dev/null 2>&1 || ! grep -q DHAVE_MPI "$build/config.mk" 2>/dev/null; then
    skip "two ranks" "the programs were built without MPI, or there is no mpirun"
elif [ "$programs" != "$root" ] && ! has_header nccl.h; then
    skip "two ranks" "there is no nccl.h; dev/cuda_on_cpu/headers.sh fetches it"
else
    (train 2 two)
    check_equal "two ranks: exit code" "$? $(cat "$work/err")" "0 "
    check_contains "ZeRO" "zero 1" "$work/out"
    check_contains "ranks" "2 ranks" "$work/out"
    check_equal "the same losses as one" "$(agree "$(losses two | sed -n 's/^5 //p')" "$(losses whole | sed -n 's/^5 //p')")" \
        "they agree"
    check_contains "evaluated" "(999 tokens)" "$work/two/evaluation_$last.txt"
fi
summary
