#!/bin/sh
# Tests of the GPU's trainer and sampler as programs, run on the CPU by dev/cuda_on_cpu: the same console, metrics,
# checkpoints and text as train_gpt2 and sample_gpt2, exact resumption, runs that move between CPU and GPU, options of their
# own, numbers that are not finite. Needs the CPU's programs and both precisions of the GPU's: those of the harness's
# CUDA_MODE, fast; `make test-gpu` names those of nvcc, GPU_TRAIN_FP32, GPU_TRAIN_BF16, GPU_SAMPLE_FP32, GPU_SAMPLE_BF16.
# Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
programs=${BUILD:-build}/cuda_on_cpu mode=${CUDA_MODE:-fast}
fp32=${GPU_TRAIN_FP32:-$programs/$mode/train_gpt2} bf16=${GPU_TRAIN_BF16:-$programs/$mode-bf16/train_gpt2}
sample_fp32=${GPU_SAMPLE_FP32:-$programs/$mode/sample_gpt2} sample_bf16=${GPU_SAMPLE_BF16:-$programs/$mode-bf16/sample_gpt2}
for program in ./train_gpt2 ./sample_gpt2 "$fp32" "$bf16" "$sample_fp32" "$sample_bf16"; do
    [ -x "$program" ] || { echo "$program is missing; run make test-programs"; echo "0 passed, 1 failed"; exit 1; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1

check() { # name, then a command that must succeed
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $name: $*"; tail -n 5 "$work/err"; fi
}
run() { # program, run directory, options; the start-up table and the step lines go to $work/out
    program=$1 directory=$2
    shift 2
    "$program" --out "$work/$directory" --threads 1 "$@" >"$work/out" 2>"$work/err" </dev/null
}
. scripts/tiny_shard.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 3
small="--train $work/train.bin --val $work/val.bin --layers 2 --heads 2 --width 16 --context 32 --vocab 61 --sequence 16
    --batch 3 --micro-batch 2 --warmup 3 --val-every 2 --save-every 3 --adam-eps 1e-5"

same_file() { cmp "$work/$1" "$work/$2"; }
header() { # of a safetensors file: its length, then JSON; without the digits of the checksums, which follow the numbers
    head -c $((8 + $(od -An -tu8 -N8 "$1"))) "$1" | LC_ALL=C sed 's/":"[0-9a-f]\{16\}"/":""/g'
}
same_layout() { # checkpoint, checkpoint: the same files, with the same tensors at the same places
    (cd "$work/$1" && find . -type f | sort) >"$work/files1" && (cd "$work/$2" && find . -type f | sort) >"$work/files2"
    cmp "$work/files1" "$work/files2" || return
    for file in model.safetensors optimizer.safetensors; do
        header "$work/$1/$file" >"$work/header1" && header "$work/$2/$file" >"$work/header2"
        [ "$(wc -c <"$work/$1/$file")" = "$(wc -c <"$work/$2/$file")" ] && cmp "$work/header1" "$work/header2" || return
    done
}
losses() { sed -n 's/.*"type": "\(step\|validation\)", "step": \([0-9]*\),.*"loss": \([0-9.]*\),.*/\1\2 \3/p' "$work/$1/metrics.jsonl"; }
losses_agree() { # run, run, bound: every loss of the second run is in the first, within the bound
    losses "$1" >"$work/losses1" && losses "$2" >"$work/losses2"
    [ -s "$work/losses2" ] && awk -v bound="$3" 'NR == FNR { found[$1] = $2; next }
        { d = found[$1] - $2; if (!($1 in found) || !(d <= bound && -d <= bound)) { print $1, found[$1], $2; bad = 1 } }
        END { exit bad }' "$work/losses1" "$work/losses2"
}
numbers() { tail -c +$((9 + $(od -An -tu8 -N8 "$1"))) "$1" | od -An -v -tf4 -w4; }
numbers_agree() { # file, file, bound, how many numbers there are at least
    numbers "$1" >"$work/numbers1" && numbers "$2" >"$work/numbers2"
    paste "$work/numbers1" "$work/numbers2" | awk -v bound="$3" -v least="$4" '
        { d = $1 - $2; if (!(NF == 2 && d <= bound && -d <= bound)) { if (!bad++) print NR ": " $0 } }
        END { exit bad > 0 || NR < least }'
}
weights_agree() { # checkpoint, checkpoint, bound
    numbers_agree "$work/$1/model.safetensors" "$work/$2/model.safetensors" "$3" 5000
}

# ---- two files that read alike
functions() { sed -n 's/^[a-z].*[ *]\([a-z_0-9]*\)(.*[,{]$/\1/p' "$1"; } # in their order
functions train_gpt2.c >"$work/functions_c" && functions train_gpt2.cu >"$work/functions_cu"
grep -xFf "$work/functions_cu" "$work/functions_c" >"$work/common_c"
grep -xFf "$work/functions_c" "$work/functions_cu" >"$work/common_cu"
check "functions of the same name" test "$(wc -l <"$work/common_c")" -ge 35
check "in the same order" cmp "$work/common_c" "$work/common_cu"
# Arguments that only one side needs, always the last ones: streams and scratch; the GPU's lists of rows; the CPU's weights
# of fewer bits.
only_one_side="stream work work_rows by_token by_position V kind keep_weights"
arguments() { # of a file: every function's name and the names of its arguments, without those
    awk -v extra="$only_one_side" 'BEGIN { count = split(extra, names, " "); for (i = 1; i <= count; i++) only[names[i]] }
        /^[a-z].*[ *][a-z_0-9]+\(.*[,{]$/ && !/__global__/ {
            text = $0
            while (text !~ /\{$/ && (getline line) > 0) text = text line
            name = text; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
            sub(/^[^(]*\(/, "", text); sub(/\) \{$/, "", text)
            count = split(text, argument, /, */)
            for (i = 1; i <= count; i++) sub(/.*[ *&]/, "", argument[i])
            while (count > 0 && argument[count] in only) count--
            printf "%s:", name
            for (i = 1; i <= count; i++) printf " %s", argument[i]
            print ""
        }' "$1"
}
for program in train_gpt2 sample_gpt2; do
    arguments $program.c | sort >"$work/arguments_c" && arguments $program.cu | sort >"$work/arguments_cu"
    cut -d: -f1 "$work/arguments_c" >"$work/names_c" && cut -d: -f1 "$work/arguments_cu" >"$work/names_cu"
    for common in $(comm -12 "$work/names_c" "$work/names_cu"); do
        check_equal "$program: arguments of the same function" \
            "$(grep "^$common:" "$work/arguments_cu")" "$(grep "^$common:" "$work/arguments_c")"
    done
done
check "of the sampler too" test "$(comm -12 "$work/names_c" "$work/names_cu" | wc -l)" -ge 8

# ---- beside the CPU's trainer
# shellcheck disable=SC2086
{
    check "CPU trains" run ./train_gpt2 cpu $small --steps 6
    check "GPU trains" run "$fp32" gpu $small --steps 6
    check "the memory plan" grep -q "^GPU memory .*activations .* MB, .*in all" "$work/out"
    check "bf16 trains" run "$bf16" half $small --steps 6
    check "fp32 and CPU: losses" losses_agree gpu cpu 0.0001
    check "bf16 and CPU: losses" losses_agree half cpu 0.03
    check "the same configuration file" same_file gpu/step_00000006/config.json cpu/step_00000006/config.json
    check "the same files and headers" same_layout gpu/step_00000006 cpu/step_00000006
    check "in bf16 too" same_layout half/step_00000006 cpu/step_00000006
    check "again" run "$fp32" again $small --steps 6
    check "the same bits from run to run" same_file again/step_00000006/model.safetensors gpu/step_00000006/model.safetensors
    # ---- resumed: exactly, and on the other side
    for precision in fp32 bf16; do
        [ $precision = fp32 ] && program=$fp32 whole=gpu || { program=$bf16 whole=half; }
        check "$precision, first half" run "$program" "resumed_$precision" $small --steps 3
        cp -r "$work/resumed_$precision" "$work/moved_$precision"
        check "$precision, second half" run "$program" "resumed_$precision" --resume "$work/resumed_$precision" --steps 6
        check "$precision resumes exactly" same_file "resumed_$precision/step_00000006/model.safetensors" "$whole/step_00000006/model.safetensors"
        check "$precision, moments too" same_file "resumed_$precision/step_00000006/optimizer.safetensors" "$whole/step_00000006/optimizer.safetensors"
    done
    # ---- Muon: beside the CPU's, resumed exactly
    muon="$small --optimizer muon --schedule constant"
    check "Muon on the CPU" run ./train_gpt2 muon_cpu $muon --steps 6
    for precision in fp32 bf16; do
        [ $precision = fp32 ] && program=$fp32 bound=0.0001 || { program=$bf16 bound=0.05; }
        check "Muon in $precision" run "$program" "muon_$precision" $muon --steps 6
        check "Muon in $precision and on the CPU: losses" losses_agree "muon_$precision" muon_cpu $bound
        check "Muon in $precision: the same files and headers" same_layout "muon_$precision/step_00000006" muon_cpu/step_00000006
        check "Muon in $precision, first half" run "$program" "muon_half_$precision" $muon --steps 3
        check "Muon in $precision, second half" run "$program" "muon_half_$precision" --resume "$work/muon_half_$precision" --steps 6
        for file in model optimizer; do
            check "Muon in $precision resumes exactly: $file" same_file "muon_half_$precision/step_00000006/$file.safetensors" "muon_$precision/step_00000006/$file.safetensors"
        done
    done
    check "Muon in fp32 and on the CPU: weights" weights_agree muon_fp32/step_00000006 muon_cpu/step_00000006 0.002
    ! run "$fp32" none --resume "$work/muon_half_fp32" --steps 9 --optimizer adamw --out "$work/muon_half_fp32"
    check "another optimiser" grep -q "option --optimizer: the run to resume has muon" "$work/err"
    # ---- documents kept apart: beside the CPU's, resumed exactly, as graphs
    make_documents "$work/documents.bin" 4 5 11 16 1 9 6 2 14 16 8 8 3 5 7 1 1 15
    make_documents "$work/documents_val.bin" 5 7 9 16 1 15 12 4
    apart="--train $work/documents.bin --val $work/documents_val.bin --tokenizer dev/fixtures/tokenizer_small.tiktoken
        --layers 2 --heads 2 --width 16 --context 32 --sequence 16 --batch 3 --micro-batch 2 --warmup 3 --val-every 2
        --adam-eps 1e-5 --init-std 0.1 --schedule constant --document-mask"
    for attention in softmax slay:decay=learned,yat:window=5; do
        check "$attention, documents apart on the CPU" run ./train_gpt2 apart_cpu $apart --attention $attention --steps 6
        check "$attention, documents together" run "$fp32" together $apart --no-document-mask --attention $attention --steps 6
        for precision in fp32 bf16; do
            [ $precision = fp32 ] && program=$fp32 bound=0.0001 || { program=$bf16 bound=0.03; }
            rm -rf "$work/apart" "$work/apart_half"
            check "$attention, documents apart in $precision" run "$program" apart $apart --attention $attention --steps 6
            check "$attention, documents apart in $precision and on the CPU: losses" losses_agree apart apart_cpu $bound
            check "$attention, documents apart in $precision, first half" run "$program" apart_half $apart --attention $attention --steps 3
            check "$attention, documents apart in $precision, second half as graphs" run "$program" apart_half --resume "$work/apart_half" --steps 6 --graphs
            check "$attention, documents apart in $precision resumes exactly" same_file apart_half/step_00000006/model.safetensors apart/step_00000006/model.safetensors
            [ $precision = bf16 ] || check "$attention, documents apart are others" test "$(losses apart)" != "$(losses together)"
        done
        rm -rf "$work/apart_cpu" "$work/together"
    done
    check "continued on the CPU" run ./train_gpt2 moved_fp32 --resume "$work/moved_fp32" --steps 6
    check "GPU, then CPU: losses" losses_agree moved_fp32 cpu 0.0001
    last=step_00000006
    # both ways in one run, with its constants; a list over the layers without positions
    for attention in softmax yat yat-spherical elu cosformer favor slay slay,softmax; do
        moving="$small --attention $attention --schedule constant"
        case $attention in *,*) moving="$moving --positions none" ;; esac
        check "$attention stays on the CPU" run ./train_gpt2 "stays_$attention" $moving --steps 6
        check "$attention begins there" run ./train_gpt2 "moves_$attention" $moving --steps 2
        check "$attention goes to the GPU" run "$fp32" "moves_$attention" --resume "$work/moves_$attention" --steps 4
        check "$attention goes back" run ./train_gpt2 "moves_$attention" --resume "$work/moves_$attention" --steps 6
        check "$attention, CPU, GPU, CPU: losses" losses_agree "moves_$attention" "stays_$attention" 0.0001
        check "$attention: weights" weights_agree "moves_$attention/$last" "stays_$attention/$last" 0.00001
        check "$attention, the same layout" same_layout "moves_$attention/step_00000004" "stays_$attention/$last"
        check "$attention on the GPU" run "$fp32" "whole_$attention" $moving --steps 6
        check "$attention, first half" run "$fp32" "halves_$attention" $moving --steps 3
        check "$attention, second half" run "$fp32" "halves_$attention" --resume "$work/halves_$attention" --steps 6
        for file in model optimizer; do
            check "$attention resumes exactly: $file" \
                same_file "halves_$attention/$last/$file.safetensors" "whole_$attention/$last/$file.safetensors"
        done
    done
    # ---- options that mean something else here
    check "graphs" run "$fp32" graphs $small --steps 6 --graphs
    check "as graphs: the same bits" same_file graphs/step_00000006/model.safetensors gpu/step_00000006/model.safetensors
    check "recompute cheap" run "$fp32" cheap $small --steps 6 --recompute cheap
    check "recompute cheap: losses" losses_agree cheap gpu 0.00001
    check "recompute blocks" run "$fp32" blocks $small --steps 6 --recompute blocks
    check "recompute blocks: the same bits" same_file blocks/step_00000006/model.safetensors gpu/step_00000006/model.safetensors
    # ---- GELU: within the products where that is one kernel, or as the option says
    check "bf16 from sm_90 on" run "$bf16" gelu_fused $small --steps 6 --fuse-gelu yes
    check "the GELU is fused, and the console tells" grep -q "^GELU  *within cuBLASLt" "$work/out"
    check "bf16 without it" run "$bf16" gelu_apart $small --steps 6 --fuse-gelu no
    check "which it tells too" grep -q "^GELU  *by our own kernels" "$work/out"
    check "fused and apart: losses" losses_agree gelu_apart gelu_fused 0.03
    if [ -z "${GPU_TRAIN_FP32:-}" ]; then
        check "by itself fused on sm_90" same_file gelu_fused/step_00000006/model.safetensors half/step_00000006/model.safetensors
        export CUDA_ON_CPU_CAPABILITY=80
        check "on sm_80" run "$bf16" gelu_sm80 $small --steps 6
        unset CUDA_ON_CPU_CAPABILITY
        check "by itself apart on sm_80" same_file gelu_apart/step_00000006/model.safetensors gelu_sm80/step_00000006/model.safetensors
    fi
    # ---- rows at once: as many as fit
    chooses=$(echo $small | sed 's/--micro-batch 2//')
    check "rows chosen" run "$fp32" chosen $chooses --steps 6
    check "all of them" grep -q "^batch .* micro-batch 3 " "$work/out"
    check "which changes nothing but rounding" losses_agree chosen gpu 0.00001
    check "rows chosen, resumed" run "$fp32" chosen --resume "$work/chosen" --steps 7
    check "as before" grep -q "^batch .* micro-batch 3 " "$work/out"
    check "slay with dropout" run "$fp32" slay $small --steps 2 --attention slay --dropout 0.1 --profile
    check "the profile" grep -q "^attention .*%" "$work/out"
    check "slay on the CPU" run ./train_gpt2 slay_cpu $small --steps 2 --attention slay --dropout 0.1
    check "slay: losses" losses_agree slay slay_cpu 0.0001
    # ---- ranges for Nsight: a tool of ours in its place
    includes=$(for directory in $(dev/cuda_on_cpu/headers.sh --find); do printf ' -isystem %s' "$directory"; done)
    check "the recorder of ranges" ${CC:-cc} -shared -fPIC $includes dev/cuda_on_cpu/nvtx_recorder.c -o "$work/recorder.so"
    recorded() { NVTX_INJECTION64_PATH=$work/recorder.so NVTX_RECORD=$work/ranges "$fp32" --out "$work/recorded" "$@" >"$work/out" 2>"$work/err"; }
    check "a recorded step" recorded $small --steps 1
    # two micro-batches of two layers; forward passes also validate
    check "a range for every layer" test "$(sort -k 2 "$work/ranges" | grep -v "forward\|head" | tr '\n' ',')" = \
        "4 attention backward,2 embedding backward,4 gelu backward,10 layernorm backward,16 linear backward,1 norm and AdamW,"
    check "forward too" test "$(grep -c "forward\|head" "$work/ranges")" = 6
    # ---- rows whose denominator was floored: a signed attention with a delta that no negative sum passes
    signed="--attention rff --delta 1000 --init-std 1 --steps 2"
    check "rff" run "$fp32" rff $small $signed
    check "rff on the CPU" run ./train_gpt2 rff_cpu $small $signed
    floored_rows() { grep -o '"step": [12],.*"floored_rows": [0-9]*' "$work/$1/metrics.jsonl" | sed 's/,.*, / /'; }
    check "floored rows are counted" test "$(floored_rows rff_cpu | wc -l)" = 2
    check "as many as on the CPU" test "$(floored_rows rff)" = "$(floored_rows rff_cpu)"
    # ---- softmax attention through cuDNN, on the harness through what stands in for it
    if [ -x "$programs/fast-cudnn/train_gpt2" ]; then
        check "cuDNN trains" run "$programs/fast-cudnn/train_gpt2" cudnn $small --steps 6
        check "which the console tells" grep -q "^softmax  *by cuDNN 9" "$work/out"
        check "cuDNN: losses" losses_agree cudnn cpu 0.03
        export CUDA_ON_CPU_CUDNN=91800 # which lacks what we ask of it
        check "an old cuDNN" run "$programs/fast-cudnn/train_gpt2" cudnn_old $small --steps 6 --graphs
        unset CUDA_ON_CPU_CUDNN
        check "is left out, and the console tells why" grep -q "^softmax  *by our own kernels, not by cuDNN 9.18.0: .*deterministic" "$work/out"
        check "our own kernels' bits" same_file cudnn_old/step_00000006/model.safetensors half/step_00000006/model.safetensors
        check "cuDNN as graphs" run "$programs/fast-cudnn/train_gpt2" cudnn_graphs $small --steps 6 --graphs
        check "the same bits" same_file cudnn_graphs/step_00000006/model.safetensors cudnn/step_00000006/model.safetensors
    else
        skip "softmax attention through cuDNN" "$programs/fast-cudnn/train_gpt2 is not built"
    fi
    # ---- an error of CUDA's: its place, the call, and a hint whose options exist. The harness can be a device too small,
    # or none, with and without a driver, or one whose driver is too old.
    if [ -z "${GPU_TRAIN_FP32:-}" ]; then
        wide="--val $work/val.bin --layers 2 --heads 2 --width 64 --context 100 --vocab 61 --batch 500 --steps 0"
        export CUDA_ON_CPU_MEMORY_MB=100
        check "a small GPU" run "$fp32" small_gpu $wide
        check "gets an equal part of the batch" grep -q "^batch .* micro-batch 32 " "$work/out"
        ! run "$fp32" too_many $wide --micro-batch 100
        check "too many rows: what would fit" \
            grep -q "^train_gpt2: this run needs 0.1 GB of memory (cuBLAS .*activations .*; --micro-batch [0-9]* --recompute [a-z]* would fit" "$work/err"
        export CUDA_ON_CPU_MEMORY_MB=1
        ! run "$fp32" too_small $wide
        check "nothing fits" grep -q "no setting of --micro-batch and --recompute fits" "$work/err"
        ! "$sample_fp32" "$work/gpu" --prompt-ids 1 >"$work/out" 2>"$work/err"
        unset CUDA_ON_CPU_MEMORY_MB
        check "no memory: file, line, call, hint" \
            grep -q "^core/[a-z_/]*\.cu:[0-9]*: cudaMalloc(.*: out of memory (use .*)" "$work/err"
        "$fp32" --help >"$work/help"
        for option in $(grep -o -e '--[A-Za-z-]*' "$work/err"); do
            check "no memory: the hint's $option" grep -q -e "$option\>" "$work/help"
        done
        told_in_one_line() { # part, setting, command
            part=$1 setting=$2
            shift 2
            env "$setting" "$@" >"$work/out" 2>"$work/err" </dev/null
            [ $? = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -q "^$part" "$work/err"
        }
        for program in "$fp32 $small --out $work/no_gpu" "$sample_fp32 $work/gpu --prompt-ids 1"; do
            which=$(basename "${program%% *}")
            check "$which without a GPU" told_in_one_line "$which: no GPU found: .*CUDA_VISIBLE_DEVICES" CUDA_ON_CPU_DEVICES=0 $program
            check "$which without a driver" told_in_one_line "$which: no GPU found: .*driver.*install" CUDA_ON_CPU_DRIVER=0 $program
            check "$which with an old driver" told_in_one_line ".*driver is older than" CUDA_ON_CPU_DRIVER=11000 $program
        done
    else
        skip "errors of CUDA's" "only the harness makes them"
    fi
    # ---- numbers that are not finite
    bad="--lr 100 --weight-decay 100 --warmup 0 --clip 0 --schedule constant --steps 24" # weights grow 9999-fold a step
    ! run "$fp32" bad $small $bad
    check "a run that blows up stops" grep -q "is not finite .*the weights are as they were before" "$work/err"
    check "and can be told to go on" run "$fp32" skips $small $bad --on-nan skip --nan-limit 30
    check "which its metrics tell" grep -q '"event": "skipped"' "$work/skips/metrics.jsonl"
    ! run "$fp32" unknown $small --attention nonsense
    check "an unknown attention" grep -q "option --attention: expected one of softmax" "$work/err"
}
# ---- text: every way of sample_gpt2, the same as on the CPU
{
    ./stories --stories 30 --seed 3 --out "$work/text" && ./tokenize train --vocab 300 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/told" "$work/text" &&
        ./train_gpt2 --train "$work/told_train_000000.bin" --tokenizer "$work/vocab" --layers 2 --heads 2 --width 32 \
            --context 40 --batch 4 --steps 20 --warmup 2 --lr 1e-2 --attention slay --out "$work/teller"
} >"$work/log" 2>"$work/err"
check "a model that tells stories" test -d "$work/teller"
# ---- samples while training: the CPU's, and without a bit of the run changed
told="--train $work/told_train_000000.bin --tokenizer $work/vocab --layers 2 --heads 2 --width 32 --context 40 --batch 4 --warmup 2 --lr 1e-2 --steps 6"
samples() { grep '"type": "sample"' "$work/$1/metrics.jsonl"; }
# shellcheck disable=SC2086
for attention in softmax slay; do
    run ./train_gpt2 sampled_cpu_$attention $told --attention $attention --sample-every 3 --sample-tokens 10
    check "$attention: samples while training" run "$fp32" sampled_$attention $told --attention $attention --sample-every 3 --sample-tokens 10
    check "$attention: as on the CPU" test "$(samples sampled_$attention)" = "$(samples sampled_cpu_$attention)"
    check "$attention: two of them" test "$(samples sampled_$attention | wc -l)" = 2
done
# shellcheck disable=SC2086
check "samples in bf16" run "$bf16" sampled_bf16 $told --sample-every 2 --sample-tokens 5
# shellcheck disable=SC2086
check "the same in bf16 without" run "$bf16" unsampled_bf16 $told
check "samples change no bit of a run" same_file sampled_bf16/step_00000006/model.safetensors unsampled_bf16/step_00000006/model.safetensors
same_text() { # options
    expected=$(sample_cpu "$@") && [ -n "$expected" ] && [ "$(sample_gpu "$@")" = "$expected" ]
}
sample_cpu() { ./sample_gpt2 "$work/teller" --threads 1 --tokens 12 "$@" 2>/dev/null </dev/null; }
sample_gpu() { "$sample_fp32" "$work/teller" --tokens 12 "$@" 2>"$work/err" </dev/null; }
check "a text" same_text --prompt "The old" --seed 5
check "the statistics" grep -q "^text: .*tokens/s" "$work/err"
check "no statistics" test -z "$(sample_gpu --prompt The --no-stats >/dev/null; cat "$work/err")"
check "greedy" same_text --prompt "The" --temperature 0
check "top-k and top-p" same_text --prompt "The" --top-k 5 --top-p 0.8 --temperature 1.2 --seed 3
check "several samples of one prompt" same_text --prompt "The old" --samples 3 --seed 7
check "from the middle of a text, on past its end" same_text --prompt "keeper" --no-begin --no-stop
check "longer than the context" same_text --prompt "The" --tokens 70 --no-stop --temperature 0.5
echo "The hill" >"$work/prompt"
check "a prompt in a file" same_text --prompt-file "$work/prompt"
check "a prompt in numbers" same_text --prompt-ids 84,104,101
check "no prompt" test "$(echo "The hill" | "$sample_fp32" "$work/teller" --tokens 12 2>/dev/null)" = "$(sample_cpu --prompt "The hill")"
check "questions and answers" test "$(printf 'The\nThe old\n' | "$sample_fp32" "$work/teller" --tokens 5 -i 2>/dev/null)" = "$(printf 'The\nThe old\n' | ./sample_gpt2 "$work/teller" --tokens 5 -i 2>/dev/null)"
# ---- text without end, and a list of attentions with a cache for more positions than it was trained with
without_positions() { # attention
    ./train_gpt2 --train "$work/told_train_000000.bin" --tokenizer "$work/vocab" --layers 2 --heads 2 --width 32 --context 40 \
        --batch 4 --steps 5 --warmup 2 --lr 1e-2 --attention "$1" --positions none --out "$work/$1" >"$work/log" 2>"$work/err"
}
for attention in elu elu,softmax; do
    check "$attention without positions" without_positions $attention
    [ $attention = elu ] && longer= || longer="--length 70"
    long_text() { # program
        # shellcheck disable=SC2086
        "$1" "$work/$attention" --prompt "The" --tokens 90 --no-stop --temperature 0.7 $longer 2>"$work/err" </dev/null
    }
    long_text ./sample_gpt2 >"$work/text_cpu" && long_text "$sample_fp32" >"$work/text_gpu"
    check "$attention: a long text" test "$(wc -c <"$work/text_cpu")" -ge 100
    check "$attention: the same on the GPU" same_file text_cpu text_gpu
done
# Elu takes its position from device memory: after the prompt, one token kernel by kernel, then each as one graph.
if [ -z "${GPU_TRAIN_FP32:-}" ]; then
    CUDA_ON_CPU_TRACE=1 "$sample_fp32" "$work/elu" --prompt "The" --tokens 20 --no-stop >"$work/out" 2>"$work/err" </dev/null
    check "a token is a graph" test "$(grep -c "a graph of [0-9]* nodes" "$work/err")" = 18
fi
loss() { "$1" "$work/teller" --loss "$work/told_train_000000.bin" 2>"$work/err" </dev/null | sed -n 's/^loss \([0-9.]*\) .*tokens)$/\1/p'; }
within() { echo "$1 $2 $3" | awk '{ d = $1 - $2; exit !(NF == 3 && d <= $3 && -d <= $3) }'; }
check "the loss" within "$(loss "$sample_fp32")" "$(loss ./sample_gpt2)" 0.00001
check "the loss in bf16" within "$(loss "$sample_bf16")" "$(loss ./sample_gpt2)" 0.01
check "text in bf16" test "$("$sample_bf16" "$work/teller" --prompt "The old" --tokens 12 2>"$work/err" | head -c 7)" = "The old"
sample_cpu --prompt "The old keeper" --logits "$work/logits_cpu" && sample_gpu --prompt "The old keeper" --logits "$work/logits_gpu"
check "logits" test "$(./inspect "$work/logits_gpu" | grep -c "^ *logits ")$(wc -c <"$work/logits_gpu")" = "1$(wc -c <"$work/logits_cpu")"
losses_of() { "$1" "$work/teller" --loss "$work/told_train_000000.bin" --losses "$2" >"$work/out" 2>"$work/err" </dev/null; }
check "losses of tokens" losses_of "$sample_fp32" "$work/losses_gpu"
check "on the CPU" losses_of ./sample_gpt2 "$work/losses_cpu"
check "the same ones" test "$(./inspect "$work/losses_gpu" | tail -n 4)" = "$(./inspect "$work/losses_cpu" | tail -n 4)"
check "logits by value" numbers_agree "$work/logits_gpu" "$work/logits_cpu" 0.0001 900
refused() { # what the one line has to say, then the arguments
    part=$1
    shift
    ! "$sample_fp32" "$@" >"$work/out" 2>"$work/err" </dev/null && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -e "$part" "$work/err"
}
check "no model" refused "no model" --prompt x
check "no such model" refused "$work/nothing" "$work/nothing" --prompt x
check "an unknown option" refused "--temperature" "$work/teller" --temprature 1
check "ids beyond the vocabulary" refused "below" "$work/teller" --prompt-ids 1,4000
check "no such prompt" refused "$work/none" "$work/teller" --prompt-file "$work/none"
summary
