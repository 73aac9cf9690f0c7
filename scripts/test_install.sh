#!/bin/bash
# make install: what it puts where, the man pages as man reads them, completion as the shells do it, and that removing
# leaves nothing. Needs the programs; man, zsh and fish are tested where they are. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }

home="$work/a place"
check "install" scripts/install.sh "$home"
check "install for a package" env DESTDIR="$work/package" scripts/install.sh /usr
check_equal "a package has the same files" "$(cd "$work/package/usr" && find . -type f | sort)" "$(cd "$home" && find . -type f | sort)"
check_refused "two words" "expected at most 1 words" scripts/install.sh a b
check_refused "unknown option" "unknown option --prefix" scripts/install.sh --prefix
for program in train_gpt2 sample_gpt2 evaluate tokenize stories inspect export_gguf export_llmc; do
    check "$program runs where it is installed" "$home/bin/$program" --help
    check_contains "$program: man page" ".SH NAME" "$home/share/man/man1/$program.1"
    check_contains "$program: fish" "complete -c $program" "$home/share/fish/vendor_completions.d/$program.fish"
    check_contains "$program: zsh" "#compdef $program" "$home/share/zsh/site-functions/_$program"
done
check_refused "an unknown format" "expected man, bash, zsh or fish, found \"csh\"" ./train_gpt2 --help=csh

# ---- programs for a GPU: under their own names, with the pages of the CPU's
mkdir "$work/tree" && ln -s "$PWD/scripts" "$PWD/Makefile" "$work/tree"
for program in $(sed -n 's/^PROGRAMS := //p' Makefile); do ln -s "$PWD/$program" "$work/tree"; done
for program in train_gpt2 sample_gpt2 evaluate; do
    cp "$program" "$work/tree/${program}_cuda" && cp "$program" "$work/tree/${program}_cuda_fp32"
done
check "install with programs for a GPU" "$work/tree/scripts/install.sh" "$work/gpu"
for program in train_gpt2_cuda sample_gpt2_cuda_fp32 evaluate_cuda evaluate_cuda_fp32; do
    check "$program runs where it is installed" "$work/gpu/bin/$program" --help
    check_contains "$program: man page" "$program" "$work/gpu/share/man/man1/$program.1"
    check_contains "$program: zsh" "#compdef $program" "$work/gpu/share/zsh/site-functions/_$program"
done
check "remove with programs for a GPU" "$work/tree/scripts/install.sh" --remove "$work/gpu"
check_equal "nothing is left" "$(find "$work/gpu" -type f)" ""

# ---- man pages: man finds nothing wrong with them, and every option of --help is there
check_page() { # page
    name=$(basename "$1" .1)
    MANWIDTH=200 LC_ALL=C man --warnings -E ascii -l "$1" >"$work/page" 2>"$work/warnings"
    check_equal "$name: warnings" "$(cat "$work/warnings")" ""
    check_contains "$name: its name and what it does" "$name - " "$work/page"
    # shellcheck disable=SC2086,SC2046
    missing=$(./$(echo "$name" | sed 's/^tokenize-/tokenize /') --help | grep -oE '^  (-.,|   ) --[a-zA-Z][a-zA-Z-]*' |
        grep -oE -e '--.*' | while read -r option; do grep -qF -e "$option" "$work/page" || echo "$option"; done)
    check_equal "$name: options that the page lacks" "$missing" ""
}
if man -l "$home/share/man/man1/stories.1" >/dev/null 2>&1; then
    for page in "$home"/share/man/man1/*.1; do check_page "$page"; done
    check_page "$home/share/man/man1/train_gpt2.1"
    check_contains "a default" "sizes to start from (gpt2)" "$work/page"
else
    skip "man pages as man reads them" "no man here"
fi

# ---- bash
complete_bash() { # words...: what bash offers for the last one
    PATH="$home/bin:$PATH" bash -c '
        . "$0/share/bash-completion/completions/$1"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        function=$(complete -p "$1" | sed "s/.*-F \([^ ]*\) .*/\1/")
        "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}"' "$home" "$@" | tr '\n' ' ' | sed 's/ $//'
}
check_equal "bash: options" "$(complete_bash train_gpt2 --val-)" "--val-every --val-tokens"
check_equal "bash: a flag's opposite" "$(complete_bash train_gpt2 --no-sh)" "--no-shuffle"
check_equal "bash: choices" "$(complete_bash train_gpt2 --model gpt2-)" "gpt2-medium gpt2-large gpt2-xl"
check_equal "bash: choices after =" "$(complete_bash train_gpt2 --model = ti)" "tiny"
check_equal "bash: choices of a short name" "$(complete_bash train_gpt2 -m '')" "tiny small gpt2 gpt2-medium gpt2-large gpt2-xl"
check_equal "bash: names that the program knows" "$(complete_bash train_gpt2 --attention yat)" "yat yat-spherical"
check_equal "bash: a number" "$(complete_bash train_gpt2 --steps '')" ""
check_equal "bash: a path" "$(complete_bash train_gpt2 --tokenizer "$home/sh")" "$home/share"
check_equal "bash: commands" "$(complete_bash tokenize e)" "encode export"
check_equal "bash: a command's options" "$(complete_bash tokenize encode --shard)" "--shard-tokens"
check_equal "bash: not another command's" "$(complete_bash tokenize decode --shard)" ""
check_equal "bash: a model" "$(complete_bash sample_gpt2 "$home/bi")" "$home/bin"

# ---- fish
complete_fish() { # program, line
    PATH="$home/bin:$PATH" XDG_CONFIG_HOME="$work" XDG_DATA_HOME="$work" fish -c \
        'source $argv[1]; complete -C $argv[2]' "$home/share/fish/vendor_completions.d/$1.fish" "$2" | cut -f 1 | tr '\n' ' ' | sed 's/ $//'
}
if command -v fish >/dev/null; then
    check_equal "fish: options" "$(complete_fish train_gpt2 'train_gpt2 --val-')" "--val-every --val-tokens"
    check_equal "fish: choices" "$(complete_fish train_gpt2 'train_gpt2 --model ti')" "tiny"
    check_equal "fish: names" "$(complete_fish train_gpt2 'train_gpt2 --attention yat-')" "yat-spherical"
    check_equal "fish: commands" "$(complete_fish tokenize 'tokenize enc')" "encode"
    check_equal "fish: a command's options" "$(complete_fish tokenize 'tokenize encode --shard')" "--shard-tokens"
else
    skip "completion in fish" "no fish here"
fi

# ---- zsh: in a terminal of its own, as it is the only way to ask; the completed line is echoed between < and >
complete_zsh() { # line
    HOME=$work timeout 60 zsh -f -c '
        zmodload zsh/zpty
        zpty -b shell "zsh -f -i"
        zpty -w shell "PROMPT=; PATH=${(q)1}/bin:\$PATH; fpath=(${(q)1}/share/zsh/site-functions \$fpath)"
        zpty -w shell "autoload -Uz compinit; compinit -u -D; bindkey ^I complete-word; echo READY"
        zpty -r shell out "*READY*READY*"
        zpty -n -w shell "$2"$'"'\t\001'"'"echo \"<"$'"'\005'"'">\""$'"'\n'"'
        zpty -r shell out "*<*>*<*>*"
        print -r -- "$out"' zsh "$home" "$1" | tr -d '\r' | sed -n 's/^<\(.*[^ =]\)[ =]*>$/\1/p'
}
if command -v zsh >/dev/null && zsh -f -c 'zmodload zsh/zpty' 2>/dev/null; then
    check_equal "zsh: options" "$(complete_zsh 'train_gpt2 --val-ev')" "train_gpt2 --val-every"
    check_equal "zsh: choices" "$(complete_zsh 'train_gpt2 --model tin')" "train_gpt2 --model tiny"
    check_equal "zsh: names" "$(complete_zsh 'train_gpt2 --attention yat-s')" "train_gpt2 --attention yat-spherical"
    check_equal "zsh: commands" "$(complete_zsh 'tokenize enc')" "tokenize encode"
    check_equal "zsh: a command's options" "$(complete_zsh 'tokenize encode --shard-t')" "tokenize encode --shard-tokens"
else
    skip "completion in zsh" "no zsh here"
fi

# ---- removing
touch "$home/bin/mine"
check "remove" scripts/install.sh --remove "$home"
check_equal "what is left is the user's" "$(find "$home" -type f)" "$home/bin/mine"
summary
