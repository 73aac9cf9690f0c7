#!/bin/sh
# make bench: every benchmark, one after the other, on a machine that should have nothing else to do (about 40 minutes).
#   dev/bench/run.sh [train|memory|attention|scaling|decode|data ...]     only these
# Peers go into a Python environment made for this alone (build/venv-bench, installed once); BENCH_PYTHON=/path/to/python
# uses another. What is printed also goes to build/bench.txt; the table at the end, with the machine's data, to
# docs/results/bench.md when all parts ran.
cd "$(dirname "$0")/../.." || exit 1
parts=${*:-train memory attention scaling decode data}
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
make --no-print-directory -s all build/bench_attention_softmax build/bench_attention_linear \
    build/bench_attention_scaling build/bench_loader || exit 1
BENCH_RESULTS=$PWD/build/bench.jsonl
export BENCH_RESULTS
: >"$BENCH_RESULTS"
machine="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(uname -sr), $(date +%Y-%m-%d)"

train() { "$python" dev/bench/bench_train_pytorch.py "$@"; }
bench_train() {
    train --batch 4 --sequence 64 --peers eager --wanted 1.4
    train --batch 4 --sequence 64 --peers compile --wanted 1.3
    train --batch 4 --sequence 256 --rounds 4 --steps 4 --skip 1 --peers eager --wanted 1.4
    train --batch 4 --sequence 256 --rounds 4 --steps 4 --skip 1 --peers compile --wanted 1.3
    train --batch 1 --sequence 1024 --rounds 4 --steps 4 --skip 1 --peers eager --wanted 1.4
    train --batch 1 --sequence 1024 --rounds 4 --steps 4 --skip 1 --peers compile --wanted 1.3
    train --model small --vocab 4096 --batch 4 --sequence 256 --steps 30 --wanted 2
    train --batch 1 --sequence 1024 --rounds 4 --steps 3 --skip 1 --attentions slay,softmax --peers none --wanted 0.95
    train --batch 1 --sequence 2048 --rounds 3 --steps 3 --skip 1 --attentions slay,softmax --peers none --wanted 1
}
bench_memory() {
    train --batch 4 --sequence 1024 --rounds 1 --steps 1 --skip 1
    train --batch 4 --sequence 1024 --rounds 1 --steps 1 --skip 1 --recompute blocks --peers none
}
bench_attention() {
    "$python" dev/bench/bench_attention_softmax.py
    "$python" dev/bench/bench_attention_linear.py
    build/bench_attention_linear
}
bench_scaling() {
    build/bench_attention_scaling --attentions softmax,yat,yat-spherical --to 16384 >build/scaling_quadratic.tsv
    build/bench_attention_scaling --attentions softmax,yat,yat-spherical --from 32768 --to 131072 --backward-to 0 \
        >>build/scaling_quadratic.tsv
    build/bench_attention_scaling --attentions uniform,elu,cosformer,favor,rff,slay --to 131072 --backward-to 131072 \
        >build/scaling_linear.tsv
    "$python" dev/bench/scaling_page.py build/scaling_quadratic.tsv build/scaling_linear.tsv \
        --out docs/results/attention_scaling --machine "$machine." && cat docs/results/attention_scaling.md
}
bench_decode() { "$python" dev/bench/bench_decode.py; }
bench_data() {
    build/bench_loader
    [ -r data/austen/train.txt ] || { echo "scripts/get_corpus.sh austen fetches the tokenizer's text"; return; }
    "$python" dev/bench/bench_tokenizer.py data/austen/train.txt
}

{
    echo "$machine"
    for part in $parts; do
        echo "== $part"
        "bench_$part"
    done
    echo "== all"
    "$python" dev/bench/results.py "$BENCH_RESULTS"
} 2>&1 | tee build/bench.txt
mkdir -p docs/results
[ "$#" -gt 0 ] || "$python" dev/bench/results.py "$BENCH_RESULTS" --markdown --machine "$machine." >docs/results/bench.md
