#!/bin/sh
# Training steps here and in PyTorch; see bench_train_pytorch.py, which gets the options. PyTorch goes into a Python
# environment made for the benchmarks alone (build/venv-bench), installed once.
#   BENCH_PYTHON=/path/to/python dev/bench/bench_train_pytorch.sh     with an existing environment
. "$(dirname "$0")/../../scripts/usage.sh"
cd "$(dirname "$0")/../.." || exit 1
python=${BENCH_PYTHON:-build/venv-bench/bin/python}
if ! "$python" -c "import torch, numpy" 2>/dev/null; then
    [ -z "${BENCH_PYTHON:-}" ] || { echo "$python: expected a Python with torch and numpy" >&2; exit 1; }
    mkdir -p build || exit 1
    python3 -m venv build/venv-bench ||
        { echo "cannot make a Python environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
    echo "installing torch and numpy into build/venv-bench (once; torch is large)"
    "$python" -m pip install --quiet torch numpy || { echo "cannot install torch; is the network there?" >&2; exit 1; }
fi
make --no-print-directory -s train_gpt2 build/dev/bench/bench_machine || exit 1
exec "$python" dev/bench/bench_train_pytorch.py "$@"
