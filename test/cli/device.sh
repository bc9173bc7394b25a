# SPDX-License-Identifier: Apache-2.0
# sheaf bench: what it tells, what it refuses, and that it leaves nothing behind however it ends.
mkdir disk
empty() {               # CLAIM
	[ -z "$(ls -A disk)" ]
	result $? "$1"
}

t 0 'bench measures a directory' "$SHEAF" bench disk --size 16M --rounds 2 --threads 3 --json
json 'says where' 'keys(o[0], "dir file_system free_bytes direct bytes rounds threads") and \
	o[0]["bytes"] == 1 << 24 and o[0]["rounds"] == 2 and o[0]["threads"] == 3'
json 'what the device does' 'sum(x.get("what", "").startswith("device, ") for x in o) == \
	(4 if o[0]["direct"] else 2)'
json 'what sheaf gets of it' '[x["of_device"] > 0 for x in o if "what" in x and \
	x["what"].startswith("sheaf ")] == [True, True]'
json 'with all members' 'all(keys(x, "bytes rounds best_s median_s spread cpu_s of_device") and \
	0 < x["best_s"] <= x["median_s"] for x in o if "what" in x)'
json 'and what limits it' '[x["of"] for x in o if "limit" in x] == ["saves", "loads"]'
empty 'nothing is left'
t 0 'in words' "$SHEAF" bench disk --size 16M --rounds 1
has 'the same' out 'saves are limited by'
empty 'nothing is left then'

wrong "$SHEAF" bench
wrong "$SHEAF" bench nowhere
wrong "$SHEAF" bench state.json
wrong "$SHEAF" bench disk disk
wrong "$SHEAF" bench disk --size 1
wrong "$SHEAF" bench disk --size 5T
wrong "$SHEAF" bench disk --size 16Mx
has 'and which it was' err '16Mx'
wrong "$SHEAF" bench disk --rounds 0
wrong "$SHEAF" bench disk --threads 65
t 2 'a disk without room is left alone' "$SHEAF" bench disk --size 4096G
has 'and why' err 'free, but twice the size is needed (give a smaller --size)'
empty 'before anything is written'

# A limit on sizes of files stands in for a disk that is full: the child is ended by its signal.
(ulimit -f 4096 && exec "$SHEAF" bench disk --size 16M) >"$T/out" 2>"$T/err"
rc=$? said='sheaf bench with a limit on files'
[ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 1 ]
result $? 'a write that is refused ends it, in one line'
empty 'and leaves nothing'

# ended SIGNAL STATUS WHO: it has said where it measures, so it is at work.
ended() {
	rm -f out
	"$SHEAF" bench disk --size 16M --rounds 1000 >"$T/out" 2>"$T/err" &
	bench=$!
	until grep -q rounds "$T/out" || ! kill -0 $bench 2>/dev/null; do sleep 0.01; done
	case $3 in
	child) kill -s "$1" "$(cat /proc/$bench/task/$bench/children)" ;;
	*) kill -s "$1" $bench ;;
	esac
	wait $bench
	rc=$? said="sheaf bench, SIG$1 to the $3"
	[ $rc = "$2" ]
	result $? "SIG$1 to the $3 ends it"
	empty 'and leaves nothing'
}
ended TERM 143 bench
ended INT 130 bench
ended HUP 129 bench
if [ -e /proc/self/task/$$/children ] || [ -e /proc/$$/task/$$/children ]; then
	ended KILL 2 child
	has 'and says so' err 'was ended by signal 9'
fi

mkdir disk/sheaf-bench.killed
t 0 'what another left' "$SHEAF" bench disk --size 16M --rounds 1 --json
json 'is warned of' \
	'[x["warning"].split(",")[0] for x in o if "killed" in x.get("warning", "")] == \
	["sheaf-bench.killed was left by another bench"]'
rmdir disk/sheaf-bench.killed
chmod 775 disk
(umask 022 && exec "$SHEAF" bench disk --size 16M --rounds 1) >"$T/out" 2>"$T/err"
rc=$? said='sheaf bench with umask 022'
has 'a umask that keeps the group out is warned of' out 'warning: the group may write here'
(ulimit -n 200 && exec "$SHEAF" bench disk --size 16M --rounds 1) >"$T/out" 2>"$T/err"
rc=$? said='sheaf bench with 200 descriptors'
has 'and few descriptors' out 'warning: only 200 file descriptors'
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ]; then
	t 0 'memory can be measured' "$SHEAF" bench /dev/shm --size 16M --rounds 1
	has 'but is warned of' out 'warning: this is a file system in memory'
fi
