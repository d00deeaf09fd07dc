#!/bin/bash
# conversations.sh: all that is said over the rig, part by part. Run through boot.sh; see say.sh and the parts for what they need.
#   MTU   of the cable (default 1500); large packets are a matter of verbs, and rdma_cm is the same with them
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rc=0
parts="subjects cm programs guest"; [ "${MTU:-1500}" -le 1500 ] || parts="subjects programs"
for part in $parts; do bash "$here/$part.sh" || rc=1; done
exit $rc
