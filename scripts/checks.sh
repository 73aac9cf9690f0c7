# For tests, to be read by `.`: checks that count in `passed` and `failed`, which the test sets, and say what was compared.
# What cannot be tested here is said and counted too; the test ends with `summary`. With TEST_STOP=1 the first failure ends it.
skipped=0
pass() { passed=$((passed + 1)); }
fail() { # name, then what was compared
    failed=$((failed + 1))
    echo "FAIL $1"
    shift
    printf '    %s\n' "$@"
    [ -z "${TEST_STOP:-}" ] || exit 1
}
skip() { # what, why
    skipped=$((skipped + 1))
    echo "skipped: $1: $2"
}
summary() { # the last line; fails when a check has failed
    [ "$skipped" = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
check_equal() { # name found expected
    if [ "$2" = "$3" ]; then pass; else fail "$1" "found    $2" "expected $3"; fi
}
check_same_file() { # name file file
    if difference=$(cmp "$2" "$3" 2>&1); then pass; else fail "$1" "$difference"; fi
}
check_contains() { # name part file
    if grep -qF -e "$2" "$3"; then pass; else fail "$1" "expected \"$2\"" "found    $(tail -c 600 "$3")"; fi
}
# The following write to files in the test's own folder, $work.
check() { # name, then a command that has to succeed
    name=$1
    shift
    if "$@" >"$work/check" 2>&1; then pass; else fail "$name" "$(head -n 5 "$work/check" | tr -d '\0')"; fi
}
check_refused() { # name, part of the message, then a command that has to end with code 1 and one line that says so
    name=$1 part=$2
    shift 2
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
    code=$?
    if [ $code = 1 ] && [ "$(wc -l <"$work/stderr")" -eq 1 ] && grep -qF -e "$part" "$work/stderr"; then pass; else
        fail "$name" "expected exit code 1 and one line with \"$part\"" "found    $code, $(head -n 3 "$work/stderr")"
    fi
}
