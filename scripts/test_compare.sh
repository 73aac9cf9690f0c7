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

# ---- rates swept, small files kept, run directories elsewhere
swept() { # more options
    compare "$work/swept" --runs "$work/swept_runs" --no-costs "$@"
}
swept --attentions softmax elu --seeds 2 --budget 60steps --rates 1e-3,3e-3,1e-2 --sweep-budget 20steps --corpus "$work/data" \
    --model layers=1,heads=2,width=16,context=32 --jobs 2 -- --positions none
check_equal "rates: exit code" $? 0
plan_says() { # expression over the plan
    python3 -c 'import json, sys; plan = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$work/swept/compare.json" "$1"
}
check_equal "rates: the best is taken" "$(plan_says 'all(plan["sweep"][e][r] == min(plan["sweep"][e].values()) for e, r in plan["chosen"].items())')" True
check_equal "rates: at least three of each" "$(plan_says 'min(len(tried) for tried in plan["sweep"].values()) >= 3')" True
check_equal "rates: a seed that is not reported" "$(plan_says 'plan["sweep_seed"] not in plan["seeds"]')" True
elu=elu_lr-$(plan_says 'plan["chosen"]["elu"]')_seed2
check_contains "rates: every run has its attention's" "--lr $(plan_says 'plan["chosen"]["elu"]') --attention elu" "$work/swept/compare.json"
check_contains "rates: reported" "## Rates tried" "$work/swept/results.md"
check_contains "a table with state and recall hits" "| F | state | validation loss |" "$work/swept/results.md"
check_contains "hits and the rest" "| recall hits | the rest |" "$work/swept/results.md"
check_equal "no speed of a busy machine" "$(grep -c 'tok/s' "$work/swept/results.md")" 0
check_equal "a small file of every run" "$(ls "$work/swept/kept" | grep -vc '^sweep_')" 4
check_contains "with losses by position" '"positions": [[0, 15, ' "$work/swept/kept/$elu.jsonl"
check_contains "and beyond the training length" '[256, 511, ' "$work/swept/kept/$elu.jsonl"
check_equal "run directories elsewhere" "$(ls -d "$work"/swept/*/ | wc -l) $([ -d "$work/swept_runs/$elu" ] && echo there)" "1 there"
cp "$work/swept/results.json" "$work/before.json"
rm -r "$work/swept_runs" # as on another machine, which has the small files alone
swept
check_contains "small files are enough" "4 of 4 runs are finished already" "$work/out"
same_rows() {
    python3 -c 'import json, sys; a, b = ([(r["label"], r["loss"], r["hits"]) for r in json.load(open(p))["rows"]] for p in sys.argv[1:]); print(a == b)' "$@"
}
check_equal "and show the same" "$(same_rows "$work/before.json" "$work/swept/results.json")" True
rm "$work/swept/kept/$elu.jsonl"
swept
check_contains "only what is missing is trained" "3 of 4 runs are finished already" "$work/out"
check_equal "to the same loss" "$(same_rows "$work/before.json" "$work/swept/results.json")" True
swept --attentions softmax elu uniform
check_equal "an attention more" "$(ls "$work/swept/kept" | grep -c '^uniform_') $(ls "$work/swept_runs" | grep -c '^softmax')" "2 0"

# ---- one that diverges at a large rate is a result of the sweep
compare "$work/steep" --attentions elu --seeds 5, --budget 30steps --rates 1e0,3e0,1e1 --corpus "$work/data" \
    --model layers=1,heads=2,width=16,context=32 --jobs 2 --no-costs -- --clip 0 --warmup 1 --beta2 0 --adam-eps 1e-30 --weight-decay 100
check_equal "a run whose loss is not finite: exit code" $? 1
check_contains "a rate at which the loss is not finite" '"type": "failed"' "$work/steep/kept/sweep_elu_lr-1e1_seed6.jsonl"
check_equal "a reported run is tried again" "$(ls "$work/steep/kept" | grep -vc '^sweep_')" 0

# ---- a folder of text
mkdir -p "$work/letters/old" && cp "$work/data/train.txt" "$work/letters/old/one.txt" && echo "A short note." >"$work/letters/two.md"
compare "$work/text" --attentions softmax uniform --seeds 1 --budget 5steps --corpus "$work/letters" \
    --model layers=1,heads=2,width=16,context=32 --jobs 2 --no-costs
check_equal "a folder of text: exit code" $? 0
check_contains "a folder of text: the page" "<!doctype html>" "$work/text/report.html"
made=$(sed -n 's/ *"data": "\(.*\)",*/\1/p' "$work/text/compare.json")
check_equal "a folder of text: shards of its own" "$(ls "$made"/*_train_*.bin "$made"/*_val_*.bin | wc -l)" 2
compare "$work/text"
check_contains "a folder of text: continued" "2 of 2 runs are finished already" "$work/out"
case $made in data/letters_*) rm -r "$made" ;; *) fail "a folder of text: its place" "$made" ;; esac

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
mkdir "$work/empty"
refused "no shards" "expected token shards" "$work/new" --corpus "$work/empty"
refused "one rate" "at least three neighbours" "$work/new" --rates 1e-3
refused "a rate besides the sweep's" "expected no --lr after --" "$work/new" --rates 1e-3,3e-3,1e-2 -- --lr 1e-3
refused "no corpus" "expected stories, austen, enwik8, a directory of shards or a folder of text" "$work/new" --corpus nowhere
refused "a directory of something else" "no comparison" "$work/data"
echo '{"attentions": ["x"]}' >"$work/new/compare.json"
refused "a damaged plan" "expected the settings of a comparison" "$work/new"
scripts/compare --out "$work/other" --budget 5steps -- --seed 3 >"$work/out" 2>"$work/err"
check_contains "an option that is the comparison's own" "decided by the comparison itself" "$work/err"

summary
