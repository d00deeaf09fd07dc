#!/bin/bash
# guest.sh: our own programs on Linux's rxe, through crate ibv and the guest's libibverbs and librdmacm; and `sfab demo` with the
# software NIC at one end and rxe at the other. Run through boot.sh:  boot.sh run -n 1 -p 1 guest.sh
#   SFAB      sfab
#   CONTRACT  the contract's own tests
#   MEMORY    what it costs to have memory ready (memory_cost); rxe really pins pages
#   see say.sh for the rest
set -uo pipefail
. "$(dirname "$0")/say.sh"
S=${SFAB:?set SFAB}; C=${CONTRACT:?set CONTRACT}; M=${MEMORY:?set MEMORY}

what='`contract --backend ibv`'
if wanted contract ""; then
  cp "$C" "$RIG_STATE/share/contract"; t=$(ms)
  if RIG_T=900 "$RIG" exec 1 '/share/contract --backend ibv --device rxe0 --at-least 60' >"$T/contract" 2>&1; then
    what="$what: $(tail -1 "$T/contract" | sed 's/^contract: //')"; result guest contract "in the guest" ok "$(($(ms)-t)) ms"
  else result guest contract "in the guest" FAIL "$(tail -1 "$T/contract")"; fi
  grep -aE '^(skip|known|FAIL) ' "$T/contract" | sed 's/^/      /'
fi
what='`memory_cost --backend ibv`'
if wanted memory ""; then
  cp "$M" "$RIG_STATE/share/memory_cost"; t=$(ms)
  # The guest has 512 MiB.
  if RIG_T=600 "$RIG" exec 1 '/share/memory_cost --backend ibv --device rxe0 --largest 1048576 --repeat 5' >"$T/memory" 2>&1; then
    result guest memory "in the guest" ok "$(($(ms)-t)) ms"
  else result guest memory "in the guest" FAIL "$(tail -1 "$T/memory")"; fi
  sed 's/^/      /' "$T/memory"
fi
# The demo compares every byte by itself. A guest without hardware virtualisation is slow: few messages.
FEW="--size 8 --size 4K --size 64K --iterations 20"; [ -z "$SHORT" ] || FEW="--size 4K --iterations 10"
demo() { # DIRECTION SINCE EXIT-CODE
  if [ "$3" = 0 ]; then result guest demo "$1" ok "$(($(ms)-$2)) ms"
  else result guest demo "$1" FAIL "exit code $3"; tail -5 "$T/demo" "$T/listen" 2>/dev/null | sed 's/^/      /'; fi
}
what='`sfab demo`, one end or both with `--backend ibv`'
if wanted demo short; then
  cp "$S" "$RIG_STATE/share/sfab"
  if [ -z "$SHORT" ]; then
    t=$(ms); RIG_T=300 "$RIG" exec 1 "/share/sfab demo --backend ibv --device rxe0 $FEW" >"$T/demo" 2>&1; demo "in the guest" "$t" $?
  fi
  t=$(ms); "$RIG" exec 1 "/share/sfab demo --backend ibv --device rxe0 --listen 0.0.0.0:7000 >/tmp/listen 2>&1 & i=0; while ! netstat -tln | grep -q :7000 && [ \$i -lt 100 ]; do usleep 50000; i=\$((i+1)); done" >/dev/null
  timeout 300 "$RIG" peer 1 "$S" demo --interface eth0 --connect $GUEST:7000 $FEW >"$T/demo" 2>&1; rc=$?
  "$RIG" exec 1 'i=0; while pidof sfab >/dev/null && [ $i -lt 100 ]; do usleep 50000; i=$((i+1)); done; cat /tmp/listen' >"$T/listen" 2>&1; demo "ours -> Linux" "$t" $rc
  t=$(ms); timeout 300 "$RIG" peer 1 "$S" demo --interface eth0 --listen $OURS:7001 >"$T/listen" 2>&1 & l=$!
  for i in $(seq 100); do "$RIG" peer 1 ss -tln | grep -q :7001 && break; sleep 0.05; done
  RIG_T=300 "$RIG" exec 1 "/share/sfab demo --backend ibv --device rxe0 --connect $OURS:7001 $FEW" >"$T/demo" 2>&1; rc=$?
  wait $l || rc=$?; demo "Linux -> ours" "$t" $rc
fi
total guest
