#!/bin/sh
# --tensorboard and --sample-every: event files read by TensorBoard's own reader, after a run that was interrupted,
# continued, rolled back to an earlier checkpoint; samples that leave the run's bits as they are. `make test-interop` brings
# TensorBoard from PyPI into a Python environment of its own (build/venv-tensorboard), once; without it, or without a
# network, that part is skipped. Needs the programs. Last line: `N passed, N failed`.
#   INSTALL=yes scripts/test_tensorboard.sh     installs it
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 2
{
    ./stories --stories 40 --out "$work/text" && ./tokenize train --vocab 300 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/words" "$work/text"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }
small="--train $work/train.bin --val $work/val.bin $sizes --sequence 16 --batch 4 --warmup 3 --val-every 10 --schedule constant"
text="--train $work/words_train_000000.bin --tokenizer $work/vocab --layers 1 --heads 2 --width 16 --context 64 --batch 4 --warmup 3"
samples() { grep '"type": "sample"' "$1/metrics.jsonl"; }

# ---- samples

# shellcheck disable=SC2086
sampling() { # attention
    run="$work/sampled_$1"
    works "$1: without samples" $text --attention "$1" --dropout 0.1 --steps 12 --out "$run.plain"
    works "$1: with samples" $text --attention "$1" --dropout 0.1 --steps 12 --sample-every 4 --sample-tokens 20 --out "$run.whole"
    check_same_run "$1: samples change nothing" "$run.plain" "$run.whole" step_00000012
    check_equal "$1: samples" "$(samples "$run.whole" | wc -l | tr -d ' ')" 3
    works "$1: the first half" $text --attention "$1" --dropout 0.1 --steps 8 --sample-every 4 --sample-tokens 20 --schedule constant --out "$run.halves"
    works "$1: the second half" --resume "$run.halves" --steps 12
    works "$1: in one go" $text --attention "$1" --dropout 0.1 --steps 12 --sample-every 4 --sample-tokens 20 --schedule constant --out "$run.whole2"
    check_equal "$1: the same samples after a resumption" "$(samples "$run.halves")" "$(samples "$run.whole2")"
}
sampling softmax
sampling slay
# shellcheck disable=SC2086
works "a prompt" $text --steps 4 --sample-every 4 --sample-tokens 5 --sample-prompt 'The lantern' --out "$work/prompted"
check_contains "a sample begins with its prompt" '"type": "sample", "step": 4, "text": "The lantern' "$work/prompted/metrics.jsonl"
check_contains "a sample on the screen" "sample at step 4: The lantern" "$work/out"
# shellcheck disable=SC2086
works "a sample as long as a row" $text --steps 2 --sample-every 2 --sample-tokens 1000 --out "$work/long"
# shellcheck disable=SC2086
works "numbers without a vocabulary" $small --steps 10 --sample-every 10 --sample-tokens 4 --out "$work/numbers"
check_equal "numbers of tokens" "$(samples "$work/numbers" | grep -cE '"text": "[0-9 ]*"')" 1
# shellcheck disable=SC2086
check_refused "a prompt without a vocabulary" "give --tokenizer FILE" ./train_gpt2 $small --steps 2 --sample-every 1 --sample-prompt a --out "$work/none" --quiet

# ---- event files: of one run in one go, of another that was interrupted and continued twice, once from an older checkpoint

# shellcheck disable=SC2086
event_files() {
    options="$text --val $work/words_train_000000.bin --val-tokens 200 --val-every 5 --schedule constant --tensorboard --sample-every 10 --sample-tokens 12 --save-every 5 --keep 9"
    works "in one go" $options --steps 30 --out "$work/whole"
    works "the first part" $options --steps 20 --out "$work/parts"
    works "again from an older checkpoint" --resume "$work/parts/step_00000010" --steps 25
    works "and on" --resume "$work/parts" --steps 30
    check_equal "a file for each session" "$(find "$work/parts" -name 'events.out.tfevents.*' | wc -l | tr -d ' ')" 3
    check_equal "none without the option" "$(find "$work/prompted" -name 'events.out.tfevents.*')" ""
}
event_files

environment() { # makes or finds it; says why not
    python=build/venv-tensorboard/bin/python
    "$python" -c "import tensorboard" 2>/dev/null && return
    [ "${INSTALL:-}" ] || { why="no TensorBoard here; make test-interop installs it" && return 1; }
    command -v python3 >/dev/null || { why="no python3" && return 1; }
    mkdir -p build && python3 -m venv build/venv-tensorboard >"$work/log" 2>&1 || { why="python3 -m venv does not work here" && return 1; }
    "$python" -m pip install --quiet --retries 1 --timeout 15 tensorboard >"$work/log" 2>&1 || { why="pip cannot install tensorboard: no network?" && return 1; }
}
if environment; then
    "$python" - "$work/whole" "$work/parts" >"$work/read" 2>"$work/notes" <<'PYTHON'
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

failures = 0
def check(name, found, expected):
    global failures
    if found != expected:
        failures += 1
        print(f"FAIL {name}: found {found}, expected {expected}")

def read(run, reader=EventAccumulator):
    events = reader(run, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events

for run in sys.argv[1:]:
    events = read(run)
    lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    for tag, kind, key in (("train/loss", "step", "loss"), ("train/norm", "step", "norm"), ("train/lr", "step", "lr"),
                           ("train/tokens", "step", "tokens"), ("validation/loss", "validation", "loss"),
                           ("validation/bits_per_byte", "validation", "bits_per_byte")):
        expected = [(line["step"], line[key]) for line in lines if line["type"] == kind]
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        check(f"{run} {tag}: steps", [step for step, _ in found], [step for step, _ in expected])
        far = [pair for pair in zip(found, expected) if not abs(pair[0][1] - pair[1][1]) <= 1e-5 * (1 + abs(pair[1][1]))]
        check(f"{run} {tag}: values", far, [])
    samples = [(event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode())
               for event in read(run, PluginAccumulator).Tensors("sample/text_summary")]  # as the page shows them
    check(f"{run}: samples", samples, [(line["step"], line["text"]) for line in lines if line["type"] == "sample"])
    text = tensor_util.make_ndarray(events.Tensors("configuration/text_summary")[0].tensor_proto)[0].decode()
    check(f"{run}: configuration", json.loads(text), lines[0])
    metadata = events.SummaryMetadata("_hparams_/session_start_info")
    start = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    check(f"{run}: options", {name: value.number_value for name, value in start.hparams.items() if name in ("lr", "batch", "width")},
          {name: lines[0]["options"][name] for name in ("lr", "batch", "width")})
    check(f"{run}: attention", start.hparams["attention"].string_value, "softmax")
    check(f"{run}: first step", events.FirstEventTimestamp() > 1e9, True)
whole, parts = (read(run) for run in sys.argv[1:])
check("the same losses in one go and in parts", [event.value for event in parts.Scalars("train/loss")],
      [event.value for event in whole.Scalars("train/loss")])
print("read", failures)
PYTHON
    check_equal "TensorBoard's readers" "$(cat "$work/read"; grep -A 20 Traceback "$work/notes")" "read 0"
else
    skip "event files in TensorBoard's own reader" "$why"
fi
summary
