#!/bin/sh
# Tests of scripts/compare: statistics, settings and bad runs (compare_lib/test_compare.py), then comparisons of a tiny model:
# whole, interrupted and continued, killed and continued, and what is refused. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
running=""
trap '[ -z "$running" ] || kill -9 "$running" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive

python3 scripts/compare_lib/test_compare.py >"$work/unit" 2>&1 || cat "$work/unit"
. scripts/checks.sh
count_of() { tail -n 1 "$work/unit" | sed -n "s/.*\\<\\([0-9][0-9]*\\) $1.*/\\1/p"; }
passed=$(count_of passed) failed=$(count_of failed) skipped=$(count_of skipped)
passed=${passed:-0} failed=${failed:-1} skipped=${skipped:-0}
grep '^skipped: ' "$work/unit"

# ---- a small corpus and a small model
mkdir "$work/data" || exit 1
{
    ./stories --bytes 100k --seed 3 --out "$work/data/train.txt" --validation-stories 5 --validation-out "$work/data/val.txt"
    ./tokenize train --vocab 300 --out "$work/data/vocab.tiktoken" "$work/data/train.txt"
    ./tokenize encode --vocab-file "$work/data/vocab.tiktoken" --validation-file "$work/data/val.txt" --out "$work/data/toy" \
        "$work/data/train.txt"
} >"$work/out" 2>&1 || fail "a corpus" "$(tail -n 3 "$work/out")"
steps=300
compare() { # out, more options; standard output and error go to $work/out and $work/err
    scripts/compare --out "$@" >"$work/out" 2>"$work/err" </dev/null
}
toy() {
    compare "$@" --attentions softmax slay:R=1,M=4 --seeds 2 --budget ${steps}steps --corpus "$work/data" \
        --model layers=1,heads=2,width=16,context=32 --jobs 2 --no-scaling
}
final_losses() { # out: the last validation loss of each run
    for run in softmax_seed1 softmax_seed2 slay_R-1_M-4_seed1 slay_R-1_M-4_seed2; do
        echo "$run $(grep '"type": "validation"' "$1/$run/metrics.jsonl" | tail -n 1 | sed 's/.*"step": \([0-9]*\).*"loss": \([0-9.]*\).*/\1 \2/')"
    done
}

speed_rounds() { # how many rounds, and of how many attentions
    python3 -c 'import json, sys; r = json.load(open(sys.argv[1]))["speed"]["rounds"]; print(len(r), len(r[0]))' \
        "$work/whole/measurements.json"
}
forget_rounds() { # count: as if the comparison had been interrupted while it measured; a figure shows that the rest stays
    python3 - "$work/whole/measurements.json" "$1" <<'END'
import json, sys
found = json.load(open(sys.argv[1]))
del found["speed"]["rounds"][-int(sys.argv[2]):]
found["speed"]["rounds"][0]["softmax"] = 123.0
json.dump(found, open(sys.argv[1], "w"))
END
}

# ---- in one go
toy "$work/whole"
check_equal "exit code" $? 0
final_losses "$work/whole" >"$work/losses_whole"
check_contains "the table" "slay:R=1,M=4" "$work/out"
check_equal "training speed was measured in rounds" "$(speed_rounds)" "5 2"
check_contains "and the table says how" "5 rounds of" "$work/whole/results.md"
check_contains "decoding was measured" '"65536"' "$work/whole/measurements.json"
check_contains "a sample" '"samples"' "$work/whole/measurements.json"
check_contains "the verdicts" '"against_softmax"' "$work/whole/results.json"
check_contains "the table in Markdown" "| slay:R=1,M=4 | 2 |" "$work/whole/results.md"
check_contains "the page" "<!doctype html>" "$work/whole/report.html"
check_equal "finished steps" "$(grep -c '"type": "step"' "$work/whole/softmax_seed1/metrics.jsonl")" $steps
first_tokens() { sed -n 's/.*"step": 1, .*"loss": \([0-9.]*\),.*/\1/p' "$work/whole/$1/metrics.jsonl" | head -n 1; }
if [ "$(first_tokens softmax_seed1)" != "$(first_tokens softmax_seed2)" ]; then pass; else fail "seeds differ"; fi
./sample_gpt2 "$work/whole/slay_R-1_M-4_seed2" --tokens 5 --prompt The --no-stats >"$work/out" 2>&1
check_equal "an ordinary run for sample_gpt2" $? 0
./train_gpt2 --resume "$work/whole/softmax_seed2" --steps $((steps + 2)) --quiet >"$work/out" 2>&1
check_equal "an ordinary run for train_gpt2 --resume" $? 0
compare "$work/whole"
check_contains "nothing is trained twice" "4 of 4 runs are finished already" "$work/out"
check_equal "nothing is measured twice" "$(grep -c 'training speed, round' "$work/out")" 0
forget_rounds 2
compare "$work/whole"
check_equal "measuring goes on" "$(grep -c 'training speed, round' "$work/out") $(speed_rounds)" "2 5 2"
check_contains "and keeps what there was" "123.0" "$work/whole/measurements.json"

# ---- interrupted, then killed, then continued: the same losses
cut=$work/cut
wait_for_steps() { # count: until a run of $cut has so many steps, 20 seconds at most
    tries=0
    until [ "$(cat "$cut"/*/metrics.jsonl 2>/dev/null | grep -c '"type": "step"')" -ge "$1" ] || [ $tries -ge 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}
toy "$cut" &
running=$!
wait_for_steps 20
kill -INT "$(cat "$cut/lock")" 2>/dev/null
wait $running
check_equal "interrupted: exit code" $? 130
check_contains "interrupted: how to continue" "to continue: scripts/compare --out" "$work/out"
done_runs=$(cat "$cut"/*/metrics.jsonl | grep -c '"type": "done"')
if [ "$done_runs" -lt 4 ]; then pass; else fail "interrupted: all runs were over already"; fi
compare "$cut" &
running=$!
wait_for_steps 450
kill -9 "$(cat "$cut/lock")" 2>/dev/null
wait $running 2>/dev/null
running=""
sleep 0.5 # its runs save and end
compare "$cut" || fail "continued: exit code" "$(cat "$work/err")"
final_losses "$cut" >"$work/losses_cut"
check_equal "continued: the same losses" "$(cat "$work/losses_cut")" "$(cat "$work/losses_whole")"

# ---- a time budget
compare "$work/timed" --attentions softmax elu --seeds 1 --budget 1s --corpus "$work/data" \
    --model layers=1,heads=2,width=16,context=32 --jobs 2 --no-scaling
check_equal "a time budget: exit code" $? 0
check_contains "n = 1 is said" "n = 1" "$work/timed/results.md"

# ---- what is refused
refused() { # name, expected message, options
    name=$1 expected=$2
    shift 2
    compare "$@"
    check_equal "$name: exit code" $? 1
    check_contains "$name: message" "$expected" "$work/err"
}
refused "other settings" "the comparison there has ${steps}steps, found 9steps" "$work/whole" --budget 9steps
refused "fewer attentions" "which lacks slay:R=1,M=4 here" "$work/whole" --attentions softmax
refused "an unknown attention" "expected names among softmax" "$work/new" --attentions softmx
refused "an attention's bad option" "slay:poly=nix" "$work/new" --attentions slay:poly=nix --corpus "$work/data"
refused "an option of another attention" "softmax:R=2" "$work/new" --attentions softmax:R=2 --corpus "$work/data"
refused "a budget without a unit" "expected a number and a unit" "$work/new" --budget 600
refused "no shards" "expected token shards" "$work/new" --corpus "$work"
refused "no corpus" "expected stories, austen, enwik8 or a directory" "$work/new" --corpus nowhere
refused "a directory of something else" "no comparison" "$work/data"
echo '{"attentions": ["x"]}' >"$work/new/compare.json"
refused "a damaged plan" "expected the settings of a comparison" "$work/new"
scripts/compare --out "$work/other" --budget 5steps -- --seed 3 >"$work/out" 2>"$work/err"
check_contains "an option that is the comparison's own" "decided by the comparison itself" "$work/err"

summary
