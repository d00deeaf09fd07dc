#!/bin/bash
# interop.sh: the software NIC and a Linux kernel (rxe) talk, both ways round, and both must say what two kernels said.
# Run through boot.sh:  boot.sh run -n 1 -p 1 interop.sh
#   RIGPEER   the software NIC's program (target/release/rigpeer)
#   GOLDEN    the folder with the kernel's own logs (tests/golden/rxe)
#   CONTRACT  the contract's own tests (target/release/contract), which run in the guest on rxe0
#   ONLY      subjects to run, space separated (default all)
# Ends with a line `interop: N passed, N failed`; exit code 1 if any failed.
set -uo pipefail
R=${RIGPEER:?set RIGPEER}; G=${GOLDEN:?set GOLDEN}; ONLY=${ONLY:-}
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
pass=0; fail=0
GUEST4=10.77.0.1; PEER4=10.77.0.101; GUEST6=fd77::1; PEER6=fd77::101

# What must be equal: completions, immediates, checksums of payload and memory, read-back, atomics' old values.
client_lines() { grep -aE '^(wc |read crc32|atomic old|end )' "$1"; }
server_lines() { grep -aE '^(recv |buffer |receives flushed)' "$1"; }
golden_client() { sed '/^--- guest 2/,$d' "$G/$1.log" >"$T/g"; client_lines "$T/g"; }
golden_server() { sed '1,/^--- guest 2/d' "$G/$1.log" >"$T/g"; server_lines "$T/g"; }

verdict() { # title, expected client, got client, expected server, got server
  if [ "$2" = "$3" ] && [ "$4" = "$5" ]; then pass=$((pass+1)); printf 'ok    %s\n' "$1"
  else
    fail=$((fail+1)); printf 'FAIL  %s\n' "$1"
    diff <(echo "$2") <(echo "$3") | sed 's/^/      client /' | head -12
    diff <(echo "$4") <(echo "$5") | sed 's/^/      server /' | head -12
    tail -3 "$T/err" 2>/dev/null | sed 's/^/      /'
  fi
}

# subject NAME SERVER-OPTIONS CLIENT-OPTIONS [4|6]
subject() {
  local n=$1 s=$2 c=$3 v=${4:-4} g=1 guest=$GUEST4 peer=$PEER4
  [ "$v" = 6 ] && { g=2; guest=$GUEST6; peer=$PEER6; }
  [ -z "$ONLY" ] || [[ " $ONLY " == *" $n "* ]] || return 0
  local gc gs; gc=$(golden_client "$n"); gs=$(golden_server "$n")
  # Linux is the server
  $RIG exec 1 "rigpeer -T 30 -g $g $s >/tmp/s 2>&1 & sleep 0.2" >/dev/null
  timeout 40 "$RIG" peer 1 "$R" -T 30 -a $peer $c -c $guest >"$T/c" 2>"$T/err"
  RIG_T=20 $RIG exec 1 'i=0; while pidof rigpeer >/dev/null && [ $i -lt 50 ]; do usleep 100000; i=$((i+1)); done; cat /tmp/s' >"$T/s" 2>&1
  verdict "$n: ours -> Linux" "$gc" "$(client_lines "$T/c")" "$gs" "$(server_lines "$T/s")"
  # Linux is the client
  timeout 40 "$RIG" peer 1 "$R" -T 30 -a $peer $s >"$T/s" 2>"$T/err" & local sp=$!
  sleep 0.3
  RIG_T=40 $RIG exec 1 "rigpeer -T 30 -g $g $c -c $peer" >"$T/c" 2>>"$T/err"
  wait $sp
  verdict "$n: Linux -> ours" "$gc" "$(client_lines "$T/c")" "$gs" "$(server_lines "$T/s")"
}

subject rc-send       "-q rc"              "-q rc -o send:0,send:1,send:2,send:3,send:4,send:5,send:64,send:1024,send:1025,send:4096"
subject rc-send-kinds "-q rc"              "-q rc -o send_imm:0,send_imm:33,send_imm:3000,send_se:16,send_inl:48"
subject rc-write      "-q rc"              "-q rc -o write:0,write:1,write:64,write:1024,write:1025,write:8192"
subject rc-write-imm  "-q rc"              "-q rc -o write_imm:0,write_imm:64,write_imm:2048,write_imm:4000"
subject rc-read       "-q rc"              "-q rc -o write:8192,read:0,read:1,read:64,read:1024,read:4096,read:5000"
subject rc-atomic     "-q rc"              "-q rc -o cas,cas,faa,faa"
subject rc-pipelined  "-q rc"              "-q rc -b -n 2 -o send:64,write:3000,read:2000,faa,write_imm:100"
subject rc-psn-wrap   "-q rc -p 0xfffffe"  "-q rc -p 0xfffffd -o write:5000,read:4000,send:10"
subject rc-pmtu256    "-q rc -m 256"       "-q rc -m 256 -o send:1000,write:600,read:513"
subject uc            "-q uc"              "-q uc -o send:64,send:3000,send_imm:7,write:0,write:64,write:4096,write_imm:2500"
subject ud            "-q ud"              "-q ud -o send:0,send:1,send:64,send:1024,send_imm:5"
subject rc-rnr        "-q rc -D 300 -R 20" "-q rc -o send:64,send:2000"
subject rc-nak-access "-q rc"              "-q rc -o write:64,bad_rkey:64"
subject rc-nak-range  "-q rc"              "-q rc -o write:64,bad_len:64"
subject rc-dscp       "-q rc -C 0x68"      "-q rc -C 0x68 -o send:64,write:2048"
subject v6-rc         "-q rc"              "-q rc -o send:5,send:64,send_imm:1500,write:3000,read:3000,cas,faa" 6
subject v6-ud         "-q ud"              "-q ud -o send:64,send_imm:5" 6
# The contract's own tests on Linux's rxe, through crate ibv and the guest's libibverbs and librdmacm.
if [ -n "${CONTRACT:-}" ] && { [ -z "$ONLY" ] || [[ " $ONLY " == *" contract "* ]]; }; then
  cp "$CONTRACT" "$RIG_STATE/share/contract"
  if RIG_T=900 $RIG exec 1 '/share/contract --backend ibv --device rxe0 --at-least 60' >"$T/contract" 2>&1; then
    pass=$((pass+1)); printf 'ok    contract: %s\n' "$(tail -1 "$T/contract")"
  else fail=$((fail+1)); printf 'FAIL  contract\n'; fi
  grep -aE '^(skip|known|FAIL) ' "$T/contract" | sed 's/^/      /'
fi
echo "interop: $pass passed, $fail failed"
[ "$fail" = 0 ]
