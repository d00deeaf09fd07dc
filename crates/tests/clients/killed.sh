# Three processes on the server's side: one server dies of kill -9 under load. Its client learns it, the other pair
# completes, and the device shows nothing of the dead one.
set -u
. "$CASES/waits.sh"
pingpong() { echo "ibv_rc_pingpong -d $DEV -g $GID -p $1 -n $2"; }
on_server() { $ON_SERVER "$SFAB" run -- "$@"; }
on_client() { $ON_CLIENT "$SFAB" run -- "$@"; }
$ON_SERVER "$SFAB" run -- ib_write_bw -F -d "$DEV" -x "$GID" -p "$PORT" -D 20 -u 10 >"$TMP/dead.txt" 2>&1 & dead=$!
$ON_SERVER "$SFAB" run -- $(pingpong $((PORT + 5000)) 20000) -c >"$TMP/good.txt" 2>&1 & good=$!
listening $dead "$PORT"; listening $good $((PORT + 5000))
$ON_CLIENT "$SFAB" run -- ib_write_bw -F -d "$DEV" -x "$GID" -p "$PORT" -D 20 -u 10 "$SERVER" >"$TMP/orphan.txt" 2>&1 & orphan=$!
$ON_CLIENT "$SFAB" run -- $(pingpong $((PORT + 5000)) 20000) -c "$SERVER" >"$TMP/pair.txt" 2>&1 & pair=$!
trap 'kill $dead $good $orphan $pair 2>/dev/null' EXIT
flowing
kill -KILL $dead
wait $orphan; o=$?
wait $pair; p=$?; wait $good; g=$?
echo "the dead one's client ended with $o; the other pair with $p and $g"
[ $p = 0 ] && [ $g = 0 ] || { cat "$TMP/pair.txt" "$TMP/good.txt"; exit 1; }
[ $o != 0 ] || { echo "the client of a dead server ended well"; exit 1; }
left=$(on_server rdma res show qp 2>&1 | grep -c "pid $dead ")
[ "$left" = 0 ] || { echo "QPs of the dead process are left"; exit 1; }
$ON_SERVER "$SFAB" run -- $(pingpong $((PORT + 5000)) 100) >"$TMP/again.txt" 2>&1 & again=$!
listening $again $((PORT + 5000))
on_client $(pingpong $((PORT + 5000)) 100) "$SERVER" >/dev/null 2>&1 || { echo "the device is not usable any more"; exit 1; }
wait $again
