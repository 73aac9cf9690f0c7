#!/bin/sh
# Tests of the scripts around the programs: each explains itself and refuses what it does not know before it does anything;
# the quick start and the stories leave earlier work alone; the paper's recipe finds the GPU's trainer; a Slurm job goes on
# with the options it was given last. Needs the programs. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
root=$PWD
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
. scripts/checks.sh

# A tree like this one, with the programs but with data and runs of its own.
tree=$work/tree
mkdir -p "$tree" && cp -r scripts "$tree/" && mkdir "$tree/dev" && cp -r dev/bench dev/cuda_on_cpu "$tree/dev/" || exit 1
for program in train_gpt2 sample_gpt2 stories tokenize inspect; do ln -s "$root/$program" "$tree/"; done
cd "$tree" || exit 1
files() { find . -newer "$work/mark" ! -type d ! -name '*.pyc' && find . | sort | cksum; }

# ---- --help and unknown options; nothing is made, whatever the script would do
touch "$work/mark"
before=$(files)
explains_itself() { # script
    "./$1" --help >"$work/out" 2>"$work/err" </dev/null
    check_equal "$1 --help: exit code and errors" "$? $(cat "$work/err")" "0 "
    check_equal "$1 --help: a usage" "$(grep -qi "${1##*/}\|usage" "$work/out" && echo yes)" yes
    "./$1" --nonsense >"$work/out" 2>"$work/err" </dev/null
    check_equal "$1 --nonsense is refused" "$([ $? = 0 ] || echo refused)" refused
    check_equal "$1 --nonsense: the message" "$(grep -q 'nonsense\|usage: ' "$work/err" && echo told)" told
}
for script in scripts/*; do
    case $script in
    */test_* | *.sbatch) ;;
    *) [ -d "$script" ] || [ ! -x "$script" ] || explains_itself "$script" ;;
    esac
done
for script in dev/bench/run.sh dev/bench/bench_gpu.sh dev/bench/bench_parallel.sh dev/cuda_on_cpu/headers.sh; do
    explains_itself "$script"
done
sh scripts/train_slurm.sbatch --help >"$work/out" 2>"$work/err"
check_contains "train_slurm.sbatch --help" "scripts/train_slurm.sbatch --train" "$work/out"
refused() { # name, part of the one line, command
    name=$1 part=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err" </dev/null
    check_equal "$name: exit code, lines" "$? $(wc -l <"$work/err" | tr -d ' ')" "1 1"
    check_contains "$name: message" "$part" "$work/err"
}
refused "too many words" "at most 2 words" scripts/quickstart.sh softmax 3 4
refused "too few words" "at least 1 words" scripts/curve.sh
refused "seconds that are none" "found 'soon'" scripts/quickstart.sh softmax soon
refused "no such attention" "expected one of softmax, " scripts/quickstart.sh sotfmax
refused "the paper without an attention" "found ''" scripts/train_paper.sh
refused "the paper with another one" "expected one of softmax, " scripts/train_paper.sh ../x
refused "processes that are no number" "found 'two'" scripts/train_mpi.sh two
check_equal "none of these made anything" "$(files)" "$before"

# ---- stories: made once; what differs is set aside
small_stories() { # stands in for ./stories: as much text as a test needs
    rm -f stories
    printf '#!/bin/sh\nexec "%s" --bytes %s "$@" --bytes %s\n' "$root/stories" "$1" "$1" >stories
    sed 's/--vocab 2048/--vocab 300/' "$root/scripts/make_stories.sh" >scripts/make_stories.sh
    chmod +x stories scripts/make_stories.sh
    touch -d '2001-01-01' stories
}
small_stories 100k
make_stories() { scripts/make_stories.sh >"$work/out" 2>"$work/err" || fail "make_stories" "$(cat "$work/err")"; }
make_stories
cksum data/stories/* >"$work/first"
make_stories
check_contains "stories are made once" "there already" "$work/out"
touch -d '2001-01-01' data/stories/stories.json
make_stories
check_equal "made again, the same: nothing is set aside" "$(ls data)" stories
echo "a note" >data/stories/note.txt
touch -d '2001-01-01' data/stories/stories.json
make_stories
check_contains "other data: where it is" "now in data/stories.before" "$work/out"
check_equal "other data is kept" "$(cat data/stories.before/note.txt 2>&1)" "a note"
cksum data/stories/* >"$work/again"
check_same_file "and the stories are as before" "$work/first" "$work/again"

# ---- the quick start: every run stays
quickstart() {
    scripts/quickstart.sh softmax 1 >"$work/out" 2>"$work/err" </dev/null || fail "quickstart" "$(tail -n 3 "$work/err")"
}
quickstart
check_contains "the first run's name" "--resume runs/quickstart_softmax --steps" "$work/out"
check_contains "the recipe" '"init-std": 0.06' runs/quickstart_softmax/metrics.jsonl
cksum runs/quickstart_softmax/step_*/* >"$work/first"
quickstart
check_contains "the second run's name" "--resume runs/quickstart_softmax_2 --steps" "$work/out"
cksum runs/quickstart_softmax/step_*/* >"$work/again"
check_same_file "the first run stays" "$work/first" "$work/again"
quickstart
check_equal "a third" "$(ls -d runs/*)" "runs/quickstart_softmax
runs/quickstart_softmax_2
runs/quickstart_softmax_3"
refused "no such run to judge" "no such file" scripts/check_quickstart.sh runs/none

# ---- a program that prints how it was called, in place of another
stand_in() { # name
    rm -f "$1"
    # shellcheck disable=SC2016
    printf '#!/bin/sh\n[ "$*" != "--attention list" ] || exec "%s" "$@"\necho "${0##*/} $*"\n' "$root/train_gpt2" >"$1"
    chmod +x "$1"
}

# ---- the paper's recipe: on the GPU where there is one
mkdir "$work/bin"
printf '#!/bin/sh\necho "GPU 0: a stand-in"\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
paper() { PATH="$work/bin:$PATH" scripts/train_paper.sh slay --batch 256 2>&1 | head -n 1; }
stand_in train_gpt2
check_equal "the paper without the GPU's trainer" "$(paper | cut -d ' ' -f 1)" train_gpt2
cpu_options=$(paper | cut -d ' ' -f 2-)
stand_in train_gpt2_cuda
check_equal "the paper on the GPU" "$(paper | cut -d ' ' -f 1)" train_gpt2_cuda
check_equal "with the same options" "$(paper | cut -d ' ' -f 2-)" "$cpu_options"
check_equal "and one's own after" "${cpu_options##* --out }" "runs/paper_slay --batch 256"
check_equal "another trainer by name" "$(PROGRAM=./train_gpt2 paper | cut -d ' ' -f 1)" train_gpt2
printf '#!/bin/sh\necho "No devices were found"; exit 6\n' >"$work/bin/nvidia-smi"
check_equal "the paper without a GPU" "$(paper | cut -d ' ' -f 1)" train_gpt2
rm train_gpt2 train_gpt2_cuda && ln -s "$root/train_gpt2" .

# ---- a Slurm job: begun, then submitted again with other options; srun runs one process
printf '#!/bin/sh\nwhile case $1 in --*) true ;; *) false ;; esac; do shift; done\nexec "$@"\n' >"$work/bin/srun"
chmod +x "$work/bin/srun"
. scripts/tiny_shard.sh
make_shard "$work/train.bin" 1500 1
submit() { PATH="$work/bin:$PATH" sh scripts/train_slurm.sbatch --train "$work/train.bin" --model tiny --layers 1 --heads 2 \
    --width 16 --context 32 --vocab 61 --batch 4 --warmup 1 --quiet "$@" >"$work/out" 2>"$work/err" </dev/null; }
saved() { (cd "$work/job" && echo step_*); }
submit --out "$work/job" --steps 4 --save-every 0 --schedule constant
check_equal "a job: exit code" "$? $(cat "$work/err")" "0 "
submit --out "$work/job" --steps 4 --save-every 0 --schedule constant
check_equal "queued again: exit code" "$? $(cat "$work/err")" "0 "
check_equal "queued again: it was over" "$(saved)" step_00000004
submit --out="$work/job" --steps 8 --save-every 2 --keep 9 --schedule constant --init "$work/job/step_00000004"
check_equal "more steps: exit code" "$? $(cat "$work/err")" "0 "
check_equal "more steps, other intervals" "$(saved)" "step_00000004 step_00000006 step_00000008"
submit --out "$work/job" --steps 12 --batch 8
check_equal "what cannot change: exit code" "$?" 1
check_contains "what cannot change: message" "the run to resume has 4, found 8" "$work/err"

cd "$root" || exit 1
summary
