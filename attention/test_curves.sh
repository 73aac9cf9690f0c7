#!/bin/sh
# Trains a small GPT-2 for 50 steps on stories with every attention of the registry and with variants of some, from one
# seed, and compares the loss of each step with the curve kept in dev/fixtures/curves.tsv.
#   attention/test_curves.sh [NAME]...            last line: `N passed, N failed`
#   attention/test_curves.sh --write [NAME]...    makes the curves anew, after a change that is meant to change the losses
# Names: the curves to make; all when none is given.
# Rounding differs between machines, and training magnifies that: the bound is BOUND nats, and WIDE_BOUND for attentions with
# signed scores, whose divisors can be near zero: in rff other chunks alone move a loss by up to 0.06.
cd "$(dirname "$0")/.." || exit 1
fixture=dev/fixtures/curves.tsv
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export OMP_WAIT_POLICY=passive
BOUND=0.003 WIDE_BOUND=0.12 SIGNED="rff slay-tensorsketch slay-maclaurin"
writes=0
[ "${1:-}" != --write ] || { writes=1; shift; }

./stories --bytes 400K --seed 5 --out "$work/text" --validation-stories 10 --validation-out "$work/val" >"$work/log" 2>&1 &&
    ./tokenize train --vocab 512 --out "$work/vocab.tiktoken" "$work/text" >>"$work/log" 2>&1 &&
    ./tokenize encode --vocab-file "$work/vocab.tiktoken" --validation-file "$work/val" --out "$work/tokens" \
        "$work/text" >>"$work/log" 2>&1 || { cat "$work/log"; echo "0 passed, 1 failed"; exit 1; }

# name, options
variants() {
    sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' attention/registry.h | tr _ - | sed 's/.*/& --attention &/'
    cat <<'END'
yat-softmax       --attention yat --normalizer softmax
favor-exp         --attention favor --features exp
slay-orthogonal   --attention slay --omega orthogonal
slay-exact        --attention slay --poly exact
slay-nystrom      --attention slay --poly nystrom
slay-tensorsketch --attention slay --poly tensorsketch
slay-maclaurin    --attention slay --poly maclaurin
slay-none         --attention slay --poly none
slay-hadamard     --attention slay --fusion hadamard
END
}

curve() { # name, options: the losses of its 50 steps, one per line
    name=$1
    shift
    ./train_gpt2 "$@" --train "$work/tokens_train_*.bin" --tokenizer "$work/vocab.tiktoken" --layers 2 --heads 2 \
        --width 64 --context 128 --sequence 128 --batch 4 --steps 50 --lr 1e-3 --warmup 10 --init-std 0.04 --seed 7 \
        --save-every 0 --threads 2 --quiet --out "$work/run_$name" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
    sed -n 's/.*"type": "step".*"loss": \([0-9.]*\).*/\1/p' "$work/run_$name/metrics.jsonl"
}

wanted=" $* "
columns=""
while read -r name options; do
    case "$wanted" in "  " | *" $name "*) ;; *) continue ;; esac
    # shellcheck disable=SC2086
    { echo "$name" && curve "$name" $options; } >"$work/column_$name" || { echo "0 passed, 1 failed"; exit 1; }
    columns="$columns $work/column_$name"
    rm -rf "$work/run_$name"
done <<END
$(variants)
END
[ -n "$columns" ] || { echo "no attention of these names: $*"; echo "0 passed, 1 failed"; exit 1; }
# shellcheck disable=SC2086
{ echo step; seq 1 50; } | paste - $columns >"$work/curves.tsv"

# Of two tables with a column for each name: what is kept, with the columns of the other put in their places or added.
merge() {
    awk -F '\t' -v OFS='\t' '
        NR == FNR { for (i = 1; i <= NF; i++) { if (FNR == 1) { name[i] = $i; new[$i] = 1 } made[name[i], FNR] = $i }; next }
        { for (i = 1; i <= NF; i++) { if (FNR == 1) { kept[i] = $i; has[$i] = 1 } if (kept[i] in new) $i = made[kept[i], FNR] }
          for (i = 1; i in name; i++) if (!(name[i] in has)) $(NF + 1) = made[name[i], FNR]
          print }' "$1" "$2"
}
if [ "$writes" = 1 ]; then
    merge "$work/curves.tsv" "$fixture" >"$work/merged.tsv" && cp "$work/merged.tsv" "$fixture" && echo "wrote $fixture"
    exit
fi

awk -F '\t' -v bound=$BOUND -v wide=$WIDE_BOUND -v signed=" $SIGNED " -v all=$((1 - ($# > 0))) '
    NR == FNR { for (i = 1; i <= NF; i++) { if (FNR == 1) name[i] = $i; kept[name[i], FNR] = $i }; lines = FNR; next }
    FNR == 1 { for (i = 2; i <= NF; i++) { column[i] = $i; made[$i] = 1 } columns = NF
               for (i = 2; all && i in name; i++)
                   if (!(name[i] in made)) { print "FAIL " name[i] " is kept, but no attention"; failed++ }
               next }
    { for (i = 2; i <= columns; i++) {
          gap = $i - kept[column[i], FNR]; gap = gap < 0 ? -gap : gap
          if (!(gap <= (index(signed, " " column[i] " ") ? wide : bound)) || $i == "" || kept[column[i], FNR] == "")
              bad[i] = bad[i] "  step " $1 ": " $i ", kept " kept[column[i], FNR] "\n" } }
    END { if (FNR != lines) { print "FAIL expected " lines " lines, found " FNR; failed++ }
          for (i = 2; i <= columns; i++)
              if (bad[i] != "") { print "FAIL " column[i]; printf "%s", bad[i]; failed++ } else passed++
          print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }' "$fixture" "$work/curves.tsv"
