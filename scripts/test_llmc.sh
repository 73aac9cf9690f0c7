#!/bin/sh
# For those who come from llm.c: main.log in its format, also after a resumption and a rollback; model files that go out
# and come back; a pasted command. Needs the programs. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 2
small="--train $work/train.bin --val $work/val.bin $sizes --sequence 16 --batch 4 --warmup 3 --val-every 4 --schedule constant"

# ---- main.log
# shellcheck disable=SC2086
main_log() {
    works "in one go" $small --llmc-log --steps 12 --out "$work/whole"
    works "the first part" $small --llmc-log --steps 10 --save-every 5 --keep 9 --out "$work/parts"
    works "again from an older checkpoint" --resume "$work/parts/step_00000005" --steps 12
    works "without it" $small --steps 2 --out "$work/without"
    check_same_file "main.log in parts" "$work/whole/main.log" "$work/parts/main.log"
    check_equal "none without the option" "$(find "$work/without" -name main.log)" ""
    check_equal "lines of another form" "$(grep -cvE '^s:[0-9]+ (trl:[0-9.]+ lr:[0-9.]+ norm:[0-9.]+|tel:[0-9.]+)$' "$work/whole/main.log")" 0
    # llm.c counts the steps that it trains from 0, and validates before the step of that number
    check_equal "numbers of steps" "$(sed 's/\(s:[0-9]* t.l\).*/\1/' "$work/whole/main.log" | tr '\n' ' ')" \
        "s:0 trl s:1 trl s:2 trl s:3 trl s:4 tel s:4 trl s:5 trl s:6 trl s:7 trl s:8 tel s:8 trl s:9 trl s:10 trl s:11 trl s:12 tel "
    check_equal "the losses of metrics.jsonl" "$(sed -n 's/^s:[0-9]* trl:\([0-9.]*\) .*/\1/p' "$work/whole/main.log" | tr '\n' ' ')" \
        "$(sed -n 's/.*"type": "step".*"loss": \([0-9.]*\),.*/\1/p' "$work/whole/metrics.jsonl" | while read -r loss; do printf '%.4f ' "$loss"; done)"
}
main_log

# ---- model files: out, back, and the same loss
loss_of() { sed -n 's/.*"type": "validation".*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
# shellcheck disable=SC2086
model_files() {
    check "export" ./export_llmc "$work/whole" "$work/model.bin"
    check "export in bf16" ./export_llmc "$work/whole" "$work/narrow.bin" --precision bf16
    check_equal "the header" "$(od -An -td4 -N32 "$work/model.bin" | tr -s ' \n' ' ')" " 20240326 3 32 61 2 2 16 128 "
    check_equal "the header in bf16" "$(od -An -td4 -N8 "$work/narrow.bin" | tr -s ' \n' ' ')" " 20240326 5 "
    check "inspect" ./inspect "$work/model.bin"
    works "start from it" --train "$work/train.bin" --val "$work/val.bin" --init "$work/model.bin" --sequence 16 --steps 0 --out "$work/back"
    check_equal "the same loss" "$(loss_of "$work/back")" "$(loss_of "$work/whole")"
    works "start from bf16" --train "$work/train.bin" --val "$work/val.bin" --init "$work/narrow.bin" --sequence 16 --steps 0 --out "$work/back16"
    check_equal "nearly the same loss" "$(awk "BEGIN { d = $(loss_of "$work/back16") - $(loss_of "$work/whole"); print (d < 0.01 && d > -0.01) }")" 1
    works "weights go out and come back" --train "$work/train.bin" --init "$work/model.bin" --batch 1 --sequence 16 --steps 1 --lr 0 --weight-decay 0 --out "$work/again"
    check "export again" ./export_llmc "$work/again" "$work/again.bin"
    check_same_file "to the bit" "$work/model.bin" "$work/again.bin"
    works "another attention" $small --attention elu --steps 1 --out "$work/elu"
    check_refused "another attention" "expected plain softmax" ./export_llmc "$work/elu" "$work/elu.bin"
    check_refused "one path" "found 1 of them" ./export_llmc "$work/whole"
    check_refused "no model" "$work/nowhere" ./export_llmc "$work/nowhere" "$work/none.bin"
    check_equal "nothing is written then" "$(ls "$work"/elu.bin* "$work"/none.bin* 2>/dev/null)" ""
}
model_files

# ---- a pasted command; what it is answered with is a command, which finds llm.c's HellaSwag where llm.c has it
write_set() { # path: an example of two completions: length, number, label, completions, then a count before each text
    mkdir -p "$(dirname "$1")" && {
        printf '%b' "$(for word in 20240522 1 1; do octal_bytes "$word" 4; done)"
        head -c 1012 /dev/zero
        printf '%b' "$(for word in 65535 30 0 1 2 3 5 6 7 2 8 9 2 10 11; do octal_bytes "$word" 2; done)"
    } >"$1"
}
write_set "$work/dev/data/hellaswag/hellaswag_val.bin"
check_refused "a pasted command" "these are llm.c's options; here it is:  ./train_gpt2 --train" ./train_gpt2 \
    -i "$work/train.bin" -j "$work/val.bin" -o "$work/pasted" -e d12 -b 2 -t 16 -d 64 -x 3 -l 0.001 -q 0 -u 1 -v 2 -s 0 -h 1
answer=$(sed 's/.*here it is:  //' "$work/stderr")
ln -s "$PWD/train_gpt2" "$work/"
(cd "$work" && sh -c "$answer --layers 1 --heads 2 --width 16 --context 16 --vocab 61 --quiet") >"$work/out" 2>&1
check_equal "the answer trains" "$(saved_steps "$work/pasted")" 3
check_contains "with its batch of rows" '"batch": 4,' "$work/pasted/metrics.jsonl"
check_equal "and asks HellaSwag with the validation and at the end" \
    "$(sed -n 's/.*"type": "evaluation", "step": \([0-9]*\),.*"examples": \([0-9]*\).*/\1:\2/p' "$work/pasted/metrics.jsonl" | tr '\n' ' ')" "2:1 3:1 "
summary
