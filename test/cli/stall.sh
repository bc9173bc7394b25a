# SPDX-License-Identifier: Apache-2.0
# sheaf-bench stall: it steps, saves at the cadence asked for, tells, and proves what it saved. What
# it measures here says nothing.
if ! have_bench; then
	echo "ok $((n += 1)) - sheaf-bench stall # SKIP no sheaf-bench"
	return 0
fi
stall() {               # RANKS ARGS...: small and short
	ranks=$1
	shift
	mpi "$ranks" stall --run run --step-ms 5 --json "$@"
}
newest() {              # MODE
	"$SHEAF" ls "run/$1" --json | "$PY" -c 'import json, sys
print(max(json.loads(l).get("step", -1) for l in sys.stdin))'
}
cat >wide.json <<'STATE'
{"tensors": [
 {"name": "emb.weight", "dtype": "BF16", "shape": [1031, 501], "tp_axis": 0},
 {"name": "mlp.weight", "dtype": "F32", "shape": [129, 257], "tp_axis": 1},
 {"name": "bias", "dtype": "BF16", "shape": [257]},
 {"name": "head.weight", "dtype": "BF16", "shape": [1031, 501], "tp_axis": 0,
  "tied_to": "emb.weight"}]}
STATE

for how in '1 --every 2' '2 --every 1 --mesh dp=2 --zero 1 --images 3'; do
	# shellcheck disable=SC2086
	t 0 "it steps: $how" stall ${how%% *} --state wide.json --steps 4 --rounds 1 --warmup 2 \
		${how#* }
	json 'each mode is told once, with what it was' \
		'[x["mode"] for x in o if x["event"] == "stall"] == \
		["none", "none2", "lazy-memory", "lazy-disk", "copy-memory", "copy-disk"] and \
		all(keys(x, "every steps dropped bytes step_ms blocked_ms \
		saves committed memcpy_ms rest_ms units cpu_ms median_ms gates gates_waited") and \
		keys(x["step_ms"], "min median p99 mean") and \
		keys(x["blocked_ms"], "median p99 sum") \
		for x in o if x["event"] == "stall")'
	json 'steps are counted, dropped ones among them' 'all(x["steps"] == 4 and \
		x["saves"] + x["dropped"] == (4 // x["every"] if x["every"] else 0) \
		for x in o if x["event"] == "stall")'
	json 'who saves nothing is never blocked' 'all((x["blocked_ms"]["sum"] > 0) == \
		(x["every"] > 0) for x in o if x["event"] == "stall")'
	json 'times are in order' 'all(0 < x["step_ms"]["min"] <= x["step_ms"]["median"] <= \
		x["step_ms"]["p99"] and x["blocked_ms"]["sum"] <= 4 * x["step_ms"]["mean"] \
		for x in o if x["event"] == "stall")'
	json 'what was saved is proved' '[(x["mode"], x["step"]) for x in o if \
		x["event"] == "proved"] == [("lazy-memory", 7), ("lazy-disk", 7), \
		("copy-memory", 7), ("copy-disk", 7)]'
	json 'to memory at its own cadence' 'all(x["every"] == 1 for x in o if \
		x["event"] == "stall" and "memory" in x["mode"])'
	[ -z "$(find run/lazy-memory run/copy-memory -name 'checkpoint-*')" ]
	result $? 'and nothing of it on disk'
	for mode in lazy-disk copy-disk; do
		[ "$(newest "$mode")" = 7 ]
		result $? "the newest step of $mode is on disk"
		t 0 "and sound" "$SHEAF" verify "run/$mode@7"
	done
	rm -rf run
done

t 0 'the copy may be threaded, and the products' stall 1 --state wide.json --steps 1 --rounds 1 \
	--warmup 0 --modes lazy-disk,none --copy-threads 2 --compute-threads 3 --step 7
json 'only the modes that were asked for' '[(x["event"], x["mode"]) for x in o] == \
	[("stall", "none"), ("stall", "lazy-disk"), ("proved", "lazy-disk")]'
json 'numbered from --step' 'o[2]["step"] == 8'
t 2 'again' stall 1 --state wide.json --steps 1 --rounds 1 --warmup 0 --modes lazy-disk --step 7
json 'the step is there' 'o[-1]["event"] == "error" and o[-1]["code"] == "EEXIST"'
rm -rf run
t 0 'as long as so many times a memcpy' stall 1 --state wide.json --steps 1 --rounds 1 --warmup 0 \
	--modes none,lazy-memory --step-memcpys 3.5
json 'gates are counted' '[x["gates"] > 0 for x in o if x["event"] == "stall"] == [False, True]'
json 'what a step was blocked by is told' 'all(keys(x["median_ms"], "begin gates commit") \
	for x in o if x["event"] == "stall")'
t 2 'of no memcpy' stall 1 --state wide.json --step-memcpys 0
rm -rf run
printf 'copy-disk\nnone\ncopy-disk 1\n' >lines
said='sheaf-bench stall --on-line'
mpi 2 stall --run run --state wide.json --step-ms 10 --steps 2 --every 2 --warmup 1 --on-line \
	--mesh tp=2 --json <lines >"$T/out" 2>"$T/err"
rc=$?
result $rc 'turns wait for lines that name them'
json 'each told by itself' '[(x.get("mode"), x.get("round"), x.get("steps")) for x in o if \
	x["event"] == "stall"] == [("copy-disk", 0, 2), ("none", 1, 2), ("copy-disk", 2, 2)]'
json 'at its own cadence' '[x["every"] for x in o if x["event"] == "stall"] == [2, 0, 1]'
json 'and what was saved is proved' 'o[-1]["event"] == "proved" and o[-1]["step"] == 7'
rm -rf run
# Every dtype, those that no optimizer knows too.
t 0 'odd tensors change as well' stall 1 --state state.json --steps 1 --rounds 1 --warmup 1 \
	--every 1 --modes lazy-disk
json 'and are proved' 'o[-1]["event"] == "proved"'
t 0 'in words' mpi 1 stall --run words --state wide.json --step-ms 5 --steps 2 --rounds 1 \
	--modes copy-disk
has 'a line a mode' out 'copy-disk every 5: 2 steps, '        # a busy disk may have one dropped
has 'and its proof' out 'copy-disk: step 6 is what was in memory when it began'
t 2 'memory without an agent' stall 1 --state wide.json --steps 1 --rounds 1 --modes lazy-memory \
	--agent "$T/nobody"
json 'is told' 'o[-1]["event"] == "error" and o[-1]["code"] == "EAGAIN"'
rm -rf run
t 0 'without agents' stall 1 --state wide.json --steps 1 --rounds 1 --warmup 0 --agent none
json 'there is no memory' '[x["mode"] for x in o if x["event"] == "stall"] == \
	["none", "none2", "lazy-disk", "copy-disk"]'
rm -rf run
mkdir run
t 0 'an agent starts' "$SHEAF" agent run/lazy-memory --detach --socket "$T/socket"
t 0 'and serves a trainer' stall 1 --state wide.json --steps 2 --rounds 1 --modes lazy-memory \
	--agent "$T/socket"
json 'who proves what it kept' 'o[-1]["event"] == "proved"'
t 0 'and ends' "$SHEAF" agent run/lazy-memory --stop --socket "$T/socket"
rm -rf run
wrong "$BENCH" stall --run run --modes lazy-memory --agent none
has 'no agent, no memory' err '--modes: lazy-memory without an agent'
wrong "$BENCH" stall --run run --modes none,lazy
has 'the mode is named' err "--modes: no mode 'lazy'"
wrong "$BENCH" stall --every 5
wrong "$BENCH" stall --run run --async
wrong "$BENCH" stall --run run --steps 1000000000
[ ! -e run/lazy ]
result $? 'and nothing was made'
