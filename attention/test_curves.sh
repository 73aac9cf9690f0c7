#!/bin/sh
# Trains a small GPT-2 for 50 steps on stories with every attention and every variant of SLAY, from one seed, and compares
# the loss of each step with the curve kept in dev/fixtures/curves.tsv.
#   attention/test_curves.sh            last line: `N passed, N failed`
#   attention/test_curves.sh --write    makes the fixture anew, after a change that is meant to change the losses
# Other machines round otherwise, and training magnifies that: the bound is BOUND nats, and WIDE_BOUND for attentions with
# signed scores, whose divisors can be near zero.
cd "$(dirname "$0")/.." || exit 1
fixture=dev/fixtures/curves.tsv
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export OMP_WAIT_POLICY=passive
BOUND=0.003 WIDE_BOUND=0.05

./stories --bytes 400K --seed 5 --out "$work/text" --validation-stories 10 --validation-out "$work/val" >"$work/log" 2>&1 &&
    ./tokenize train --vocab 512 --out "$work/vocab.tiktoken" "$work/text" >>"$work/log" 2>&1 &&
    ./tokenize encode --vocab-file "$work/vocab.tiktoken" --validation-file "$work/val" --out "$work/tokens" \
        "$work/text" >>"$work/log" 2>&1 || { cat "$work/log"; echo "0 passed, 1 failed"; exit 1; }

# name, options; signed: scores may be negative
variants() {
    cat <<'END'
softmax                 --attention softmax
yat                     --attention yat
yat-softmax             --attention yat --normalizer softmax
yat-spherical           --attention yat-spherical
uniform                 --attention uniform
elu                     --attention elu
cosformer               --attention cosformer
favor                   --attention favor
favor-exp               --attention favor --features exp
rff-signed              --attention rff
slay                    --attention slay
slay-orthogonal         --attention slay --omega orthogonal
slay-exact              --attention slay --poly exact
slay-nystrom            --attention slay --poly nystrom
slay-tensorsketch-signed --attention slay --poly tensorsketch
slay-maclaurin-signed   --attention slay --poly maclaurin
slay-none               --attention slay --poly none
slay-hadamard           --attention slay --fusion hadamard
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

columns=""
while read -r name options; do
    # shellcheck disable=SC2086
    { echo "$name" && curve "$name" $options; } >"$work/column_$name" || { echo "0 passed, 1 failed"; exit 1; }
    columns="$columns $work/column_$name"
    rm -rf "$work/run_$name"
done <<END
$(variants)
END
# shellcheck disable=SC2086
{ echo step; seq 1 50; } | paste - $columns >"$work/curves.tsv"
if [ "${1:-}" = --write ]; then
    cp "$work/curves.tsv" "$fixture"
    echo "wrote $fixture"
    exit 0
fi

awk -F '\t' -v bound=$BOUND -v wide=$WIDE_BOUND '
    NR == FNR { for (i = 1; i <= NF; i++) kept[FNR, i] = $i; lines = FNR; columns = NF; next }
    FNR == 1 { if (NF != columns) { print "FAIL expected " columns " columns, found " NF; failed++ }
               for (i = 2; i <= NF; i++) { name[i] = $i; if ($i != kept[1, i]) { print "FAIL expected " kept[1, i] ", found " $i; failed++ } }
               next }
    { for (i = 2; i <= NF; i++) { gap = $i - kept[FNR, i]; gap = gap < 0 ? -gap : gap
          if (!(gap <= (name[i] ~ /signed/ ? wide : bound)) || $i == "") bad[i] = bad[i] "  step " $1 ": " $i ", kept " kept[FNR, i] "\n" } }
    END { if (FNR != lines) { print "FAIL expected " lines " lines, found " FNR; failed++ }
          for (i = 2; i <= columns; i++) if (bad[i] != "") { print "FAIL " name[i]; printf "%s", bad[i]; failed++ } else passed++
          print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }' "$fixture" "$work/curves.tsv"
