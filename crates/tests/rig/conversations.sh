#!/bin/bash
# conversations.sh: all that is said over the rig, see interop.sh and programs.sh. Run through boot.sh.
#   SUBJECTS, PROGRAMS   the names that are wanted of each (default all)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rc=0
[ "${MTU:-1500}" -gt 1500 ] || ONLY=${SUBJECTS:-} bash "$here/interop.sh" || rc=1
ONLY=${PROGRAMS:-} bash "$here/programs.sh" || rc=1
exit $rc
