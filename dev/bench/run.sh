#!/bin/sh
# make bench: every benchmark, one after the other, on a machine that should have nothing else to do (about an hour).
#   dev/bench/run.sh [PART...]     only these: products train64 train256 train1024 small slay memory attention linear
#                                  scaling decode attentions data
# Each part's results stay in docs/results/bench/PART.jsonl, with the machine and the day, until it runs again: so the
# benchmarks can be run part by part. The table of all of them goes to docs/results/bench.md. What is printed goes to
# build/bench.txt too. Peers go into a Python environment made for this alone
# (build/venv-bench, installed once); BENCH_PYTHON=/path/to/python uses another.
. "$(dirname "$0")/../../scripts/usage.sh"
take_words 0 20 "$@"
cd "$(dirname "$0")/../.." || exit 1
all_parts="products train64 train256 train1024 small slay memory attention linear scaling decode attentions data"
parts=${*:-$all_parts}
for part in $parts; do
    case " $all_parts " in *" $part "*) ;; *) echo "no part $part; there are $all_parts" >&2; exit 1 ;; esac
done
python=${BENCH_PYTHON:-build/venv-bench/bin/python}
packages="torch numpy tiktoken regex safetensors xllamacpp"
if ! "$python" -c "import torch, numpy, tiktoken, regex, safetensors, xllamacpp" 2>/dev/null; then
    [ -z "${BENCH_PYTHON:-}" ] || { echo "$python: expected a Python with $packages" >&2; exit 1; }
    mkdir -p build && python3 -m venv build/venv-bench ||
        { echo "cannot make a Python environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
    echo "installing $packages into build/venv-bench (once; torch is large)"
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet $packages || { echo "cannot install $packages; is the network there?" >&2; exit 1; }
fi
make --no-print-directory -s all build/dev/bench/bench_attention_softmax build/dev/bench/bench_attention_linear \
    build/dev/bench/bench_attention_scaling build/dev/bench/bench_loader build/dev/bench/bench_gemm build/dev/bench/bench_machine \
    build/dev/bench/bench_decode_attentions || exit 1
mkdir -p docs/results/bench
machine="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(uname -sr | sed 's/-.*//'), $(date +%Y-%m-%d)"

bench_products() { build/dev/bench/bench_gemm; }
train() { "$python" dev/bench/bench_train_pytorch.py "$@"; }
bench_train64() { train --batch 4 --sequence 64 --steps 3 --most-rounds 12 --peers eager,compile --wanted 1.4,1.3 --start-up; }
bench_train256() { train --batch 4 --sequence 256 --steps 1 --most-rounds 10 --peers eager,compile --wanted 1.4,1.3; }
bench_train1024() { train --batch 1 --sequence 1024 --steps 1 --most-rounds 10 --peers eager,compile --wanted 1.4,1.3; }
bench_small() {
    for rows in 1 4; do
        train --model small --vocab 4096 --batch "$rows" --sequence 256 --steps $((20 / rows)) --wanted 2
    done
}
bench_slay() {
    train --batch 1 --sequence 1024 --steps 1 --most-rounds 8 --attentions slay,softmax --peers none --wanted 1.1
    train --batch 1 --sequence 2048 --rounds 4 --most-rounds 6 --steps 1 --attentions slay,softmax --peers none --wanted 1.3
    train --batch 1 --sequence 8192 --rounds 1 --most-rounds 1 --steps 1 --skip 1 --attentions slay,softmax --peers none --wanted 2.2
}
bench_memory() {
    train --batch 4 --sequence 1024 --rounds 1 --most-rounds 1 --steps 1 --skip 1 --wanted-memory 1.667
    train --batch 4 --sequence 1024 --rounds 1 --most-rounds 1 --steps 1 --skip 1 --recompute blocks --peers none
}
bench_attention() {
    "$python" dev/bench/bench_attention_softmax.py
    "$python" dev/bench/bench_attention_linear.py
}
bench_linear() { build/dev/bench/bench_attention_linear; }
bench_scaling() {
    build/dev/bench/bench_attention_scaling --attentions softmax,yat,yat-spherical --to 16384 >build/scaling_quadratic.tsv
    build/dev/bench/bench_attention_scaling --attentions softmax,yat,yat-spherical --from 32768 --to 131072 --backward-to 0 \
        >>build/scaling_quadratic.tsv
    build/dev/bench/bench_attention_scaling --attentions uniform,elu,cosformer,favor,rff,slay --to 131072 --backward-to 131072 \
        >build/scaling_linear.tsv
    "$python" dev/bench/scaling_page.py build/scaling_quadratic.tsv build/scaling_linear.tsv \
        --out docs/results/attention_scaling --machine "$machine." && cat docs/results/attention_scaling.md
}
bench_decode() { "$python" dev/bench/bench_decode.py; }
bench_attentions() { build/dev/bench/bench_decode_attentions; }
bench_data() {
    build/dev/bench/bench_loader
    "$python" dev/bench/bench_reading.py
    [ -r data/austen/train.txt ] || { echo "scripts/get_corpus.sh austen fetches the tokenizer's text"; return; }
    "$python" dev/bench/bench_tokenizer.py data/austen/train.txt
}

{
    echo "$machine"
    for part in $parts; do
        echo "== $part"
        # products are printed only; scaling writes a page of its own
        case $part in products | scaling) unset BENCH_RESULTS ;; *)
            BENCH_RESULTS=$PWD/docs/results/bench/$part.jsonl
            export BENCH_RESULTS
            echo "{\"machine\": \"$machine\"}" >"$BENCH_RESULTS" ;;
        esac
        "bench_$part"
    done
    echo "== all"
    results=$(for part in $all_parts; do [ ! -s "docs/results/bench/$part.jsonl" ] || echo "docs/results/bench/$part.jsonl"; done)
    # shellcheck disable=SC2086
    "$python" dev/bench/results.py $results
    # shellcheck disable=SC2086
    "$python" dev/bench/results.py $results --markdown >docs/results/bench.md
} 2>&1 | tee build/bench.txt
