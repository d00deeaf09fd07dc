# say.sh: what the parts of a run share: which conversations are wanted, and how their ends are told. To be sourced.
#   ONLY     conversations to run, space separated beginnings of names (default all)
#   SHORT    not empty: only those marked so
#   RESULTS  file that gets a line for each end, with tabs between: part, name, what it is, direction, verdict, words (default none)
# A part ends with `total PART`: a line `PART: N passed, N failed`, and exit code 1 if any failed.
ONLY=${ONLY:-}; SHORT=${SHORT:-}; MTU=${MTU:-1500}
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
passed=0; failed=0; what=
# Where the ends are. The guest's GIDs: 0 link-local, 1 IPv4, 2 IPv6. The link-local addresses are made of the MACs that boot.sh gives.
GUEST=10.77.0.1; OURS=10.77.0.101; GUEST6=fd77::1; OURS6=fd77::101; GUESTL=fe80::5054:ff:fe77:1; OURSL=fe80::5054:ff:fe77:101

wanted() { # NAME OPTIONS
  local w
  if [ -n "$ONLY" ]; then
    for w in $ONLY; do [[ $1 == "$w"* ]] && return 0; done; return 1
  fi
  [ -z "$SHORT" ] || [[ " $2 " == *" short "* ]]
}
result() { # PART NAME DIRECTION ok|FAIL WORDS; $what says what it is
  if [ "$4" = ok ]; then passed=$((passed+1)); else failed=$((failed+1)); fi
  printf '%-5s %s: %s%s\n' "$4" "$2" "$3" "${5:+ ($5)}"
  [ -z "${RESULTS:-}" ] || printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$what" "$3" "$4" "$5" >>"$RESULTS"
}
total() { echo "$1: $passed passed, $failed failed"; [ "$failed" = 0 ]; }
ms() { date +%s%3N; }
