# What scripts wait for, instead of hoping that a while is enough.

# listening PID PORT: until the process listens on the TCP port, in its network namespace.
listening() {
  local port; port=$(printf ':%04X' "$2")
  for _ in $(seq 600); do
    cat /proc/"$1"/net/tcp /proc/"$1"/net/tcp6 2>/dev/null | grep -q "$port [0-9A-F:]* 0A" && return
    sleep 0.05
  done
  echo "process $1 does not listen on port $2"; exit 1
}

# listening_cm: until somebody on the server's device listens by rdma_cm.
listening_cm() {
  for _ in $(seq 300); do $ON_SERVER "$SFAB" res | grep -q LISTEN && return; sleep 0.1; done
  echo "nobody listens by rdma_cm"; exit 1
}

# flowing: until traffic runs: the client's device has sent some thousand packets.
flowing() {
  local sent
  for _ in $(seq 300); do
    sent=$($ON_CLIENT "$SFAB" counters --device "$DEV" | awk '$1 == "sent_pkts" { print $2 }')
    [ "${sent:-0}" -gt 2000 ] && return
    sleep 0.1
  done
  echo "no traffic: ${sent:-0} packets"; exit 1
}
