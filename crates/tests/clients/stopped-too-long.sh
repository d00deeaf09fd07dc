# The target stays stopped for longer than the requester's retries: the completion says so.
set -u
common="-F -d $DEV -x $GID -p $PORT -D 10 -f 0 -u 10"
$ON_SERVER "$SFAB" run -- ib_write_bw $common >"$TMP/server.txt" 2>&1 & server=$!
sleep 0.6
$ON_CLIENT "$SFAB" run -- ib_write_bw $common "$SERVER" >"$TMP/client.txt" 2>&1 & client=$!
trap 'kill -CONT $server 2>/dev/null; kill $server $client 2>/dev/null' EXIT
sleep 1
kill -STOP $server
for _ in $(seq 200); do grep -q 'status 12' "$TMP/client.txt" && break; sleep 0.1; done
kill -CONT $server; kill $server $client
grep -q 'status 12' "$TMP/client.txt" || { echo "no status 12:"; cat "$TMP/client.txt"; exit 1; }
echo "gave up with status 12"
