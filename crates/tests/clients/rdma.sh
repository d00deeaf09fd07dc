# Two processes wait with their objects; iproute2's tool, a third process, sees whose they are.
set -u
run() { $ON_SERVER "$SFAB" run -- "$@"; }
$ON_SERVER "$SFAB" run -- ibv_rc_pingpong -d "$DEV" -g "$GID" -p "$PORT" >"$TMP/a.out" 2>&1 & a=$!
$ON_SERVER "$SFAB" run -- ibv_ud_pingpong -d "$DEV" -g "$GID" -p "$((PORT + 5000))" >"$TMP/b.out" 2>&1 & b=$!
trap 'kill $a $b 2>/dev/null' EXIT
for _ in $(seq 100); do
  grep -q 'local address' "$TMP/a.out" && grep -q 'local address' "$TMP/b.out" && break
  sleep 0.05
done
must() { echo "$1" | grep -Eq -- "$2" || { echo "missing: $2 in"; echo "$1"; exit 1; }; }
dev=$(run rdma dev show); echo "$dev"; must "$dev" "$DEV"
link=$(run rdma link show); echo "$link"; must "$link" "link $DEV/1 state ACTIVE.*netdev $NETDEV"
res=$(run rdma res show); echo "$res"; must "$res" "$DEV:.*qp [2-9]"
for kind in qp mr cq pd; do
  out=$(run rdma res show $kind); echo "$out"
  must "$out" "pid $a "; must "$out" "pid $b "
done
must "$(run rdma res show qp)" "type RC .*pid $a comm ibv_rc_pingpong"
must "$(run rdma res show qp)" "type UD .*pid $b comm ibv_ud_pingpong"
must "$(run rdma -j res show qp | /usr/bin/python3 -m json.tool)" '"pid": '"$a"
statistic=$(run rdma statistic show link "$DEV/1"); echo "$statistic"; must "$statistic" "link $DEV/1 .*[a-z_]+ [0-9]+"
kill $a; wait $a 2>/dev/null
for _ in $(seq 40); do run rdma res show qp | grep -q "pid $a " || { echo "gone with its process"; exit 0; }; sleep 0.05; done
echo "the objects of process $a are still there"; exit 1
