#!/bin/bash
# dialogues.sh: the dialogue scripts against a Linux kernel's rxe.
# Run through boot.sh:  boot.sh run -n 1 -m 4500 dialogues.sh
#   DIALOGUES  the program that plays them (target/debug/dialogues)
#   RIGSTAGE   the guest's program (rigstage.c, compiled)
#   ROWS       not empty: excuse all differences and print them as rows for linux-differs.txt
#   ONLY       words of scripts' names, space separated (default all)
# Ends with a line of totals; exit code 1 if a play is not as linux-differs.txt says.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
D=${DIALOGUES:?set DIALOGUES}; P=${RIGSTAGE:?set RIGSTAGE}; ONLY=${ONLY:-}
# Hosts 1 to 9 of the scripts: the guest is host 2, all others are here (src/linux_stage/wire.rs).
for h in 1 3 4 5 6 7 8 9; do
  "$RIG" host ip addr replace 10.77.1.$h/16 dev br0
  "$RIG" host ip -6 addr replace fd77:0:0:1::$h/48 dev br0 nodad
done
cp "$P" "$RIG_STATE/share/rigstage"
RIG_T=20 "$RIG" exec 1 '/usr/bin/ip addr replace 10.77.1.2/16 dev eth0; /usr/bin/ip -6 addr replace fd77:0:0:1::2/48 dev eth0 nodad
  cp /share/rigstage /tmp/rigstage && { /tmp/rigstage -d rxe0 >/tmp/rigstage.log 2>&1 & }
  i=0; while ! netstat -tln 2>/dev/null | grep -q :18600 && [ $i -lt 50 ]; do usleep 100000; i=$((i+1)); done' || exit 1
"$RIG" host "$D" --table "$here/linux-differs.txt" --guest 10.77.0.1:18600 ${ROWS:+--rows} -- $ONLY
