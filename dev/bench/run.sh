#!/bin/sh
# make bench: every benchmark, one after the other, on a machine that should have nothing else to do. Peers go into a
# Python environment made for this alone (build/venv-bench, installed once); BENCH_PYTHON=/path/to/python uses another.
# What is printed also goes to build/bench.txt.
cd "$(dirname "$0")/../.." || exit 1
python=${BENCH_PYTHON:-build/venv-bench/bin/python}
packages="torch numpy tiktoken regex"
if ! "$python" -c "import torch, numpy, tiktoken, regex" 2>/dev/null; then
    [ -z "${BENCH_PYTHON:-}" ] || { echo "$python: expected a Python with $packages" >&2; exit 1; }
    mkdir -p build && python3 -m venv build/venv-bench ||
        { echo "cannot make a Python environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
    echo "installing $packages into build/venv-bench (once; torch is large)"
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet $packages || { echo "cannot install $packages; is the network there?" >&2; exit 1; }
fi
make --no-print-directory -s all build/bench_attention_softmax build/bench_attention_linear build/bench_loader || exit 1
{
    echo "== machine"
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c
    uptime
    echo "== a training step of GPT-2 124M against PyTorch (batch 4, 64 tokens)"
    BENCH_PYTHON=$python dev/bench/bench_train_pytorch.sh
    echo "== softmax attention against PyTorch"
    "$python" dev/bench/bench_attention_softmax.py
    echo "== slay against chunked PyTorch"
    "$python" dev/bench/bench_attention_linear.py
    echo "== attentions by length, memory, decoding"
    build/bench_attention_linear
    echo "== loader"
    build/bench_loader
    if [ -r data/austen/train.txt ]; then
        echo "== tokenizer against tiktoken"
        "$python" dev/bench/bench_tokenizer.py data/austen/train.txt
    else
        echo "== tokenizer: scripts/get_corpus.sh austen fetches the text for its benchmark"
    fi
} 2>&1 | tee build/bench.txt
