#!/bin/bash
# programs.sh: the same program on both ends, ours under `sfab run` on the software NIC, the other in the guest on Linux's rxe; both
# ways round. Run through boot.sh:  boot.sh run -n 1 -p 1 [-m MTU] programs.sh
#   SFAB      sfab, with its products beside it
#   MTU       the rig's MTU (default 1500)
#   see say.sh for the rest
set -uo pipefail
. "$(dirname "$0")/say.sh"
S=${SFAB:?set SFAB}; port=20000
gids=$("$RIG" peer 1 "$S" gids)
row() { echo "$gids" | awk -v a="$1" '$NF == "eth0" && index($0, a) { print $'"$2"'; exit }'; }
DEV=$(row "$OURS" 1); GID4=$(row " $OURS " 3); GID6=$(row " $OURS6 " 3); GIDL=$(row "fe80:" 3)
[ -n "$DEV" ] && [ -n "$GID4" ] || { echo "no device on the peer's eth0:"; echo "$gids"; exit 1; }

COMPLAINTS='error|fail|mismatch|corrupt|panicked|segmentation'
# options of conversations: short: also in the short part; fault=...: on our side; expect=N: the client's exit code;
# has=TEXT: the client prints it; stays: the server is only ours, and is ended; quiet=REGEX: no complaint; slow=...: a fault on our
# side where the client is; serves: the server goes on, and is ended
talk() { # NAME OPTIONS SERVER CLIENT
  local name=$1 o=$2
  wanted "$name" "$o" || return 0
  local fault= expect=0 has= quiet='^$' stays= slow= serves= word
  for word in $o; do case $word in fault=*) fault=${word#*=}; fault=${fault//_/ };; expect=*) expect=${word#*=};; has=*) has=${word#*=}; has=${has//_/ };;
    serves) serves=1;; slow=*) slow=${word#*=}; slow=${slow//_/ };; quiet=*) quiet=${word#*=};; stays) stays=1;; esac; done
  what="\`${4//%s/HOST}\`${fault:+, $fault}"; what=${what//-F -u 1[68]/-F}; what=${what//-F -d %dev -x %gid -p %port/…}; what=${what// -d %dev/}; what=${what// -p %port/}
  what=${what//%gid6/IPv6}; what=${what//%gidl/link-local}; what=${what//%gid/IPv4}
  one "ours -> Linux" linux "$3" "$4"
  one "Linux -> ours" ours "$3" "$4"
}
fill() { # SIDE SERVERSIDE TEXT
  local t=$3 dev g4 g6 gl
  if [ "$1" = linux ]; then dev=rxe0 g4=1 g6=2 gl=0; else dev=$DEV g4=$GID4 g6=$GID6 gl=$GIDL; fi
  local s4=$OURS s6=$OURS6 c4=$GUEST; [ "$2" = linux ] && s4=$GUEST s6=$GUEST6 c4=$OURS
  t=${t//%dev/$dev}; t=${t//%gid6/$g6}; t=${t//%gidl/$gl}; t=${t//%gid/$g4}; t=${t//%s6/$s6}; t=${t//%s/$s4}; t=${t//%c/$c4}
  echo "${t//%port/$port}"
}
# Shell text that waits until the server listens (on its TCP port, or, if it is one of rdma_cm's, with an identifier), or has ended.
listening() { # SIDE IS-ALIVE
  local tool=rdma; [ "$1" = linux ] || tool="$S run -- rdma"
  local until
  case "$server" in
    ibv_asyncwatch*) echo "sleep 1"; return;;
    udaddy*) until="$tool res show cm_id | grep -q LISTEN";;
    rping*|ucmatose*|rdma_server*|cmtime*|*" -R "*) until="$tool res show cm_id | grep -q 'LISTEN.*:$port '";;
    *) until="grep -q \":$(printf %04X "$port") .* 0A \" /proc/net/tcp /proc/net/tcp6";;
  esac
  echo "i=0; while [ \$i -lt 400 ] && ! $until && $2; do usleep 50000 2>/dev/null || sleep 0.05; i=\$((i+1)); done"
}
one() { # DIRECTION SERVERSIDE SERVER CLIENT
  local where=$2 client_side=ours src crc=0; [ "$where" = ours ] && client_side=linux
  port=$((port+1)); : >"$T/s"; : >"$T/c"
  local server client; server=$(fill "$where" "$where" "$3"); client=$(fill "$client_side" "$where" "$4")
  local fault=$fault; [ "$client_side" != ours ] || fault=${fault:-$slow}
  local run=(timeout 60 "$RIG" peer 1 "$S" run ${fault:+--fault "$fault"} --)
  local sp= t0; t0=$(date +%s%N)
  if [ "$where" = ours ]; then "${run[@]}" $server >"$T/s" 2>&1 & sp=$!; "$RIG" peer 1 sh -c "$(listening ours "kill -0 $sp")"
  elif [ -z "$stays" ]; then
    RIG_T=100 "$RIG" exec 1 "(timeout 60 $server; echo \$? >/tmp/rc.$port) >/tmp/s.$port 2>&1 & $(listening linux "[ ! -e /tmp/rc.$port ]")" >/dev/null
  fi
  if [ "$client_side" = linux ]; then RIG_T=60 "$RIG" exec 1 "$client" >"$T/c" 2>&1; crc=$?
  else "${run[@]}" $client >"$T/c" 2>&1; crc=$?; fi
  src=0
  if [ -n "$serves" ]; then
    if [ -n "$sp" ]; then kill "$sp"; wait "$sp" 2>/dev/null; else "$RIG" exec 1 "kill \$(pidof ${server%% *}); cat /tmp/s.$port" >"$T/s" 2>&1; fi
  elif [ -n "$stays" ]; then
    [ -z "$sp" ] || { kill "$sp"; wait "$sp" 2>/dev/null; }
  else
    if [ "$where" = linux ]; then
      RIG_T=20 "$RIG" exec 1 "i=0; while [ ! -e /tmp/rc.$port ] && [ \$i -lt 100 ]; do usleep 50000; i=\$((i+1)); done; cat /tmp/s.$port; exit \$(cat /tmp/rc.$port 2>/dev/null || echo 99)" >"$T/s" 2>&1; src=$?
    else
      local i=0; while kill -0 "$sp" 2>/dev/null && [ $i -lt 100 ]; do sleep 0.05; i=$((i+1)); done
      kill "$sp" 2>/dev/null; wait "$sp"; src=$?
    fi
  fi
  local bad=
  [ "$crc" = "$expect" ] || bad="the client ended with $crc, not $expect"
  [ "$src" = 0 ] || bad="$bad; the server ended with $src"
  [ -z "$has" ] || grep -aq -- "$has" "$T/c" || bad="$bad; the client did not print '$has'"
  grep -aiE "$COMPLAINTS" "$T/s" "$T/c" | grep -avE "$quiet" | grep -q . && bad="$bad; complaints"
  local took=$((($(date +%s%N)-t0)/1000000))
  if [ -z "$bad" ]; then result programs "$name" "$1" ok "$took ms"
  else
    result programs "$name" "$1" FAIL "${bad#; }"
    grep -ahiE "$COMPLAINTS|status" "$T/s" "$T/c" | grep -avE "$quiet" | sort | uniq -c | head -4 | sed 's/^/      ! /'
    echo "      server: $server"; tail -6 "$T/s" | sed 's/^/      | /'
    echo "      client: $client"; tail -6 "$T/c" | sed 's/^/      | /'
  fi
}

if [ "$MTU" -gt 1500 ]; then
  for m in 2048 4096; do
    talk rc_pingpong-mtu$m "" "ibv_rc_pingpong -d %dev -g %gid -p %port -m $m -s 20000 -n 50 -c" "ibv_rc_pingpong -d %dev -g %gid -p %port -m $m -s 20000 -n 50 -c %s"
    for p in ib_write_bw ib_read_bw ib_send_bw; do
      talk $p-mtu$m "" "$p -F -u 18 -d %dev -x %gid -p %port -m $m -n 20" "$p -F -u 18 -d %dev -x %gid -p %port -m $m -n 20 %s"
    done
  done
  talk ib_send_bw-UD-mtu4096 "" "ib_send_bw -F -u 18 -d %dev -x %gid -p %port -c UD -s 4096 -n 50" "ib_send_bw -F -u 18 -d %dev -x %gid -p %port -c UD -s 4096 -n 50 %s"
  total programs; exit
fi

# libibverbs' examples
for t in rc uc ud srq; do
  short=; [ $t = rc ] && short=short
  talk ${t}_pingpong "$short" "ibv_${t}_pingpong -d %dev -g %gid -p %port -n 100" "ibv_${t}_pingpong -d %dev -g %gid -p %port -n 100 %s"
  talk ${t}_pingpong-events "" "ibv_${t}_pingpong -d %dev -g %gid -p %port -e -n 100" "ibv_${t}_pingpong -d %dev -g %gid -p %port -e -n 100 %s"
done
for m in 256 512 1024; do
  talk rc_pingpong-mtu$m "" "ibv_rc_pingpong -d %dev -g %gid -p %port -m $m -s 10000 -n 50 -c" "ibv_rc_pingpong -d %dev -g %gid -p %port -m $m -s 10000 -n 50 -c %s"
done
talk rc_pingpong-ipv6 "" "ibv_rc_pingpong -d %dev -g %gid6 -p %port -n 50 -c" "ibv_rc_pingpong -d %dev -g %gid6 -p %port -n 50 -c %s"
talk ud_pingpong-ipv6 "" "ibv_ud_pingpong -d %dev -g %gid6 -p %port -n 50" "ibv_ud_pingpong -d %dev -g %gid6 -p %port -n 50 %s"
talk rc_pingpong-link-local "" "ibv_rc_pingpong -d %dev -g %gidl -p %port -n 50 -c" "ibv_rc_pingpong -d %dev -g %gidl -p %port -n 50 -c %s"
talk ud_pingpong-link-local "" "ibv_ud_pingpong -d %dev -g %gidl -p %port -n 50" "ibv_ud_pingpong -d %dev -g %gidl -p %port -n 50 %s"
# perftest. With -R its bandwidth tests connect twice, and the server does not say when it listens for the second time. A guest
# without hardware virtualisation is slower than our client, whom Linux then rejects (reason 8), and perftest 4.5 crashes when it
# tries again. So our client's REQs are late.
for p in ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat ib_atomic_bw ib_atomic_lat; do
  short=; case $p in ib_write_bw|ib_read_lat) short=short;; esac
  talk $p "$short" "$p -F -u 18 -d %dev -x %gid -p %port -n 50" "$p -F -u 18 -d %dev -x %gid -p %port -n 50 %s"
  talk $p-R "slow=delay=1s_qp=0x1_dir=tx" "$p -F -u 18 -d %dev -p %port -R -n 20" "$p -F -u 18 -d %dev -p %port -R -n 20 %s"
done
for p in ib_write_bw ib_write_lat ib_send_bw ib_send_lat; do
  talk $p-UC "" "$p -F -u 18 -d %dev -x %gid -p %port -c UC -s 4000 -n 20" "$p -F -u 18 -d %dev -x %gid -p %port -c UC -s 4000 -n 20 %s"
done
for p in ib_send_bw ib_send_lat; do
  talk $p-UD "" "$p -F -u 18 -d %dev -x %gid -p %port -c UD -n 50" "$p -F -u 18 -d %dev -x %gid -p %port -c UD -n 50 %s"
  talk $p-srq "" "$p -F -u 18 -d %dev -x %gid -p %port --use-srq -n 50" "$p -F -u 18 -d %dev -x %gid -p %port --use-srq -n 50 %s"
done
for m in 256 512 1024; do for p in ib_write_bw ib_read_bw ib_send_bw; do
  talk $p-mtu$m "" "$p -F -u 18 -d %dev -x %gid -p %port -m $m -n 20" "$p -F -u 18 -d %dev -x %gid -p %port -m $m -n 20 %s"
done; done
for p in ib_write_bw ib_send_bw ib_read_bw; do
  talk $p-both "" "$p -F -u 18 -d %dev -x %gid -p %port -b -n 20" "$p -F -u 18 -d %dev -x %gid -p %port -b -n 20 %s"
  talk $p-q4 "" "$p -F -u 18 -d %dev -x %gid -p %port -q 4 -n 20" "$p -F -u 18 -d %dev -x %gid -p %port -q 4 -n 20 %s"
done
talk ib_send_bw-few-receives "" "ib_send_bw -F -u 18 -d %dev -x %gid -p %port -r 2 -t 8 -n 50 -s 3000" "ib_send_bw -F -u 18 -d %dev -x %gid -p %port -r 2 -t 8 -n 50 -s 3000 %s"
# lost packets on the way, in both directions
for p in ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw; do
  talk $p-loss "fault=drop=2%_dir=both,seed=5" "$p -F -u 16 -d %dev -x %gid -p %port -n 50" "$p -F -u 16 -d %dev -x %gid -p %port -n 50 %s"
done
talk rc_pingpong-loss "fault=drop=5%_dir=both,seed=5" "ibv_rc_pingpong -d %dev -g %gid -p %port -c -n 100" "ibv_rc_pingpong -d %dev -g %gid -p %port -c -n 100 %s"
# rdma_cm
Q='quiet=cq completion failed status 5|DISCONNECTED'; Q=${Q// /.}
talk rping "short $Q has=rdma-ping-9:" "rping -s -a %s -p %port -V -C 10" "rping -c -a %s -p %port -V -v -C 10"
talk rping-ipv6 "$Q has=rdma-ping-9:" "rping -s -a %s6 -p %port -V -C 10" "rping -c -a %s6 -p %port -V -v -C 10"
talk rping-large "$Q" "rping -s -a %s -p %port -V -S 60000 -C 5" "rping -c -a %s -p %port -V -S 60000 -C 5"
talk rping-nobody-listens "stays expect=255 has=REJECTED quiet=REJECTED|connect.error|wait.for.CONNECTED|rdma_connect" "ibv_asyncwatch -d %dev" "rping -c -a %s -p %port -C 1"
talk ucmatose "" "ucmatose -b %s -p %port" "ucmatose -s %s -p %port"
talk ucmatose-10 "" "ucmatose -b %s -p %port -c 10 -C 20" "ucmatose -s %s -p %port -c 10 -C 20"
talk udaddy "short" "udaddy -b %s" "udaddy -s %s"
talk rdma_client "" "rdma_server -p %port" "rdma_client -s %s -p %port"
talk cmtime "serves has=connect" "cmtime -b %s -p %port -c 5" "cmtime -s %s -p %port -c 5"
total programs
