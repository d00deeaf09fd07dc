#!/bin/bash
# subjects.sh: the software NIC and a Linux kernel (rxe) talk, both ways round, with a program that does exactly what it is told
# (rigpeer), and both must say what two kernels said to one another. Run through boot.sh:  boot.sh run -n 1 -p 1 subjects.sh
#   RIGPEER   the software NIC's program (rigpeer)
#   GOLDEN    the folder with the kernels' own logs (tests/golden/rxe)
#   see say.sh for the rest
set -uo pipefail
. "$(dirname "$0")/say.sh"
R=${RIGPEER:?set RIGPEER}; G=${GOLDEN:?set GOLDEN}

# What must be equal: completions, immediates, checksums of payload and memory, read-back, atomics' old values. Nothing of it
# depends on addresses, on the path MTU or on what was lost, so that one log serves many subjects.
client_lines() { grep -aE '^(wc |read crc32|atomic old|end )' "$1"; }
server_lines() { grep -aE '^(recv |buffer |receives flushed)' "$1"; }
golden_client() { sed '/^--- guest 2/,$d' "$G/$1.log" >"$T/g"; client_lines "$T/g"; }
golden_server() { sed '1,/^--- guest 2/d' "$G/$1.log" >"$T/g"; server_lines "$T/g"; }

verdict() { # name, direction, since, expected client, got client, expected server, got server
  if [ "$4" = "$5" ] && [ "$6" = "$7" ]; then result subjects "$1" "$2" ok "$(($(ms)-$3)) ms"
  else
    result subjects "$1" "$2" FAIL "not as two kernels"
    diff <(echo "$4") <(echo "$5") | sed 's/^/      client /' | head -12
    diff <(echo "$6") <(echo "$7") | sed 's/^/      server /' | head -12
    tail -3 "$T/err" 2>/dev/null | sed 's/^/      /'
  fi
}

# subject NAME OPTIONS SERVER CLIENT. Options: short; golden=NAME: the log (default NAME); over=6, over=ll: IPv6, link-local;
# fault=TEXT: on our NIC, with _ for a space.
subject() {
  local n=$1 s=$3 c=$4 g=1 ours=$OURS golden=$1 word; local fault=()
  wanted "$n" "$2" || return 0
  for word in $2; do case $word in golden=*) golden=${word#*=};; over=6) g=2 ours=$OURS6;; over=ll) g=0 ours=$OURSL;;
    fault=*) word=${word#*=}; fault=(--fault "${word//_/ }");; esac; done
  what="${c//,/, }"; [ "${s#*-q ?? }" = "$s" ] || what="$what; the server $s"
  what="$what${fault:+; ${fault[1]}}"
  local gc gs t; gc=$(golden_client "$golden"); gs=$(golden_server "$golden")
  # The hand-shake runs over IPv4 whatever the GIDs are.
  t=$(ms); "$RIG" exec 1 "rigpeer -T 30 -g $g $s >/tmp/s 2>&1 &" >/dev/null
  timeout 40 "$RIG" peer 1 "$R" -T 30 -a $ours "${fault[@]}" $c -c $GUEST >"$T/c" 2>"$T/err"
  RIG_T=20 "$RIG" exec 1 'i=0; while pidof rigpeer >/dev/null && [ $i -lt 200 ]; do usleep 25000; i=$((i+1)); done; cat /tmp/s' >"$T/s" 2>&1
  verdict "$n" "ours -> Linux" "$t" "$gc" "$(client_lines "$T/c")" "$gs" "$(server_lines "$T/s")"
  t=$(ms); timeout 40 "$RIG" peer 1 "$R" -T 30 -a $ours "${fault[@]}" $s >"$T/s" 2>"$T/err" & local sp=$!
  RIG_T=40 "$RIG" exec 1 "rigpeer -T 30 -g $g $c -c $OURS" >"$T/c" 2>>"$T/err"
  wait $sp
  verdict "$n" "Linux -> ours" "$t" "$gc" "$(client_lines "$T/c")" "$gs" "$(server_lines "$T/s")"
}

SEND="-o send:0,send:1,send:2,send:3,send:4,send:5,send:64,send:1024,send:1025,send:4096"
KINDS="-o send_imm:0,send_imm:33,send_imm:3000,send_se:16,send_inl:48"
WRITE="-o write:0,write:1,write:64,write:1024,write:1025,write:8192"
IMM="-o write_imm:0,write_imm:64,write_imm:2048,write_imm:4000"
READ="-o write:8192,read:0,read:1,read:64,read:1024,read:4096,read:5000"
ATOMIC="-o cas,cas,faa,faa"
PIPELINED="-b -n 2 -o send:64,write:3000,read:2000,faa,write_imm:100"
WRAP="-o write:5000,read:4000,send:10"
MIXED="-o send:5,send:64,send_imm:1500,write:3000,read:3000,cas,faa"
UC="-o send:64,send:3000,send_imm:7,write:0,write:64,write:4096,write_imm:2500"
UD="-o send:0,send:1,send:64,send:1024,send_imm:5"

if [ "$MTU" -gt 1500 ]; then
  subject rc-send-mtu9000      ""  "-m 4096 -q rc" "-m 4096 -q rc $SEND"
  subject rc-write-mtu9000     ""  "-m 4096 -q rc" "-m 4096 -q rc $WRITE"
  subject rc-read-mtu9000      ""  "-m 4096 -q rc" "-m 4096 -q rc $READ"
  subject uc-mtu9000           ""  "-m 4096 -q uc" "-m 4096 -q uc $UC"
  subject ud-mtu9000           ""  "-m 4096 -q ud" "-m 4096 -q ud $UD"
  subject v6-rc-mtu9000        "golden=v6-rc over=6" "-m 4096 -q rc" "-m 4096 -q rc $MIXED"
  subject v6ll-rc-mtu9000      "golden=v6-rc over=ll" "-m 4096 -q rc" "-m 4096 -q rc $MIXED"
  subject rc-pmtu2048-mtu9000  "golden=rc-pmtu256" "-m 2048 -q rc" "-m 2048 -q rc -o send:1000,write:600,read:513"
  subject rc-pipelined-mtu9000 "golden=rc-pipelined" "-m 4096 -q rc" "-m 4096 -q rc $PIPELINED"
  subject rc-psn-wrap-mtu9000  "golden=rc-psn-wrap" "-m 4096 -q rc -p 0xffffff" "-m 4096 -q rc -p 0xfffffe $WRAP"
  subject rc-read-loss-mtu9000 "golden=rc-read-mtu9000 fault=drop=15%_dir=both,seed=5" "-m 4096 -q rc -u 14" "-m 4096 -q rc -u 14 $READ"
  total subjects; exit
fi
subject rc-send       "short" "-q rc"              "-q rc $SEND"
subject rc-send-kinds ""      "-q rc"              "-q rc $KINDS"
subject rc-write      ""      "-q rc"              "-q rc $WRITE"
subject rc-write-imm  ""      "-q rc"              "-q rc $IMM"
subject rc-read       "short" "-q rc"              "-q rc $READ"
subject rc-atomic     "short" "-q rc"              "-q rc $ATOMIC"
subject rc-pipelined  ""      "-q rc"              "-q rc $PIPELINED"
subject rc-psn-wrap   "short" "-q rc -p 0xfffffe"  "-q rc -p 0xfffffd $WRAP"
subject rc-pmtu256    ""      "-q rc -m 256"       "-q rc -m 256 -o send:1000,write:600,read:513"
subject rc-pmtu512    "golden=rc-pmtu256" "-q rc -m 512" "-q rc -m 512 -o send:1000,write:600,read:513"
subject uc            "short" "-q uc"              "-q uc $UC"
subject ud            ""      "-q ud"              "-q ud $UD"
subject rc-srq        "golden=rc-send" "-q rc -S"  "-q rc $SEND"
subject rc-srq-imm    "short golden=rc-write-imm" "-q rc -S" "-q rc $IMM"
subject ud-srq        "golden=ud" "-q ud -S"       "-q ud $UD"
# What goes wrong
subject rc-rnr        ""      "-q rc -D 300 -R 20" "-q rc -o send:64,send:2000"
subject rc-srq-rnr    "golden=rc-rnr" "-q rc -S -D 300 -R 20" "-q rc -o send:64,send:2000"
subject rc-nak-access "short" "-q rc"              "-q rc -o write:64,bad_rkey:64"
subject rc-nak-range  ""      "-q rc"              "-q rc -o write:64,bad_len:64"
subject rc-dscp       ""      "-q rc -C 0x68"      "-q rc -C 0x68 -o send:64,write:2048"
# Other GIDs
subject v6-rc         "over=6" "-q rc"              "-q rc $MIXED"
subject v6-uc         "golden=uc over=6" "-q uc"   "-q uc $UC"
subject v6-ud         "short over=6" "-q ud"       "-q ud -o send:64,send_imm:5"
subject v6ll-rc       "over=ll short" "-q rc"      "-q rc -o send:64,write:2000,read:100"
subject v6ll-uc       "golden=uc over=ll" "-q uc"  "-q uc $UC"
subject v6ll-ud       "golden=v6-ud over=ll" "-q ud" "-q ud -o send:64,send_imm:5"
# A bad wire: every seventh packet is lost, both ways; then what a network may do besides
for s in send:"$SEND" write:"$WRITE" read:"$READ" atomic:"$ATOMIC"; do
  short=; [ "${s%%:*}" = read ] && short=short
  subject rc-${s%%:*}-loss "$short golden=rc-${s%%:*} fault=drop=15%_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 ${s#*:}"
done
subject rc-pipelined-loss "golden=rc-pipelined fault=drop=15%_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 $PIPELINED"
subject rc-psn-wrap-loss  "golden=rc-psn-wrap fault=drop=15%_dir=both,seed=5" "-q rc -u 14 -p 0xfffffe" "-q rc -u 14 -p 0xfffffd $WRAP"
subject rc-nak-access-loss "golden=rc-nak-access fault=drop=15%_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 -o write:64,bad_rkey:64"
subject v6-rc-loss        "golden=v6-rc over=6 fault=drop=15%_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 $MIXED"
subject rc-read-twice     "golden=rc-read fault=dup=50%_dir=both,seed=5" "-q rc" "-q rc $READ"
subject rc-atomic-twice   "golden=rc-atomic fault=dup=50%_dir=both,seed=5" "-q rc" "-q rc $ATOMIC"
subject rc-write-reordered "golden=rc-write fault=reorder=20%_by=2_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 $WRITE"
subject rc-read-damaged   "golden=rc-read fault=corrupt=15%_dir=both,seed=5" "-q rc -u 14" "-q rc -u 14 $READ"
total subjects
