# The target stays stopped for longer than the requester's retries: the completion says so. -u 10: eight times 4.2 ms, or twice
# that where the machine is busy. By packets: on the same host one-sided requests need nothing of a target, and go on while it is stopped. The target is stopped when traffic runs, not while the two still find each other.
set -u
. "$CASES/waits.sh"
program=$1
common="-F -d $DEV -x $GID -p $PORT -D 60 -f 0 -u 10"
$ON_SERVER "$SFAB" run --path wire -- $program $common >"$TMP/server.txt" 2>&1 & server=$!
client=
trap 'kill -KILL $server $client 2>/dev/null' EXIT
listening $server "$PORT"
$ON_CLIENT "$SFAB" run --path wire -- $program $common "$SERVER" >"$TMP/client.txt" 2>&1 & client=$!
flowing
kill -STOP $server
wait $client; code=$?
kill -CONT $server
[ $code != 0 ] || { echo "the client ended well though its target was stopped"; cat "$TMP/client.txt"; exit 1; }
grep -q 'status 12' "$TMP/client.txt" || { echo "no status 12:"; cat "$TMP/client.txt"; exit 1; }
echo "gave up with status 12"
