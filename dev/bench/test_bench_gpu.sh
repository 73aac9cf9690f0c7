#!/bin/sh
# Tests of what `make bench-gpu` prints, with small sizes on the CPU, by dev/cuda_on_cpu: every table is there and ready
# to paste, and every version of every kernel is right. The times mean nothing here. Needs the programs of fast mode
# that `make test-cuda-cases` makes. Last line: `N passed, N failed`.
cd "$(dirname "$0")/../.." || exit 1
programs=$(cd "${BUILD:-build}/cuda_on_cpu" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # name, then a command that must succeed
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $name: $*"; tail -n 5 "$work/err"; fi
}
for program in train_gpt2 sample_gpt2; do
    ln -s "$programs/fast-bf16/$program" "$work/$program"
    ln -s "$programs/fast/$program" "$work/${program}_fp32"
done
cases="layernorm 9 48
layernorm_backward 9 48
linear_gelu 9 16 24
classifier 5 130
adamw 500
gradient_norm 5000
embedding_backward 2 9 20 11
attention_forward 1 softmax 1 40 2 16
attention_forward 2 yat 1 40 2 16
attention_forward 3 yat-spherical 1 40 2 16
attention_backward 1 softmax 1 40 2 16
attention_backward 3 yat 1 40 2 16
attention_decode 1 yat 1 40 2 16
attention_decode 3 softmax 1 40 2 16
linear_attention 1 1 40 2 16
linear_attention 4 1 40 2 16"
export OMP_NUM_THREADS=1 CASES="$cases"
export PROGRAMS="$programs/fast-bf16" TRAIN="$work/train_gpt2" SAMPLE="$work/sample_gpt2"
export ATTENTION_SIZES="32 2 128 2" CONTEXT=32 ROWS=2 STEPS=2 TOKENS=4
export MODEL="--layers 1 --heads 2 --width 16 --context 32 --threads 1"
dev/bench/bench_gpu.sh >"$work/out" 2>"$work/err" </dev/null
check "the exit code" test $? = 0

# A table's lines have as many cells as its head.
tables_are_whole() {
    awk -F '|' '!/^\|/ { cells = 0; next } !cells { cells = NF; tables++ } NF != cells { print; bad = 1 }
        END { exit bad || tables != 6 }' "$work/out"
}
check "six tables, all whole" tables_are_whole
rows() { grep -c "$1" "$work/out"; }
number='[0-9][0-9.]*'
for attention in softmax yat yat-spherical elu cosformer favor slay; do
    check "$attention: passes at five lengths" \
        test "$(rows "^| $attention | [0-9]* | $number | $number | $number | own kernels |$")" = 5
    check "$attention: decoding at five lengths" test "$(rows "^| $attention | [0-9]* | $number | $number | $number |$")" = 5
    check "$attention: training in both precisions" \
        test "$(rows "^| $attention | own kernels | [0-9]* | $number% | $number, $number | $number% |$")" = 2
    check "$attention: text in both precisions" test "$(rows "^| $attention | [0-9]* | [0-9]* | [0-9]* |$")" = 2
done
for case in $(echo "$cases" | cut -d ' ' -f 1 | uniq); do
    check "$case is there" grep -q "^$case: " "$work/out"
done
check "every version is right" test "$(rows "WRONG")" = 0
check "and says so" test "$(rows " ok$\|: right (")" -ge 27

# Who does the attention, and the means: a trainer whose steps take 1000, 1000, 100, 100, 100, 100, 100 and 160 ms.
mkdir -p "$work/stand_in/dev/bench"
ln -s /bin/true "$work/stand_in/dev/bench/bench_gpu"
cat >"$work/stand_in/train" <<'TRAINER'
#!/bin/sh
while [ "$1" != --out ]; do shift; done
mkdir -p "$2"
echo 'softmax       by cuDNN 9.19.0'
{
    echo '{"type": "configuration", "machine": {"gflops": 1000}}'
    for ms in 1000 1000 100 100 100 100 100 160; do
        echo "{\"type\": \"step\", \"ms\": $ms, \"tokens_per_second\": $((64000 / ms)), \"gflops\": $((16000 / ms))}"
    done
} >"$2/metrics.jsonl"
TRAINER
chmod +x "$work/stand_in/train"
ln -s train "$work/stand_in/train_fp32"
CASES="" PROGRAMS="$work/stand_in" TRAIN="$work/stand_in/train" SAMPLE=/bin/true ATTENTIONS=softmax \
    dev/bench/bench_gpu.sh >"$work/out" 2>"$work/err" </dev/null
check "cuDNN is named, means and deviation are over the steps that count" \
    test "$(rows "^| softmax | cuDNN 9.19.0 | 582 | 20.3% | 100.0, 160.0 | 14.5% |$")" = 2
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
