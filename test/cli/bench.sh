# SPDX-License-Identifier: Apache-2.0
# sheaf-bench: its events, its exit codes, and a few layouts loaded by others.
if ! have_bench; then
	echo "ok $((n += 1)) - sheaf-bench # SKIP no sheaf-bench"
	return 0
fi
make() {
	"$PY" "$here/foreign.py" "$1" "$2"
}

t 0 'a save tells its events' mpi 2 save --run run --step 7 --steps 2 --every 3 \
	--state state.json --adam --mesh dp=2 --zero 2 --json --events events
json 'in order' '[(x["event"], x["step"]) for x in o] == [("begin", 7), ("committed", 7), \
	("saved", 7), ("begin", 10), ("committed", 10), ("saved", 10)]'
json 'with all members' 'keys(o[2], "step bytes held seconds blocked_ms disk_bytes net_bytes") \
	and o[2]["bytes"] > 1e6 and o[2]["held"] >= o[2]["bytes"] and o[2]["files"] == 3 \
	and o[2]["seconds"] > 0 and o[2]["disk_bytes"] >= o[2]["bytes"]'
cmp -s out events
result $? 'the same in --events'
json 'blocked no longer than it lasted' 'o[2]["blocked_ms"] <= 1000 * o[2]["seconds"] + 0.1'
t 0 'a load as well' mpi 4 load --run run --step latest --state state.json --adam \
	--mesh tp=2,pp=2 --json --events events
json 'with what it found' 'len(o) == 1 and o[0]["event"] == "loaded" and o[0]["step"] == 10 and \
	keys(o[0], "bytes held seconds blocked_ms disk_bytes net_bytes files missing unexpected \
	converted derived ignored unverified checked_items")'
json 'nothing amiss, every item checked' 'o[0]["missing"] == o[0]["unexpected"] == \
	o[0]["converted"] == o[0]["derived"] == 0 and o[0]["checked_items"] > 1e6'
[ "$(wc -l <events)" = 7 ]
result $? '--events is appended to'

for how in --async '--async --lazy' '--async --lazy --images 3 --copy-threads 2'; do
	t 0 "a save with $how" mpi 2 save --run async --step 1 --steps 6 --every 2 $how \
		--state state.json --adam --mesh tp=2 --json
	json "$how: begun in order, committed in order" \
		'[x["step"] for x in o if x["event"] == "begin"] == [1, 3, 5, 7, 9, 11] == \
		[x["step"] for x in o if x["event"] == "committed"]'
	json "$how: one flies while the next begins" \
		'[x["event"] for x in o].index("committed") > [x.get("step") for x in o].index(3)'
	json "$how: where it was blocked" 'all(keys(x, "begin_ms image_ms gates_ms exchange_ms \
		commit_ms at_once") and not x["at_once"] for x in o if x["event"] == "saved")'
	for step in 1 5 11; do
		t 0 "step $step with $how is what it was" mpi 1 load --run async --step $step \
			--state state.json --adam
	done
	rm -rf async
done
sums=
for how in '1 --mesh tp=1' '2 --mesh tp=2' '4 --mesh dp=2,tp=2 --zero 1' \
	'2 --mesh tp=2 --async --lazy --images 3'; do
	t 0 "averages with $how" mpi ${how%% *} save --run averaged --step 1 --steps 4 \
		--ema 0.9 ${how#* } --state state.json --adam
	t 0 'are shown' "$SHEAF" show averaged@4 --json
	json 'with their count' 'o[0]["averages"] == [{"family": "ema", "of": None, "coef": 0.9, \
		"interval": 1, "updates": 4}]'
	sum=$(cat averaged/checkpoint-[1-4]/ema/*.safetensors | sha256sum)
	[ "${sums:=$sum}" = "$sum" ]
	result $? 'and the same bytes in every layout'
	rm -rf averaged
done
t 2 '--ema of 1' mpi 1 save --run averaged --step 1 --ema 1 --state state.json
has 'is too much' err "'1' must be at least 0 and less than 1"
t 0 'a lazy save with little staging' mpi 1 save --run async --step 1 --async --lazy \
	--staging-bytes 400000 --state state.json --adam --json
json 'was copied at once' 'o[-1]["at_once"]'
has 'and says so' err 'copied synchronously in sheaf_save_begin'
rm -rf async
t 2 '--lazy alone' mpi 1 save --run async --step 1 --lazy --state state.json
has 'is for --async' err '--lazy: is for --async'
t 2 '--copy-threads alone' mpi 1 save --run async --step 1 --async --copy-threads 2 \
	--state state.json
has 'is for --lazy' err '--copy-threads: is for --lazy'
t 0 'the threads that copy have a place and a rate' mpi 2 save --run rated --step 1 \
	--steps 2 --mesh dp=2 --async --lazy --copy-cpus 0-63 --copy-rate 1000000 --state state.json
t 0 'and what they copy is right' mpi 1 load --run rated --step 2 --state state.json
t 2 'a list that is none' mpi 1 save --run rated --step 9 --async --lazy --copy-cpus 3-0 \
	--state state.json
has 'is told' err "expected a list of processors"
t 2 'a load' mpi 1 load --run run --step 7 --async --state state.json
has 'is not async' err "unknown option '--async'"

mesh() {                # RANKS MESH ARGS...: saved one way, loaded another
	ranks=$1 from=$2 to=$3
	shift 3
	t 0 "$from loads as $to $*" mpi "$ranks" reshard --run "r-$from-$to" --step 1 \
		--state state.json --adam --mesh "$from" --to "$to" "$@" --json
	json "$from as $to: proved" 'o[-1]["event"] == "loaded" and o[-1]["checked_items"] > 1e6'
}
mesh 3 tp=3 dp=3 --zero 0 --to-zero 1
mesh 4 dp=2,tp=2 pp=2,tp=2 --nodes 2
mesh 4 dp=4 tp=4 --zero 3 --to-zero 0
mesh 4 tp=2,dp=2 dp=4 --expert-mesh ep=4 --staging-bytes 1000000

t 0 'experts, stages and presets' mpi 4 reshard --run moe --step 2 --preset moe-small --gb 0.2 \
	--mesh dp=2,ep=2 --to tp=2,ep=2 --families model --json
json 'by their own names' 'o[-1]["checked_items"] > 5e7'
rm -rf moe

t 1 'another seed is a wrong restore' mpi 1 load --run run --step 7 --state state.json --adam \
	--seed 9 --json
json 'told as EVALUE' 'o[-1]["event"] == "error" and o[-1]["code"] == "EVALUE" and \
	keys(o[-1], "verb step code rank message") and o[-1]["step"] == 7'
t 2 'no run' mpi 1 load --run nowhere --step 7 --state state.json
t 2 'no step' mpi 1 load --run run --step 8 --state state.json --json
json 'told as ENOENT' 'o[-1]["code"] == "ENOENT"'
t 2 'a step that exists' mpi 2 save --run run --step 10 --state state.json --adam --mesh dp=2 --json
json 'told as EEXIST' 'o[-1]["code"] == "EEXIST"'
sed 's/layers\.2\.w/layers.3.w/' state.json >renamed.json
t 1 'a renamed tensor' mpi 1 load --run run --step 7 --state renamed.json --adam --json
json 'told as ELAYOUT' 'o[-1]["code"] == "ELAYOUT" and "layers.3.w" in o[-1]["message"]'
t 0 'with --lenient it is left out' mpi 1 load --run run --step 7 --state renamed.json --adam \
	--lenient --json
json 'and reported' 'o[-1]["missing"] >= 1 and o[-1]["unexpected"] >= 1'
sed 's/\[129, 257\], "tp_axis": 1/[129, 258], "tp_axis": 1/' state.json >shaped.json
t 0 "another shape with --lenient" mpi 1 load --run run --step 7 --state shaped.json \
	--lenient --json
json 'is counted' 'o[-1]["mismatched"] == 1 and o[-1]["zeroed"] == 0 and o[-1]["missing"] == 0'
has 'and said' err 'model/layers.2.w: is stored as [129, 257], not [129, 258]'
t 0 'in text too' mpi 2 load --run run --step 7 --state shaped.json --lenient --mesh dp=2
has 'it is counted' out ', 1 of another shape'
[ "$(grep -c 'is stored as' err)" = 1 ]
result $? 'and said once for all ranks'
if [ -c /dev/full ]; then
	t 2 'events that cannot be written' mpi 1 load --run run --step 7 --state state.json \
		--events /dev/full
	has 'are warned of' err '/dev/full: '
	has 'and the load is done' out 'items equal'
fi
t 0 'a save without masters' mpi 1 save --run bare --step 1 --state state.json
t 0 'derives them' mpi 1 load --run bare --step 1 --state state.json --adam --lenient \
	--families model,master_weights --json
json 'and says so; only F4 cannot be cast up' 'o[-1]["derived"] > 4 and o[-1]["missing"] == 1'
t 0 'a save of masters without the weights' mpi 2 save --run masters --step 1 --state state.json \
	--adam --mesh dp=2 --zero 2 --families master_weights,optimizer
t 0 'the weights are derived' mpi 4 load --run masters --step 1 --state state.json --adam \
	--mesh tp=2,pp=2 --lenient --json
json 'and equal, and only what has no master of 32 bits is missing' \
	'o[-1]["derived"] == 4 and o[-1]["missing"] == 9 and o[-1]["checked_items"] > 6e6'
sed 's/"BF16"/"F32"/' state.json >wide.json
t 1 'another dtype' mpi 1 load --run bare --step 1 --state wide.json
t 0 'is converted where asked' mpi 1 load --run bare --step 1 --state wide.json --convert --json
json 'and counted' 'o[-1]["converted"] == 3'
t 0 'families pick what is loaded' mpi 2 load --run run --step 7 --state state.json --adam \
	--families optimizer --mesh tp=2 --json
json 'and no more is read' 'o[-1]["disk_bytes"] < 1.3 * o[-1]["bytes"] + 2e6'
t 0 '--keep-last prunes' mpi 1 save --run kept --step 1 --steps 4 --state state.json --keep-last 2
t 0 'and keeps' "$SHEAF" ls kept --json
json 'the newest' '[x["step"] for x in o if x["state"] == "committed"][-2:] == [3, 4]'

for how in '' '--async --lazy --images 3'; do
	t 0 "a deadline with time $how" mpi 2 save --run hurry --step 1 --steps 3 --mesh dp=2 \
		$how --state state.json --adam --deadline-ms 60000 --signal-dir signals --json
	json 'is met' 'o[-1]["event"] == "deadline" and o[-1]["step"] == 3 and \
		o[-1]["made"] is True and 0 < o[-1]["ms"] < 60000 and o[-1]["eta_ms"] != 0'
	t 0 'and the step is what it was' mpi 1 load --run hurry --step 3 --state state.json --adam
	"$PY" - <<-'EOF'
		import json, os
		kinds = ["model", "optimizer", "master_weights"]
		for step in 1, 2, 3:
		    at = "hurry/checkpoint-%d" % step
		    manifest = json.load(open(at + "/sheaf.json"))
		    for kind in kinds + ["whole-step"]:
		        done = json.load(open("signals/%s.%d.done" % (kind, step)))
		        assert (done["kind"], done["step"], done["path"]) == (kind, step, at)
		        for who in "session", "run":
		            assert done[who] == manifest[who]
		        sizes = [os.path.getsize(at + "/" + f["name"]) for f in done["files"]]
		        assert sizes == [f["bytes"] for f in done["files"]]
		        assert sum(sizes) == done["bytes"] > 0
		    files = sum(len(f) for _, _, f in os.walk(at))
		    assert len(done["files"]) == files
		assert len(os.listdir("signals")) == 12
	EOF
	result $? 'done files say what is there'
	t 0 "a deadline without time $how" mpi 2 save --run hurry --step 4 --mesh dp=2 $how \
		--preset qwen2-0.5b --gb 0.2 --deadline-ms 1 --signal-dir signals --json
	json 'is not met' 'o[-1]["event"] == "deadline" and o[-1]["made"] is False'
	[ ! -e hurry/checkpoint-4 ] && [ -z "$(ls hurry/.sheaf/stage; ls signals | grep 4)" ]
	result $? 'and leaves nothing'
	t 0 'so that it can be saved' mpi 1 save --run hurry --step 4 --state state.json
	rm -rf hurry signals
done
t 2 'no time' mpi 1 save --run hurry --step 1 --state state.json --deadline-ms 0
has 'is none' err "--deadline-ms: '0' is not a number from 1"
t 2 'a deadline on line' mpi 1 save --run hurry --step 1 --rounds 2 --on-line --deadline-ms 9 \
	--state state.json
has 'knows no last step' err '--deadline-ms: is after the last step'
t 0 'rounds save the same memory again' mpi 2 save --run rounds --step 4 --rounds 3 --every 2 \
	--state state.json --mesh dp=2 --json
json 'as steps of their own' '[x["step"] for x in o if x["event"] == "saved"] == [4, 6, 8]'
json 'with what each used' 'all(keys(x, "round begin_s cpu_s user_s sys_s faults io_read_bytes \
	io_write_bytes rss_bytes peak_bytes grown_bytes") and x["cpu_s"] > 0 and \
	x["rss_bytes"] > 0 and x["begin_s"] <= x["seconds"] for x in o if x["event"] == "saved")'
t 0 'with the values of the first' "$SHEAF" diff rounds@4 rounds@8
t 0 'rounds load one step again and again' mpi 2 load --run rounds --step 4 --rounds 3 \
	--state state.json --mesh dp=2 --json
json 'and check it the first and the last time' '[x["step"] for x in o] == [4, 4, 4] and \
	[x["checked_items"] > 1e6 for x in o] == [True, False, True] and \
	all(keys(x, "round open_s cpu_s") for x in o)'
t 0 'a load may leave checksums alone' mpi 1 load --run rounds --step 4 --unverified \
	--state state.json --json
json 'and says so of each tensor' 'o[0]["unverified"] > 10 and o[0]["checked_items"] > 1e6'
printf 'go\n\n' >lines
said='sheaf-bench save --on-line'
mpi 2 save --run lined --step 1 --rounds 9 --on-line --state state.json --mesh dp=2 --json \
	<lines >"$T/out" 2>"$T/err"
rc=$?
result $rc 'rounds wait for lines, and end where they do'
json 'each told first' '[x["event"] for x in o if x["event"] in ("ready", "saved")] == \
	["ready", "saved", "ready", "saved", "ready"]'
t 2 '--on-line without rounds' mpi 1 save --run lined --step 9 --on-line --state state.json
t 2 '--rounds with --steps' mpi 1 save --run lined --step 9 --rounds 2 --steps 2 --state state.json

make hf hf
t 0 '--like takes values and files' mpi 2 save --run like --step 1 --like hf --adam --mesh tp=2
t 0 'the same weights' "$SHEAF" diff hf like --family model
cmp -s hf/config.json like/checkpoint-1/config.json
result $? 'the same config.json'
for step in like@1 like@latest "$PWD/like/checkpoint-1"; do
	t 0 "--like ${step##*/} does" mpi 2 save --run of-like --step 1 --like "$step" --adam \
		--mesh tp=2
	t 0 'the same bytes' "$SHEAF" diff like@1 of-like@1
	rm -rf of-like
done
for step in like@7 nowhere@1 nowhere like@one; do
	t 2 "--like $step does not" mpi 1 save --run of-like --step 1 --like "$step"
	has 'and says what it takes' err 'it takes RUN@STEP, RUN@latest, a checkpoint,'
done
t 0 'proved on loading' mpi 1 load --run like --step 1 --like hf --adam --json
json 'item by item' 'o[-1]["checked_items"] == 22 + 2 * 19 + 4'
chmod 000 hf/config.json
if ! cat hf/config.json >/dev/null 2>&1; then
	t 2 'a file to attach that cannot be read' mpi 1 save --run none --step 1 --like hf
	has 'is named' err 'hf/config.json'
	[ ! -e none ]
	result $? 'before the run is touched'
fi
chmod 644 hf/config.json
"$PY" -c 'f = open("hf/model-00001-of-00002.safetensors", "r+b")
f.seek(-1, 2)
f.write(b"B")'
t 1 'against other values it fails' mpi 1 load --run like --step 1 --like hf --adam --json
json 'as EVALUE' 'o[-1]["code"] == "EVALUE"'
