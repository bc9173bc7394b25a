#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Drives the real sheaf and sheaf-bench. Prints TAP.
#
# usage: run.sh BUILD-DIR PYTHON [usage|verbs|copy|convert|import|map|damage|foreign|bench|agent|
#                                 folder|stall|device|hosts]...
#
# Each part is a file beside this one. A test is a claim, a command, and what must be true after it:
#   t 0 'ls lists three steps' "$SHEAF" ls "$T/run"     exit status; then, on its output,
#   has 'and says so' out '3 steps'                     a fixed string in out or err,
#   json 'as one object' 'len(o) == 1'                  Python over the lines of out (o).
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$1 PY=$2
shift 2
for SHEAF in "$build/cli/sheaf" "$build/sheaf"; do [ -x "$SHEAF" ] && break; done
for BENCH in "$build/bench/sheaf-bench" "$build/sheaf-bench"; do [ -x "$BENCH" ] && break; done
W=$(mktemp -d "${TMPDIR:-/tmp}/sheaf-cli.XXXXXX") || exit 1
T=$W
trap 'chmod -R u+w "$W"; rm -rf "$W"' EXIT
trap 'exit 1' INT TERM HUP
cd "$W" || exit 1
# MPI leaks, and says so under a sanitizer.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
n=0 bad=0 rc=0 said=

result() {              # 0|1 CLAIM
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2"
		return 0
	fi
	bad=$((bad + 1))
	echo "not ok $n - $2"
	echo "# $said -> $rc"
	head -n 8 "$T/out" | cut -c 1-300 | sed 's/^/# out: /'
	head -n 8 "$T/err" | cut -c 1-300 | sed 's/^/# err: /'
	return 1
}

run() {                 # CMD...: leaves rc, out, err
	said=$*
	"$@" >"$T/out" 2>"$T/err" </dev/null
	rc=$?
}

t() {                   # RC CLAIM CMD...
	want=$1 claim=$2
	shift 2
	run "$@"
	[ "$rc" = "$want" ]
	result $? "$claim"
}

has() {                 # CLAIM out|err STRING
	grep -qF -e "$3" "$T/$2"
	result $? "$1"
}

silent() {              # CLAIM: nothing was said at all
	[ ! -s "$T/out" ] && [ ! -s "$T/err" ]
	result $? "$1"
}

json() {                # CLAIM EXPRESSION
	"$PY" "$here/lines.py" "$T/out" "$2" 2>>"$T/err"
	result $? "$1"
}

# A usage error: exit 2, one line on stderr, nothing on stdout.
wrong() {               # CMD...
	run "$@"
	# Flags of the library mean nothing to a user of the command.
	[ "$rc" = 2 ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] &&
		! grep -q 'SHEAF_RUN_[RC]' "$T/err"
	result $? "refused: $(basename "$1") $(shift; echo "$*" | tr -d '\000-\037' | cut -c 1-70)"
}

tty() {                 # CMD...: on a terminal
	"$PY" -c 'import os, pty, sys
sys.exit(os.WEXITSTATUS(pty.spawn(sys.argv[1:])))' "$@"
}

mpi() {                 # RANKS ARGS...: sheaf-bench on so many ranks
	ranks=$1
	shift
	if [ "$ranks" = 1 ]; then
		"$BENCH" "$@"
	else
		mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$BENCH" "$@"
	fi
}

mpi_bg() {              # the same, and go on; wait for it
	mpi "$@" >"$T/bg" 2>&1 </dev/null &
}

have_bench() {
	[ -x "$BENCH" ] && command -v mpirun >/dev/null
}

# A few odd tensors; enough that a file has several blocks, few enough that all is quick.
cat >state.json <<'STATE'
{"tensors": [
 {"name": "emb.weight", "dtype": "BF16", "shape": [1031, 777], "tp_axis": 0, "stage": 0},
 {"name": "layers.2.w", "dtype": "F32", "shape": [129, 257], "tp_axis": 1, "stage": 0},
 {"name": "layers.10.w", "dtype": "F32", "shape": [129, 257], "tp_axis": 0, "stage": 1},
 {"name": "layers.10.b", "dtype": "BF16", "shape": [257], "stage": 1},
 {"name": "half", "dtype": "F16", "shape": [7, 13], "tp_axis": 0},
 {"name": "ids", "dtype": "I64", "shape": [11]},
 {"name": "flags", "dtype": "BOOL", "shape": [9]},
 {"name": "f8", "dtype": "F8_E4M3", "shape": [5, 3]},
 {"name": "f4", "dtype": "F4", "shape": [6, 4]},
 {"name": "complex", "dtype": "C64", "shape": [3]},
 {"name": "scalar", "dtype": "F64", "shape": []},
 {"name": "empty", "dtype": "F32", "shape": [0, 4]},
 {"name": "head.weight", "dtype": "BF16", "shape": [1031, 777], "tp_axis": 0, "stage": 1,
  "tied_to": "emb.weight"}]}
STATE

# Each part has a folder of its own, and runs there.
for name in ${*:-usage foreign verbs copy damage bench stall device}; do
	T=$W/$name
	mkdir "$T" && cp state.json "$T" && cd "$T" || exit 1
	# shellcheck source=/dev/null
	. "$here/$name.sh"
	cd "$W" || exit 1
done
echo "1..$n"
[ "$bad" = 0 ]
