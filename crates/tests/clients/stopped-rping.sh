# rping compares all it gets; its server is stopped in the middle and goes on.
set -u
. "$CASES/waits.sh"
$ON_SERVER "$SFAB" run -- rping -s -a "$SERVER" -p "$PORT" -V -S 4000 -C 30000 >"$TMP/server.txt" 2>&1 & server=$!
listening_cm
$ON_CLIENT "$SFAB" run -- rping -c -a "$SERVER" -p "$PORT" -V -S 4000 -C 30000 >"$TMP/client.txt" 2>&1 & client=$!
trap 'kill -CONT $server 2>/dev/null; kill $server $client 2>/dev/null' EXIT
flowing
kill -0 $client || { echo "the client ended too soon"; cat "$TMP/client.txt"; exit 1; }
kill -STOP $server; sleep 1.2; kill -CONT $server
wait $client; c=$?; wait $server; s=$?
tail -5 "$TMP/client.txt" "$TMP/server.txt" | grep -v 'cq completion failed status 5'
echo "client ended with $c, server with $s"
[ $c = 0 ] && [ $s = 0 ]
