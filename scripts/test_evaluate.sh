#!/bin/sh
# Tests of the program evaluate and of --eval-every, as their user meets them: both formats of a set, any batch size, the
# trainer's numbers, ranks, the GPU's code on the CPU, bad input. Needs the programs; makes its own tiny model. What the
# numbers should be is known to scripts/interop_evaluate.py. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh

./stories --stories 120 --seed 3 --out "$work/text" >/dev/null 2>&1 || exit 1
./tokenize train --vocab 400 --out "$work/vocab" "$work/text" >/dev/null 2>&1 || exit 1
./tokenize encode --vocab-file "$work/vocab" --out "$work/shard" "$work/text" >/dev/null 2>&1 || exit 1

# Sentences of the stories and how they go on, among ends whose words stand backwards; every fourth answer is a letter.
awk 'function words(from, to, step,    i, text) {
        for (i = from; i != to + step; i += step) text = text (i != from ? " " : "") w[i]
        gsub(/["\\]/, "", text)
        return text }
    NF > 12 && n < 40 {
        split($0, w, " "); right = words(6, 9 + n % 3, 1); wrong = words(9 + n % 3, 6, -1); label = n % 3
        printf "{\"ctx\": \"%s\", \"endings\": [", words(1, 5, 1)
        for (k = 0; k < 3; k++) printf "%s\"%s\"", k ? ", " : "", k == label ? right : k == 2 - label % 2 ? words(12, 10, -1) : wrong
        printf "], \"label\": %s}\n", n++ % 4 ? label : "\"" substr("ABC", label + 1, 1) "\"" }' "$work/text" >"$work/set.jsonl"
check_equal "a set of forty" "$(wc -l <"$work/set.jsonl" | tr -d ' ')" 40

train() { # program, run, options
    program=$1 run=$2
    shift 2
    $program --quiet --train "$work/shard_train_000000.bin" --tokenizer "$work/vocab" --layers 2 --heads 2 --width 32 --context 48 \
        --batch 4 --micro-batch 2 --steps 30 --warmup 2 --lr 1e-2 --documents --out "$work/$run" "$@" >"$work/log" 2>&1 </dev/null || cat "$work/log"
}
evaluations() { # run: its lines without the place of the set
    grep '"type": "evaluation"' "$work/$1/metrics.jsonl" | sed 's/"set": "[^"]*", //'
}
evaluate() { ./evaluate "$@" 2>"$work/err"; }
numbers() { sed 's/^[^ ]*  //'; } # without the path

train ./train_gpt2 run --attention slay --eval "$work/set.jsonl" --eval-every 300 --steps 500 --batch 8
check_equal "evaluated every 300 steps and at the end" "$(evaluations run | grep -o '"step": [0-9]*' | tr '\n' ' ')" \
    '"step": 300 "step": 500 '
evaluate "$work/run" "$work/set.jsonl" --scores "$work/scores" >"$work/out"
report=$(numbers <"$work/out")
accuracy=$(echo "$report" | awk '{print $2}')
check_equal "forty examples of three" "$(echo "$report" | grep -c '(40 examples, chance 0.3333)')" 1
check_equal "better than chance" "$(awk -v a="$accuracy" 'BEGIN { print (a > 0.5) }')" 1
check_equal "the trainer says the same" "$(evaluations run | tail -n 1 | grep -o '"accuracy": [0-9.]*' | awk '{printf "%.4f", $2}')" "$accuracy"
check_equal "a line of scores for each" "$(grep -c '"scores": \[-' "$work/scores")" 40
for tokens in 1 100 4096; do
    check_equal "$tokens tokens at once" "$(evaluate "$work/run" "$work/set.jsonl" --batch-tokens $tokens | numbers)" "$report"
done
check_equal "two sets" "$(evaluate "$work/run" "$work/set.jsonl" "$work/set.jsonl" | numbers)" "$report
$report"
for begin in no:1 yes:0; do
    evaluate "$work/run" "$work/set.jsonl" --begin ${begin%:*} --scores "$work/begun" >/dev/null
    check_equal "end-of-text before it: ${begin%:*}" "$(cmp -s "$work/scores" "$work/begun"; echo $?)" ${begin#*:}
done

# The same set in llm.c's form.
if command -v python3 >/dev/null 2>&1; then
    python3 - "$work" <<'PYTHON'
import json, struct, subprocess, sys
work = sys.argv[1]
def encode(text):
    open(f"{work}/piece", "w").write(text)
    return [int(i) for i in subprocess.run(["./tokenize", "encode", "--ids", "--vocab-file", f"{work}/vocab", f"{work}/piece"],
                                           capture_output=True, text=True, check=True).stdout.split()]
words, examples = [], [json.loads(line) for line in open(f"{work}/set.jsonl")]
for number, example in enumerate(examples):
    label = example["label"] if isinstance(example["label"], int) else ord(example["label"]) - 65
    context, endings = encode(example["ctx"]), [encode(" " + end) for end in example["endings"]]
    stream = [65535, 0, number, label, len(endings), len(context), *context]
    for end in endings:
        stream += [len(end), *end]
    stream[1] = 2 * len(stream)
    words += stream
with open(f"{work}/set.bin", "wb") as file:
    file.write(struct.pack("<256i", 20240522, 1, len(examples), *[0] * 253) + struct.pack(f"<{len(words)}H", *words))
PYTHON
    check_equal "llm.c's form" "$(evaluate "$work/run" "$work/set.bin" | numbers)" "$report"
    cp -r "$work/run" "$work/bare" && rm -f "$work"/bare/*/tokenizer* "$work"/bare/*/state.json
    check_equal "llm.c's form without a vocabulary" "$(evaluate "$work/bare" "$work/set.bin" --begin yes | numbers | sed 's/  per character.*//')" \
        "$(echo "$report" | sed 's/  per character.*//')"
    check_refused "text without a vocabulary" "text needs the model's vocabulary" ./evaluate "$work/bare" "$work/set.jsonl"
    head -c 2000 "$work/set.bin" >"$work/short.bin"
    check_refused "a file cut short" "is cut short or damaged" ./evaluate "$work/run" "$work/short.bin"
else
    skip "llm.c's form" "there is no python3"
fi

# Two ranks share the rows.
build=${BUILD:-build}
if command -v mpirun >/dev/null 2>&1 && grep -q DHAVE_MPI "$build/config.mk" 2>/dev/null; then
    mpirun="timeout -k 5 60 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
    train "$mpirun --mca orte_tmpdir_base $work -np 2 ./train_gpt2" ranks --eval "$work/set.jsonl" --threads 1
    train ./train_gpt2 one --init "$work/ranks" --steps 0 --eval "$work/set.jsonl"
    check_equal "two ranks" "$(evaluations ranks | sed 's/"step": [0-9]*//')" "$(evaluations one | sed 's/"step": [0-9]*//')"
else
    skip "two ranks" "there is no MPI"
fi

# The GPU's programs, their code on the CPU.
gpu=$build/cuda_on_cpu/fast
if [ -x "$gpu/train_gpt2" ] && [ -x "$gpu/evaluate" ]; then
    train "$gpu/train_gpt2" gpu --init "$work/run" --steps 0 --eval "$work/set.jsonl"
    check_equal "the GPU's trainer" "$(evaluations gpu | sed 's/"step": [0-9]*//')" "$(evaluations run | tail -n 1 | sed 's/"step": [0-9]*//')"
    for set in "$work"/set.*; do
        check_equal "evaluate on the GPU, ${set##*.}" "$("$gpu/evaluate" "$work/run" "$set" 2>/dev/null | numbers)" "$report"
    done
else
    skip "the GPU's trainer and evaluate" "$gpu/train_gpt2 or $gpu/evaluate has not been built"
fi

check_refused "no set" "found 1 of them" ./evaluate "$work/run"
check_refused "no such set" "evaluate: $work/none.jsonl" ./evaluate "$work/run" "$work/none.jsonl"
check_refused "a shard is no set" "line 1: expected a JSON object" ./evaluate "$work/run" "$work/shard_train_000000.bin"
check_refused "no such set for the trainer" "none.jsonl" ./train_gpt2 --train "$work/shard_train_000000.bin" --tokenizer "$work/vocab" \
    --model tiny --eval "$work/none.jsonl" --out "$work/never"
sed 's/"ctx": "/"ctx": "once upon a time there was a very long tale of a town and its people, and it went on and on and on and on /' \
    "$work/set.jsonl" >"$work/long.jsonl"
evaluate "$work/run" "$work/long.jsonl" >"$work/out"
check_contains "what is cut off is said" "lose their beginning" "$work/err"
summary
