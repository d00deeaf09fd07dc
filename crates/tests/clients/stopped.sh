# A perftest client works for some seconds; its server is stopped in the middle and goes on. -u 18: a second for each
# of the retries, so that the stop is within what the requester must bear.
set -u
. "$CASES/waits.sh"
program=$1
common="-F -d $DEV -x $GID -p $PORT -D 4 -f 0 -u 18"
$ON_SERVER "$SFAB" run -- $program $common >"$TMP/server.txt" 2>&1 & server=$!
listening $server "$PORT"
$ON_CLIENT "$SFAB" run -- $program $common "$SERVER" >"$TMP/client.txt" 2>&1 & client=$!
trap 'kill -CONT $server 2>/dev/null; kill $server $client 2>/dev/null' EXIT
flowing
kill -STOP $server; sleep 1.5; kill -CONT $server
wait $client; c=$?; wait $server; s=$?
echo "client ended with $c, server with $s"
cat "$TMP/client.txt"
[ $c = 0 ] && [ $s = 0 ] || { cat "$TMP/server.txt"; exit 1; }
grep -Eq '^ *65536 ' "$TMP/client.txt"
