#!/bin/bash
# cm.sh: rdma_cm with a Linux kernel, both ways round: connect, talk, disconnect, reject, and sides that go without a word. The
# program (rigcm) is the same on both ends, ours under `sfab run` with the distribution's librdmacm; every event with its
# parameters must be what two kernels see of one another. Run through boot.sh:  boot.sh run -n 1 -p 1 cm.sh
#   SFAB      sfab, with its products beside it
#   RIGCM     the program, compiled (it is in the guest, too)
#   CMGOLDEN  what two kernels said (tests/golden/rxe/rigcm.log)
#   RECORD    not empty: write that file instead; needs a rig of two guests (boot.sh run -n 2)
#   see say.sh for the rest
set -uo pipefail
. "$(dirname "$0")/say.sh"
C=${RIGCM:-rigcm}; G=${CMGOLDEN:?set CMGOLDEN}; RECORD=${RECORD:-}; port=24000
GUEST2=10.77.0.2
[ -n "$RECORD" ] || DEV=$("$RIG" peer 1 "${SFAB:?set SFAB}" gids | awk '$NF == "eth0" { print $1; exit }')

# Runs rigcm: linux and linux2 are guests, ours is the software NIC.
start() { # SIDE FILE ARGUMENTS: a server, in the background; returns when it listens
  local side=$1 file=$2; shift 2
  case $side in
    linux) "$RIG" exec 1 "(rigcm $*; echo \$? >/tmp/rc.$port) >/tmp/s.$port 2>/tmp/e.$port & i=0; while ! grep -q listening /tmp/e.$port && [ \$i -lt 200 ]; do usleep 25000; i=\$((i+1)); done" >/dev/null;;
    ours) "$RIG" peer 1 "$SFAB" run "${fault[@]}" -- "$C" "$@" >"$file" 2>"$T/e" & server=$!
      local i=0; while ! grep -q listening "$T/e" && [ $i -lt 200 ] && kill -0 $server 2>/dev/null; do sleep 0.025; i=$((i+1)); done;;
  esac
}
finish() { # SIDE FILE: waits for that server; its output is in FILE, its exit code is ours
  case $1 in
    linux) RIG_T=30 "$RIG" exec 1 "i=0; while [ ! -e /tmp/rc.$port ] && [ \$i -lt 800 ]; do usleep 25000; i=\$((i+1)); done; cat /tmp/s.$port; exit \$(cat /tmp/rc.$port 2>/dev/null || echo 99)" >"$2" 2>>"$T/e";;
    ours) wait $server;;
  esac
}
client() { # SIDE FILE ARGUMENTS
  local side=$1 file=$2; shift 2
  case $side in
    linux) RIG_T=70 "$RIG" exec 1 "rigcm $*" >"$file" 2>>"$T/e";;
    linux2) RIG_T=70 "$RIG" exec 2 "rigcm $*" >"$file" 2>>"$T/e";;
    ours) "$RIG" peer 1 "$SFAB" run "${fault[@]}" -- "$C" "$@" >"$file" 2>>"$T/e";;
  esac
}
golden() { awk -v want="=== $1" -v part="--- $2" '/^=== /{on=$0==want; in_part=0} /^--- /{in_part=$0==part; next} on && in_part && !/^=== /' "$G"; }

one() { # NAME DIRECTION SERVERSIDE CLIENTSIDE SERVERADDRESS CLIENTADDRESS FLAGS ENDING
  local name=$1 direction=$2 s=$3 c=$4 sa=$5 ca=$6 flags=$7 word=$8 t src=0 crc server; t=$(ms)
  port=$((port+1)); : >"$T/e"; : >"$T/s"
  case $word$s in
    # A device answers while a program has it open.
    nobodyours) "$RIG" peer 1 "$SFAB" run "${fault[@]}" -- ibv_asyncwatch -d "$DEV" >"$T/e" 2>&1 & server=$!
      for _ in $(seq 200); do grep -q "$DEV" "$T/e" && break; sleep 0.025; done;;
    nobody*) server=;;
    *) start "$s" "$T/s" $flags -b "$sa" -p $port "$word";;
  esac
  client "$c" "$T/c" $flags -b "$ca" -p $port -c "$sa" "$word"; crc=$?
  if [ "$word" != nobody ]; then finish "$s" "$T/s"; src=$?
  elif [ -n "$server" ]; then kill "$server"; wait "$server" 2>/dev/null; fi
  sed -i '/^listening$/d' "$T/e"
  local title=rc; [ -z "$flags" ] || title=ud; title="$title $word"
  if [ -n "$RECORD" ]; then { echo "=== $title"; echo "--- server"; cat "$T/s"; echo "--- client"; cat "$T/c"; } >>"$G"; return; fi
  if [ "$(golden "$title" server)" = "$(cat "$T/s")" ] && [ "$(golden "$title" client)" = "$(cat "$T/c")" ] && [ $crc$src = 00 ]; then
    result cm "$name" "$direction" ok "$(($(ms)-t)) ms"
  else
    result cm "$name" "$direction" FAIL "not as two kernels (exit codes: server $src, client $crc)"
    diff <(golden "$title" server) "$T/s" | sed 's/^/      server /' | head -12
    diff <(golden "$title" client) "$T/c" | sed 's/^/      client /' | head -12
    head -3 "$T/e" | sed 's/^/      /'
  fi
}
# scenario NAME OPTIONS ENDING. Options: short; ud; over=6, over=ll; fault=TEXT on our NIC, with _ for a space
scenario() {
  local name=$1 word=$3 flags= s=$GUEST p=$OURS o; fault=()
  wanted "$name" "$2" || return 0
  for o in $2; do case $o in ud) flags=-u;; over=|over=6) s=$GUEST6 p=$OURS6;; over=ll) s=$GUESTL%eth0 p=$OURSL%eth0;;
    fault=*) o=${o#*=}; fault=(--fault "${o//_/ }");; esac; done
  case $word in client) what="connect, talk, the client disconnects";; server) what="connect, talk, the server disconnects";;
    exit) what="connect, talk, the client's process ends";; die) what="connect, talk, the server's process ends";;
    reject) what="the server rejects, with private data";; destroy) what="the server drops the request";; nobody) what="nobody listens";; esac
  [ -z "$flags" ] || { what="UD: ${what/connect/resolve by SIDR}"; what=${what/, the client disconnects/}; }
  what="$what${fault:+; ${fault[1]}}"
  if [ -n "$RECORD" ]; then [[ $2 = *over=* || $2 = *fault=* ]] || one "$name" "" linux linux2 $GUEST $GUEST2 "$flags" "$word"; return; fi
  one "$name" "ours -> Linux" linux ours "$s" "$p" "$flags" "$word"
  one "$name" "Linux -> ours" ours linux "$p" "$s" "$flags" "$word"
}

[ -z "$RECORD" ] || : >"$G"
scenario cm-connect       "short"    client
scenario cm-server-ends   ""         server
scenario cm-client-exits  ""         exit
scenario cm-server-exits  ""         die
scenario cm-reject        "short"    reject
scenario cm-destroy       ""         destroy
scenario cm-nobody        ""         nobody
scenario cm-ud            "ud"       client
scenario cm-ud-reject     "ud"       reject
scenario cm-ud-nobody     "ud"       nobody
for v in v6 v6ll; do
  scenario cm-$v-connect "over=${v#v6}"  server
  scenario cm-$v-reject  "over=${v#v6}"  reject
  scenario cm-$v-nobody  "over=${v#v6}"  nobody
  scenario cm-$v-ud      "over=${v#v6} ud" client
done
# Messages of the connection manager that are lost: REQ or REP as the first that comes in or goes out, RTU as the second.
scenario cm-lost-in       "fault=drop_packet=1"           server
scenario cm-lost-out      "fault=drop_packet=1_dir=tx"    server
scenario cm-lost-second   "fault=drop_packet=2_dir=both" server
scenario cm-twice         "fault=dup_dir=both"            client
total cm
