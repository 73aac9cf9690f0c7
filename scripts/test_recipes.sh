#!/bin/sh
# The commands of docs/recipes.md, taken from the page and run in their order, in a tree of its own: a folder of text becomes a
# model in PyTorch, eight GPUs (the kernels on the CPU, ranks that meet by MPI) train and evaluate GPT-2. What makes it small are
# the replacements below, each of which has to be found in the page; stand-ins play make, nvidia-smi, the network and its
# sums. Python blocks need torch and transformers: RECIPE_PYTHON names such a Python, else build/venv-interop's is
# taken, which make test-interop makes; without it they are skipped. Needs the programs. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/checks.sh
passed=0 failed=0
command -v python3 >/dev/null || { skip "the recipes" "no python3"; summary; exit; }
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
root=$PWD server=""
work=$(mktemp -d) || exit 1
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/tiny_shard.sh
unset DATA PROGRAM SAMPLER ATTENTION
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
case ${BUILD:-build} in /*) build=$BUILD ;; *) build=$root/${BUILD:-build} ;; esac

# ---- what is smaller here: a recipe's number, what the page says, what is run
cat >"$work/smaller" <<'END'
1	--budget 4Mtokens	--budget 40steps --jobs 2 --no-scaling --model layers=1,heads=2,width=16,context=32
1	--steps 6000	--steps 60
1	--samples 3	--samples 3 --tokens 20
1	--steps 500	--steps 5
2	--shards 103	--shards 1
2	--eval-every 1000	--eval-every 10 --layers 1 --heads 2 --width 16 --context 32 --sequence 32 --batch 8 --warmup 2 --val-every 0 --save-every 0 --steps 20
2	evaluation_00018865	evaluation_00000020
END

# Writes recipe_N: a line ">>> COMMAND" before each, continued lines joined. `skipped` has what needs PyTorch when there is none.
write_recipes() {
    python3 - "$work" "$1" <<'PYTHON'
import re, sys
work, python = sys.argv[1:]
table = [line.split("\t") for line in open(f"{work}/smaller").read().splitlines()]
sections = re.split(r"^## ", open("docs/recipes.md").read(), flags=re.M)[1:]
found = set()
for number, section in enumerate(sections, 1):
    script, skipped = [], []
    for kind, block in re.findall(r"^```(sh|python)\n(.*?)^```", section, flags=re.M | re.S):
        for command in [block] if kind == "python" else block.replace("\\\n", " ").strip().split("\n"):
            for entry in table:
                if entry[0] == str(number) and entry[1] in command:
                    command = command.replace(*entry[1:])
                    found.add(tuple(entry))
            shown = command.split("\n")[0].replace("'", "")
            if not python and (kind == "python" or "_in_pytorch" in command):
                skipped.append(shown)
            elif kind == "python":
                script.append(f"echo '>>> {shown}'\n'{python}' - <<'END_OF_PYTHON'\n{command}END_OF_PYTHON\n")
            else:
                script.append(f"echo '>>> {shown}'\n{command}\n")
    open(f"{work}/recipe_{number}", "w").writelines(script)
    open(f"{work}/skipped_{number}", "w").writelines(line + "\n" for line in skipped)
for entry in table:
    if tuple(entry) not in found:
        print(f"docs/recipes.md: recipe {entry[0]} no longer says {entry[1]}")
PYTHON
}
follow() { # number: every command has to succeed; one check each
    (cd "$tree" && PATH="$work/bin:$PATH" sh -e "$work/recipe_$1") >"$work/out_$1" 2>"$work/err_$1" </dev/null
    code=$?
    wanted=$(grep -c "^echo '>>> " "$work/recipe_$1") reached=$(grep -c '^>>> ' "$work/out_$1")
    [ $code = 0 ] || reached=$((reached - 1))
    passed=$((passed + reached))
    check_equal "recipe $1: commands that succeed" "$code, $reached" "0, $wanted"
    [ $code = 0 ] || { grep '^>>> ' "$work/out_$1" | tail -n 1; tail -n 5 "$work/err_$1"; tail -n 5 "$work/out_$1"; }
    while read -r command; do skip "docs/recipes.md: $command" "no PyTorch here; make test-interop installs it"; done <"$work/skipped_$1"
}
after() { # number, beginning of a command: what it printed
    awk -v begin=">>> $2" 'index($0, ">>> ") == 1 { on = index($0, begin) == 1; next } on' "$work/out_$1"
}

# ---- stand-ins
stand_in() { # name; the script is standard input
    { echo '#!/bin/sh' && cat; } >"$work/bin/$1" && chmod +x "$work/bin/$1"
}
replace_sum() { # script, sum, file: the copy of a script knows a small file's sum in place of the real one's
    grep -q "$2" "$tree/$1" || fail "$1 no longer has the sum $2"
    sum=$(sha256sum <"$3" | cut -d' ' -f1)
    sed "s/$2/$sum/" "$tree/$1" >"$work/script" && cat "$work/script" >"$tree/$1"
}
tree=$work/tree
mkdir -p "$tree/novels/more" "$work/bin" "$work/net/openai-whisper" "$work/package/whisper/assets" && cp -r scripts "$tree/" || exit 1
ln -s "$build" "$tree/build"
small=dev/fixtures/tokenizer_small.tiktoken
for part in one two more/three; do ./stories --stories 40 --seed ${#part} --out "$tree/novels/$part.txt" >/dev/null 2>&1 || exit 1; done
# ranks need MPI and nccl.h; where they are missing one process does
gpus=$build/cuda_on_cpu/fast-bf16 ranks=8
if [ ! -x "$gpus/train_gpt2" ] || [ ! -x "$gpus/sample_gpt2" ] || [ ! -x "$gpus/evaluate" ]; then
    skip "the GPU's programs" "they are not built; the CPU's run in their place"
    gpus=$root
fi
has_header() { [ -n "$(find $(dev/cuda_on_cpu/headers.sh --find) -maxdepth 1 -name "$1" -print -quit 2>/dev/null)" ]; }
if ! command -v mpirun >/dev/null 2>&1 || ! grep -q DHAVE_MPI "$build/config.mk" || { [ "$gpus" != "$root" ] && ! has_header nccl.h; }; then
    skip "eight ranks" "there is no MPI, or no nccl.h"
    ranks=1
    printf '2\ttrain_124M.sh 8\ttrain_124M.sh 1\n' >>"$work/smaller"
fi
stand_in make <<END
case \$* in
'') for program in train_gpt2 sample_gpt2 tokenize inspect stories; do ln -s "$root/\$program" .; done ;;
cuda) for program in train_gpt2 sample_gpt2 evaluate; do ln -s "$gpus/\$program" "\${program}_cuda"; done ;;
esac
END
printf 'for gpu in 0 1 2 3 4 5 6 7; do echo "GPU $gpu: one"; done\n' | stand_in nvidia-smi
make_shard "$work/net/fineweb_train_000001.bin" 6000 1
make_shard "$work/net/fineweb_val_000000.bin" 600 3
for label in 0 1 2 3; do
    printf '{"ind": %s, "activity_label": "Roof", "ctx_a": "A man", "ctx_b": "he", "ctx": "A man sits. he", "split": "val", "endings": ["is up", "is out", "sings", "sits"], "label": %s}\n' $label $label
done >"$work/net/hellaswag_val.jsonl"
stand_in curl <<END
while [ \$# -gt 0 ]; do [ "\$1" != -o ] || file=\$2; address=\$1; shift; done
cp "$work/net/\${address##*/}" "\${file:-\${address##*/}}"
END
replace_sum scripts/get_corpus.sh 771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e "$work/net/fineweb_train_000001.bin"
replace_sum scripts/get_corpus.sh 5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640 "$work/net/fineweb_val_000000.bin"
replace_sum scripts/get_gpt2_vocab.sh 306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930 "$small"
# a package index for get_gpt2_vocab.sh
cp "$small" "$work/package/whisper/assets/gpt2.tiktoken"
tar -czf "$work/net/openai-whisper/openai_whisper-20250625.tar.gz" -C "$work" package
echo '<a href="/openai-whisper/openai_whisper-20250625.tar.gz">it</a>' >"$work/net/openai-whisper/index.html"
python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$work/net" >"$work/served" 2>&1 &
server=$!
for _ in $(seq 100); do grep -q 'port [0-9]' "$work/served" && break; sleep 0.1; done
PIP_INDEX_URL=http://127.0.0.1:$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/served") no_proxy=127.0.0.1
export PIP_INDEX_URL no_proxy

# ---- the page
python=${RECIPE_PYTHON:-$build/venv-interop/bin/python}
case $python in /*) ;; *) python=$root/$python ;; esac
"$python" -c 'import torch, transformers' 2>/dev/null || python=""
check_equal "what is made smaller is in the page" "$(write_recipes "$python")" ""
export HF_HUB_OFFLINE=1 HF_HOME="$work/cache" TRANSFORMERS_VERBOSITY=error
follow 1
check_equal "three attentions, three seeds, the best first" "$(python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
print(sorted(row["label"] for row in rows), {row["loss"]["n"] for row in rows})
assert [row["loss"]["mean"] for row in rows] == sorted(row["loss"]["mean"] for row in rows)' "$tree/runs/novels/results.json")" \
    "['elu', 'slay:decay=learned', 'softmax'] {3}"
check "the page of the comparison" grep -q '<!doctype html>' "$tree/runs/novels/report.html"
check "the best is trained on" ls -d "$tree/runs/best/step_00000060"
check_equal "three samples" "$(after 1 './sample_gpt2 runs/best --prompt It was --samples' | grep -c '^It was')" 3
[ -z "$python" ] || check_equal "PyTorch writes what the sampler writes" "$(after 1 'from glob')" "$(after 1 './sample_gpt2 runs/best --prompt It was --tokens')"

follow 2
for attention in softmax slay; do
    run=$tree/runs/gpt2_124M_$attention
    check "$attention: all steps" ls -d "$run/step_00000020"
    check_contains "$attention: ranks" "\"ranks\": $ranks" "$run/metrics.jsonl"
    check_equal "$attention: HellaSwag while training" \
        "$(sed -n 's/.*"type": "evaluation", "step": \([0-9]*\),.*/\1/p' "$run/metrics.jsonl" | tr '\n' ' ')" "10 20 "
    check_contains "$attention: evaluated" "(599 tokens)" "$run/evaluation_00000020.txt"
    check "$attention: event files" ls "$run"/events.out.tfevents.*
done
check_equal "the evaluation is shown" "$(after 2 cat | grep -c '(599 tokens)')" 1
check_equal "HellaSwag in detail" "$(after 2 ./evaluate_cuda | grep -c '(4 examples, chance 0.2500)')" 1
check_equal "scores" "$(grep -c '"scores"' "$tree/hellaswag_scores.jsonl")" 4
check "the page of both runs" grep -q slay "$tree/124M.html"
summary
