#!/bin/sh
# Tests of ranks that find each other by --rendezvous, without MPI: messages, and everything that can be wrong about the
# place, the file, a rank or a stranger. On this machine's own address only. Needs ./train_gpt2 and
# build/core/ranks/test_parallel. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
program=$build/core/ranks/test_parallel
for file in ./train_gpt2 "$program"; do
    [ -x "$file" ] || { echo "$file is missing; run make test-programs"; echo "0 passed, 1 failed"; exit 1; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_NUM_THREADS=1
. scripts/checks.sh
. scripts/tiny_shard.sh

rank() { # rank, ranks, place, options: in the background; exit code, output and messages into files with its number
    number=$1
    (
        timeout -k 5 30 "$program" --rank "$1" --ranks "$2" --rendezvous "$3" ${4:+$4 $5} >"$work/out.$number" 2>"$work/err.$number" </dev/null
        echo $? >"$work/code.$number"
    ) &
}
# Ports that nobody listens on now: below those that the system gives to outgoing connections.
port=$((20000 + $$ % 9000))
next_place() { port=$((port + 1)) at=tcp:127.0.0.1:$port; }
code() { cat "$work/code.$1"; }
check_messages() { # name, ranks: they all passed, and rank 0 says so
    codes=$(for r in $(seq 0 $(($2 - 1))); do code "$r"; done | tr '\n' ' ')
    check_equal "$1: exit codes" "$codes" "$(for _ in $(seq "$2"); do printf '0 '; done)"
    check_contains "$1: summary" "4 passed, 0 failed, 1 skipped" "$work/out.0"
    check_equal "$1: nothing else is said" "$(for r in $(seq 0 $(($2 - 1))); do cat "$work/err.$r"; done; cat "$work/out.1")" ""
    rm -f "$work"/out.* "$work"/err.* "$work"/code.*
}
check_end() { # name, rank, code, message: what one rank ended with
    check_equal "$1: exit code" "$(code "$2")" "$3"
    check_contains "$1: message" "$4" "$work/err.$2"
    check_equal "$1: one line" "$(wc -l <"$work/err.$2" | tr -d ' ')" 1
}

# ---- they meet

next_place
for r in 2 0 1; do rank $r 3 "$at"; done
wait
check_messages "3 ranks by TCP" 3
next_place
for r in 1 0; do rank $r 2 "tcp:[::1]:$port" --rank-timeout 5; done
wait
if grep -q "cannot listen" "$work/err.0"; then skip "2 ranks by IPv6" "this machine has none"; else check_messages "2 ranks by IPv6" 2; fi
for r in 3 2 1 0; do rank $r 4 "file:127.0.0.1@$work/meeting"; done
wait
check_messages "4 ranks by file" 4
check_equal "the file is gone" "$(find "$work/meeting" 2>/dev/null)" ""
next_place
rank 0 1 "$at"
wait
check_equal "one rank alone" "$(code 0)" 0
# What an earlier run left behind is no place to go to: a port where nobody listens, or where another program does.
left_behind() { echo "slay.c rendezvous 1 127.0.0.1 $1 0123456789abcdef0123456789abcdef"; }
left_behind 1 >"$work/meeting"
rank 1 2 "file:127.0.0.1@$work/meeting"
sleep 0.3
rank 0 2 "file:127.0.0.1@$work/meeting"
wait
check_messages "over what an earlier run left" 2
next_place
rank 0 2 "$at"
if command -v python3 >/dev/null; then # strangers: one that talks nonsense, one that says nothing, one that leaves
    python3 - "$port" <<'EOF'
import socket, sys, time
def connect():
    for _ in range(100):
        try: return socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
        except OSError: time.sleep(0.05)
    sys.exit("nobody listens")
connect().sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 1000)
silent = connect()
connect().close()
time.sleep(0.5)
EOF
    check_equal "strangers came" $? 0
else
    skip "strangers at the rendezvous" "there is no python3"
fi
rank 1 2 "$at"
wait
check_messages "strangers are sent away" 2

# ---- they do not meet

next_place
rank 0 3 "$at" --rank-timeout 2
rank 2 3 "$at" --rank-timeout 2
wait
check_end "a rank is missing" 0 1 "rank 0: 2 of 3 ranks came to $at within 2 s; missing: 1"
check_equal "a rank is missing: the others end, without a word" "$(code 2)$(cat "$work/err.2")" 1
next_place
rank 1 2 "$at" --rank-timeout 1
wait
check_end "rank 0 is missing" 1 1 "rank 1: rank 0 did not come to $at within 1 s: 127.0.0.1:$port: Connection refused"
rank 1 2 "file:$work/nowhere" --rank-timeout 1
wait
check_end "there is no file" 1 1 "within 1 s: there is no such file"
left_behind 1 >"$work/meeting"
rank 1 2 "file:127.0.0.1@$work/meeting" --rank-timeout 1
wait
check_end "only what an earlier run left" 1 1 "within 1 s: 127.0.0.1:1: Connection refused"
rm -f "$work/meeting"
echo "my notes" >"$work/notes"
for r in 0 1; do rank $r 2 "file:127.0.0.1@$work/notes" --rank-timeout 2; done
wait
check_end "somebody's file" 0 1 "$work/notes: expected no file, or the rendezvous of an earlier run; found something else, which stays"
check_end "somebody's file, not rank 0" 1 1 "$work/notes: expected the rendezvous that rank 0 writes, found something else"
check_equal "somebody's file stays" "$(cat "$work/notes")" "my notes"
for text in "" "host" "$(left_behind 99999999 | head -c 60)" "127.0.0.1 80 0123"; do
    printf 'slay.c rendezvous 1 %s' "$text" >"$work/broken"
    rank 1 2 "file:$work/broken" --rank-timeout 1
    wait
    check_end "a broken file ($text)" 1 1 "found something else"
done
head -c 100000 /dev/zero >"$work/broken"
rank 1 2 "file:$work/broken" --rank-timeout 1
wait
check_end "a large file" 1 1 "$work/broken: "
rank 0 2 "file:127.0.0.1@$work/no/such/folder" --rank-timeout 1
wait
check_end "a folder that is not there" 0 1 "$work/no/such/folder"
next_place
rank 0 2 "$at" --rank-timeout 3
sleep 0.3
(rank 1 3 "$at"; wait)
check_end "another number of ranks" 1 1 "rank 1: rank 0 at $at: it was started with --ranks 2, this one with --ranks 3"
rank 1 2 "$at"
wait
check_messages "the right one comes after it" 2
next_place
rank 0 3 "$at" --rank-timeout 3
rank 1 3 "$at"
sleep 0.5
timeout 20 "$program" --rank 1 --ranks 3 --rendezvous "$at" >"$work/twice" 2>&1
check_equal "the same rank twice" "$? $(cat "$work/twice")" "1 test_parallel: rank 1: rank 0 at $at: there is a rank 1 already"
wait
next_place
rank 0 2 "$at" --rank-timeout 2
sleep 0.3
check_refused "a port that is taken" "rank 0 cannot listen at 127.0.0.1:$port: Address already in use" "$program" --rank 0 --ranks 2 --rendezvous "$at"
wait

# ---- one that came as rank 1 and then sends anything

comes_and_sends() { # what, in Python: bytes of struct.pack
    next_place
    rank 0 2 "$at" --rank-timeout 2
    python3 - "$port" "$1" <<'EOF'
import socket, struct, sys, time
for _ in range(100):
    try: guest = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5); break
    except OSError: time.sleep(0.05)
guest.sendall(b"slay.r1\0" + struct.pack("<QQii", 0, 0, 2, 1))
assert len(guest.recv(160, socket.MSG_WAITALL)) == 160
try: guest.sendall(eval(sys.argv[2])), guest.recv(1)
except OSError: pass # it was hung up on
EOF
    wait
}
if command -v python3 >/dev/null; then
    comes_and_sends 'struct.pack("<IIQ", 0x736c6179, 0, 2**63)'
    check_end "more bytes than there are" 0 1 "rank 0: rank 1 sent message 0, of 9223372036854775808 bytes, where message 0, of"
    comes_and_sends 'struct.pack("<IIQ", 0x736c6179, 7, 256) + bytes(256)'
    check_end "out of step" 0 1 "rank 1 sent message 7"
    comes_and_sends 'b"A" * 5000'
    check_end "nonsense" 0 1 "rank 1 sent message 1094795585"
    comes_and_sends 'b""'
    check_end "silence" 0 1 "rank 0: waited 2 s for the other ranks (a message of rank 1): one of them is dead or hangs, and all end"
else
    skip "a rank that sends anything" "there is no python3"
fi

# ---- options

refused() { # message, options
    message=$1
    shift
    check_refused "$*" "$message" ./train_gpt2 "$@"
}
refused "options --ranks, --rank and --rendezvous belong together: --rank is missing" --ranks 2 --rendezvous tcp:127.0.0.1:80
refused "options --ranks, --rank and --rendezvous belong together: --rendezvous is missing" --ranks=2 --rank=1
refused "option --rank: expected 0 to 1, because --ranks is 2; found 2" --ranks 2 --rank 2 --rendezvous tcp:127.0.0.1:80
refused "option --ranks: " --ranks 0 --rank 0 --rendezvous tcp:127.0.0.1:80
refused "option --ranks: " --ranks two --rank 0 --rendezvous tcp:127.0.0.1:80
refused "option --rank-timeout: " --rank-timeout -1
for bad in tcp:127.0.0.1 tcp:127.0.0.1: tcp:127.0.0.1:0 tcp:127.0.0.1:65536 tcp::80 tcp:127.0.0.1:80x file: file:host@ udp:127.0.0.1:80; do
    refused "expected tcp:HOST:PORT or file:PATH, found \"$bad\"" --ranks 2 --rank 0 --rendezvous "$bad"
done
refused "option --rendezvous: expected a value" --ranks 2 --rank 0 --rendezvous ''
refused "no.such.host.invalid" --ranks 2 --rank 0 --rendezvous tcp:no.such.host.invalid:80

# ---- one goes wrong later

make_shard "$work/train.bin" 1500 1
next_place
train() { # rank, options
    r=$1
    shift
    timeout -k 5 30 ./train_gpt2 --train "$work/train.bin" --layers 1 --heads 2 --width 16 --context 32 --vocab 61 --batch 4 \
        --steps 2 --warmup 1 --quiet --out "$work/run" --ranks 2 --rank "$r" --rendezvous "$at" "$@" >"$work/out.$r" 2>"$work/err.$r" </dev/null
    echo $? >"$work/code.$r"
}
train 1 &
train 0
wait
check_equal "the CPU's trainer: exit codes" "$(code 0) $(code 1)" "1 1"
check_equal "the CPU's trainer: one message" "$(cat "$work/err.0" "$work/err.1")" \
    "train_gpt2: rank 0: on the CPU gradients travel by MPI: start with scripts/train_mpi.sh instead of --rendezvous"
next_place
train 1 --seed 5 &
train 0
wait
check_equal "another seed: one message" "$(cat "$work/err.0" "$work/err.1")" \
    "train_gpt2: rank 1: option --seed differs between ranks: rank 0 has 1337, this one has 5; all must have the same"

summary
