# SPDX-License-Identifier: Apache-2.0
# Each verb on a run that sheaf-bench made.
if ! have_bench; then
	echo "ok $((n += 1)) - verbs on a run # SKIP no sheaf-bench"
	return 0
fi
t 0 'a run is made' mpi 2 save --run run --step 10 --steps 4 --every 10 --state state.json --adam \
	--mesh tp=2 --seed 5
t 0 'and another, in another layout' mpi 2 save --run other --step 10 --steps 1 \
	--state state.json --adam --mesh dp=2 --zero 1 --seed 5

t 0 'ls lists its steps' "$SHEAF" ls run --json
json 'ascending, each with all members' '[x["step"] for x in o] == [10, 20, 30, 40] and all( \
	keys(x, "step state session parent created bytes mark tries path") for x in o)'
json 'committed, one after the other' 'all(x["state"] == "committed" and x["mark"] == "none" \
	and x["bytes"] > 1e6 and x["path"] == "checkpoint-%d" % x["step"] for x in o) \
	and [x["parent"] for x in o] == [None, 10, 20, 30]'
t 0 'ls is a table' "$SHEAF" ls run
has 'with a head' out 'STEP'
[ "$(wc -l <out)" = 5 ]
result $? 'and a line a step'
t 0 'ls of one step' "$SHEAF" ls run@20 --json
json 'is one line' 'len(o) == 1 and o[0]["step"] == 20'
cp out one
t 0 'ls of the directory of that step' "$SHEAF" ls run/checkpoint-20/ --json
cmp -s out one
result $? 'is the same line'
"$SHEAF" ls run@40 --json >one
t 0 'ls of the latest' "$SHEAF" ls run@latest --json
cmp -s out one
result $? 'is the line of the newest'
wrong "$SHEAF" ls run@21

t 0 'show of a run is its latest step' "$SHEAF" show run --json
json 'whole' 'len(o) == 1 and o[0]["step"] == 40 and o[0]["format"] == "sheaf" \
	and set(o[0]["families"]) == {"model", "master_weights", "optimizer"} \
	and o[0]["notes"]["mesh"] == "tp=2" and o[0]["attached"] is not None'
json 'every tensor has a digest' 'all(len(x["digest"]) == 16 and int(x["digest"], 16) >= 0 and \
	keys(x, "family name dtype shape file offset bytes digest") for x in o[0]["tensors"])'
json 'a tied name says under which it is stored' '[x["tied_to"] for x in o[0]["tensors"] \
	if x["name"] == "head.weight" and x["family"] == "model"] == ["emb.weight"]'
t 0 'show by @latest' "$SHEAF" show run@latest --json
json 'is the same' 'o[0]["step"] == 40'
t 0 'show by path' "$SHEAF" show run/checkpoint-20 --json
json 'is that step' 'o[0]["step"] == 20'
t 0 'show is a table' "$SHEAF" show run@10 --family optimizer 'layers.10.*'
has 'with names' out 'layers.10.w/moment2_0'
t 1 'a family that is not there' "$SHEAF" show run --family ema
t 1 'a Hugging Face loader would miss config.json' "$SHEAF" show run --hf
t 2 'a step that is not there' "$SHEAF" show run@11
t 2 'a file of the step is one safetensors file, without sums' "$SHEAF" verify \
	run/checkpoint-10/model-00001-of-00001.safetensors

t 2 'a run whose job asked for none has no metrics' "$SHEAF" stats run
has 'and the hint says how' err 'SHEAF_RUN_METRICS'
t 0 'a run with metrics' mpi 2 save --run told --step 1 --steps 6 --state state.json \
	--mesh dp=2 --async --lazy --metrics
t 0 'stats --json' "$SHEAF" stats told --json
json 'is a line a save and one of sums' '[x["what"] for x in o] == ["committed"] * 6 + ["sums"] \
	and [x["step"] for x in o[:-1]] == [1, 2, 3, 4, 5, 6] and all(keys(x, "session at code \
	ranks of lazy images bytes gates gates_waited begin_ms image_ms gates_ms gate_max_ms \
	exchange_ms wait_ms commit_ms copy_ms wall_ms blocked_ms gb_s") for x in o[:-1])'
json 'of the slowest of all ranks' 'len(o) == 7 and all(x["ranks"] == x["of"] == 2 and \
	x["lazy"] and x["disk"] and x["gates"] > 10 and 0 < x["begin_ms"] < x["wall_ms"] and \
	x["copy_ms"] <= x["wall_ms"] and x["gate_max_ms"] <= x["gates_ms"] and \
	x["bytes"] > 1e6 for x in o[:-1])'
json 'that add up' 'o[-1]["saves"] == o[-1]["committed"] == 6 and o[-1]["bad_lines"] == 0 and \
	o[-1]["bytes"] == sum(x["bytes"] for x in o[:-1]) and all(abs(o[-1][t]["sum"] - \
	sum(x[t] for x in o[:-1])) < 1e-3 and \
	o[-1][t]["median"] == sorted(x[t] for x in o[:-1])[2] and \
	o[-1][t]["p99"] == o[-1][t]["most"] == max(x[t] for x in o[:-1]) \
	for t in ("begin_ms", "gates_ms", "commit_ms", "blocked_ms", "wall_ms"))'
t 0 'stats of the newest two' "$SHEAF" stats told --json --last 2
json 'are sums of two' '[x.get("step") for x in o] == [5, 6, None] and o[-1]["saves"] == 2'
t 0 'stats is a table' "$SHEAF" stats told
has 'with a head' out 'BLOCKED'
has 'and with sums' out '6 saves: 6 committed, 0 dropped, 0 failed'
mv told/.sheaf/metrics.jsonl told/.sheaf/metrics.1.jsonl
for i in 1 2 3 4 5; do
	sed 's/"step":/&1/' told/.sheaf/metrics.1.jsonl
done >told/.sheaf/metrics.jsonl
t 0 'the older lines come first' "$SHEAF" stats told --json
json 'and none is left out' '[x["step"] for x in o[:6]] == [1, 2, 3, 4, 5, 6] and len(o) == 37'
t 0 'the table has the newest 20' "$SHEAF" stats told
[ "$(grep -c ' committed  ' out)" = 20 ]
result $? 'and no more'
# Half a line of a crash, lines of somebody else.
{
	head -c 100 told/.sheaf/metrics.1.jsonl
	printf '\n\n[]\n{}\n{"what":"committed"}\n\033[2J\n{"what":"\\u001b[2J","step":1}\n\0\n'
	sed -n '1s/"at":"[^"]*"/"at":"\\u001b[2J"/p' told/.sheaf/metrics.1.jsonl
	sed -n '1s/"begin_ms":[0-9.]*/"begin_ms":-1/p;1s/"begin_ms":[0-9.]*/"begin_ms":1e999/p' \
		told/.sheaf/metrics.1.jsonl
	sed -n '1s/"bytes":[0-9]*/"bytes":"1"/p' told/.sheaf/metrics.1.jsonl
} >told/.sheaf/metrics.jsonl
t 0 'a torn line is passed over' "$SHEAF" stats told --json
json 'and counted' 'len(o) == 8 and o[-1]["bad_lines"] == 10 and o[6]["at"] is None'
t 0 'and nothing of it reaches a terminal' "$SHEAF" stats told
has 'but a count' err '10 lines are not valid metrics'
! grep -q "$(printf '\033')" out err
result $? 'as it stands'
t 0 'other verbs do not mind' "$SHEAF" ls told --json
json 'the file' 'len(o) == 6'
t 0 'nor does recover' "$SHEAF" recover told --json
json 'list it' 'not any("metrics" in (x["path"] or "") for x in o)'
t 0 'nor a job that goes on' mpi 2 save --run told --step 7 --state state.json --mesh dp=2 \
	--metrics
t 0 'and adds to it' "$SHEAF" stats told --json --last 1
json 'behind what is there' 'o[0]["step"] == 7 and not o[0]["lazy"] and o[0]["gates"] == 0'
t 0 'a step of it is good' "$SHEAF" verify told@7
ln -sf ../../plain.txt told/.sheaf/metrics.jsonl
wrong "$SHEAF" stats told

t 0 'verify is content' "$SHEAF" verify run
silent 'and silent'
t 0 'on a terminal it says so' tty "$SHEAF" verify run@30
has 'in a line' out 'good: 1 step, '
t 0 'verify --json' "$SHEAF" verify run@30 --json
json 'counts' 'len(o) == 1 and o[0]["result"] == "good" and o[0]["files"] > 0 and \
	o[0]["tensors"] > 20 and o[0]["bytes"] > 1e6'

t 0 'layouts make no difference' "$SHEAF" diff run@10 other@10
silent 'at all'
t 1 'steps do' "$SHEAF" diff run@10 run@20 --json
json 'in almost all tensors' 'o[-1]["different"] > 20 and o[0]["what"] == "values" \
	and o[0]["count"] > 0 and o[0]["max_abs"] > 0'
t 0 'an empty family to compare is the same' "$SHEAF" diff run@10 run/checkpoint-10 --family model
t 0 'a directory against one of its files' "$SHEAF" diff run@10 \
	run/checkpoint-10/model-00001-of-00001.safetensors --json
json 'needs no tied name, and what it cannot have is left out' \
	'o[0]["following"] == 1 and o[0]["left_out"] == ["master_weights", "optimizer"]'
t 0 'on a terminal a comparison of what both have says so' tty "$SHEAF" diff \
	run/checkpoint-10/model-00001-of-00001.safetensors \
	run/checkpoint-10/model-00001-of-00001.safetensors
t 1 'a family can still be asked for' "$SHEAF" diff run@10 \
	run/checkpoint-10/model-00001-of-00001.safetensors --family optimizer
t 1 'which family was left out is said' "$SHEAF" diff run@20 \
	run/checkpoint-10/model-00001-of-00001.safetensors
has 'in a line' out 'not compared, because one side alone has them: master_weights, optimizer'
t 2 'a family on neither side' "$SHEAF" diff run@10 run@20 --family nothing

cat >tied.json <<'J'
{"tensors": [{"name": "emb.weight", "dtype": "BF16", "shape": [6, 4]},
 {"name": "norm.weight", "dtype": "BF16", "shape": [4]},
 {"name": "head.weight", "dtype": "BF16", "shape": [6, 4], "tied_to": "emb.weight"}]}
J
t 0 'a run with tied weights is made' mpi 1 save --run tied --step 10 --steps 2 --every 10 \
	--state tied.json --seed 5
for format in hf paddle-uc paddle-fc; do
	t 0 "its export in format $format" "$SHEAF" export tied@10 once.$format --format $format
	t 0 'is the same' "$SHEAF" diff tied@10 once.$format --json
	json 'without the tied name' 'o[0]["tensors"] == 2 and o[0]["following"] == 1'
	t 0 'from either side' "$SHEAF" diff once.$format tied@10
	t 1 'unless the weight itself differs' "$SHEAF" diff tied@20 once.$format --json
	json 'under its own name' '"emb.weight" in {x["name"] for x in o[:-1]} and \
		"head.weight" not in {x["name"] for x in o[:-1]}'
done
t 0 'on a terminal the tied name' tty "$SHEAF" diff once.hf tied@10
has 'is counted' out 'are tied to other tensors: 1 tensors'
printf 'sheaf-map 1 all less\ndrop all emb.weight\n{*} = {*}\n' >less.map
t 0 'a model without the weight' "$SHEAF" convert once.hf less --map less.map
t 1 'lacks the tied name, too' "$SHEAF" diff tied@10 less --json
json 'of which each is a difference' '[(x["what"], x["name"]) for x in o[:-1]] == \
	[("left-only", "emb.weight"), ("left-only", "head.weight")]'

"$SHEAF" cat run@10 emb.weight >emb.raw 2>err && "$SHEAF" cat other@10 head.weight >head.raw 2>>err
cmp -s emb.raw head.raw && [ "$(wc -c <emb.raw)" = 1602174 ]
result $? 'cat of a tied name is the tensor it is tied to'
"$SHEAF" cat run@10 emb.weight --slice 3:5,10:-700 >part.raw 2>err
"$PY" -c 'w = open("emb.raw", "rb").read()
want = b"".join(w[2 * (777 * r + 10):2 * (777 * r + 77)] for r in (3, 4))
assert open("part.raw", "rb").read() == want' 2>>err
result $? 'a slice is that part of it'
t 1 'an optimizer tensor is not in the model' "$SHEAF" cat run layers.2.w/moment1_0
has 'and the hint says where it is' err '--family optimizer'
t 0 'with --family it is found' "$SHEAF" cat run layers.2.w/moment1_0 --family optimizer
t 0 'a scalar' "$SHEAF" cat run scalar --npy
has 'has shape ()' out "'shape': ()"
t 0 'BF16 as NumPy' "$SHEAF" cat run layers.10.b --npy
has 'is an unsigned integer' out "'<u2'"
wrong "$SHEAF" cat run f4 --npy
t 0 'items smaller than a byte come raw' "$SHEAF" cat run f4
[ "$(wc -c <out)" = 12 ]
result $? 'two a byte'
wrong "$SHEAF" cat run f4 --slice 0:1,0:3
t 0 'a tensor without items' "$SHEAF" cat run empty
silent 'writes none'

if "$PY" -c 'import numpy' 2>err; then
	t 0 'an outside reader finds the published values' \
		"$PY" "$here/../interop/check_values.py" run/checkpoint-20 --seed 5
	t 1 'and none of another seed' \
		"$PY" "$here/../interop/check_values.py" run/checkpoint-20 --seed 6
fi

t 0 'plan of a description' "$SHEAF" plan state.json --adam --mesh dp=2,tp=2 --nodes 2 --json
json 'is a line a rank, and one for all' '[x["rank"] for x in o[:-1]] == [0, 1, 2, 3] and \
	[x["node"] for x in o[:-1]] == [0, 0, 1, 1] and o[-1]["way"] == "one-phase" and \
	all(keys(x, "holds writes reads sends receives staging collects") for x in o[:-1])'
json 'that writes each byte once' \
	'sum(x["writes"] for x in o[:-1]) < 0.6 * sum(x["holds"] for x in o[:-1])'
# Twenty files of 4 MiB, the rows of each over eight nodes: each file is one rank's to write.
"$PY" -c 'import json; print(json.dumps({"tensors": [{"name": "w%d" % i, "dtype": "F32",
	"shape": [1024, 1024], "tp_axis": 0} for i in range(20)]}))' >rows.json
t 0 'plan of short rows on eight nodes' \
	"$SHEAF" plan rows.json --mesh tp=16 --nodes 8 --file-bytes 4194304 --json
json 'is in two phases' 'o[-1]["way"] == "two-phase" and o[-1]["node_files_most"] == 3 and \
	o[-1]["files"] == 20 and o[-1]["collects"] == 20 * ((4 << 20) + 4096) and \
	o[-1]["node_receives_most"] == 3 * 7 << 19 and o[-1]["sends"] == 20 * 7 << 19'
cp out rows
t 0 'bytes may have a suffix' "$SHEAF" plan rows.json --mesh tp=16 --nodes 8 --file-bytes 4M --json
cmp -s out rows
result $? 'and are as many'
t 0 'and of one node' "$SHEAF" plan rows.json --mesh tp=16 --file-bytes 4096k --json
json 'in one' 'o[-1]["way"] == "one-phase" and o[-1]["sends"] == 0'
t 0 'plan says why' "$SHEAF" plan rows.json --mesh tp=16 --nodes 8 --file-bytes 4194304
has 'in a sentence' out 'are written in two phases: a node holds less than 4 MiB'
t 0 'plan with a speed' "$SHEAF" plan rows.json --mesh tp=16 --nodes 8 --file-bytes 4M \
	--mb-per-s 100 --json
json 'gives the time of the node that writes most' \
	'abs(o[-1]["write_s"] - o[-1]["node_writes_most"] / 1e8) < 1e-9 and \
	abs(o[-1]["read_s"] - o[-1]["node_reads_most"] / 1e8) < 1e-9 and \
	o[-1]["node_writes_most"] == 3 * ((4 << 20) + 4096)'
json 'and how many files there are' 'o[-1]["checkpoint_files"] == 20'
t 0 'also in words' "$SHEAF" plan rows.json --mesh tp=16 --file-bytes 4M --mb-per-s 100
has 'of the files' out 'has 20 safetensors files'
has 'and the seconds' out 'it is written in 0.84 s and read in 0.84 s'
wrong "$SHEAF" plan rows.json --mesh tp=16 --mb-per-s 0
t 0 'plan of a step is a table' "$SHEAF" plan run@10 --mesh tp=2,pp=2
has 'with a sum' out 'total'
t 0 'plan with ZeRO' "$SHEAF" plan state.json --adam --mesh dp=3 --zero 3 --json
json 'holds a third each' \
	'max(x["holds"] for x in o[:-1]) < 0.6 * sum(x["holds"] for x in o[:-1])'
wrong "$SHEAF" plan run@10 --adam

t 0 'mark keep' "$SHEAF" mark run@10 keep
silent 'is silent'
t 0 'mark bad' "$SHEAF" mark run@40 bad --json
json 'or says what it did' 'o == [{"step": 40, "mark": "bad"}]'
t 0 'ls shows marks' "$SHEAF" ls run --json
json 'of both kinds' '[x["mark"] for x in o] == ["keep", "none", "none", "bad"]'
tried=run/.sheaf/tries/30-$("$SHEAF" ls run@30 --json | sed 's/.*"session":"\([0-9a-f]*\)".*/\1/')
mkdir -p "$tried" run/.sheaf/marks/20
t 0 'what is no file cannot be read' "$SHEAF" ls run --json
json 'nor taken for none' '[x["mark"] for x in o] == ["keep", "unread", "none", "bad"] and \
	[x["tries"] for x in o] == [0, 0, None, 0]'
t 0 'and is a ? in the table' "$SHEAF" ls run
has 'of marks' out ' ?         0  checkpoint-20'
has 'and tries' out ' -         ?  checkpoint-30'
rmdir "$tried" run/.sheaf/marks/20
t 0 'latest skips a bad step' "$SHEAF" show run --json
json 'for the one before' 'o[0]["step"] == 30'
t 0 'mark none' "$SHEAF" mark run@40 none
t 0 'mark of the latest' "$SHEAF" mark run@latest keep --json
json 'is of the newest' 'o == [{"step": 40, "mark": "keep"}]'
mkdir run/checkpoint-98 run/checkpoint-99
cp run/checkpoint-40/sheaf.sums run/checkpoint-98
t 0 'mark of the latest' "$SHEAF" mark run@latest keep --json
json 'is of none that lost its manifest, and of no empty directory' 'o[0]["step"] == 40'
t 0 'nor is ls' "$SHEAF" ls run@latest --json
json 'of one' '[x["step"] for x in o] == [40]'
t 0 'nor verify' "$SHEAF" verify run@latest
rm -r run/checkpoint-98 run/checkpoint-99
t 0 'and can be taken away' "$SHEAF" mark run@40 none
t 2 'a step that is not there cannot be marked' "$SHEAF" mark run@41 keep

t 0 'prune lists' "$SHEAF" prune run --keep-last 1 --json
json 'what would go' '{x["step"]: x["action"] for x in o} == {10: "keep", 20: "remove", \
	30: "remove", 40: "keep"} and all(x["why"] for x in o)'
json 'and how many bytes each has' 'all(x["bytes"] > 1000 for x in o)'
t 0 'the list ends with what it frees' "$SHEAF" prune run --keep-last 1
has 'in all' out 'iB in 2 steps'
t 0 'prune lists again' "$SHEAF" prune run --keep-last 1 --json
json 'and claims no proof' 'by("step")[20]["why"] == "if the newest step is verified as valid"'
[ -d run/checkpoint-20 ]
result $? 'and removes nothing'
t 0 'prune --keep-every keeps more' "$SHEAF" prune run --keep-last 1 --keep-every 20 --json
json 'multiples' '{x["step"] for x in only("action", "remove")} == {30}'
echo '{}' >run/checkpoint-40/eval_results.json
t 1 'a file of another tool in the newest step' "$SHEAF" verify run@40
has 'is found by verify' out 'extra: eval_results.json'
t 0 'prune --apply removes' "$SHEAF" prune run --keep-last 1 --keep-every 20 --apply --grace 0
rm run/checkpoint-40/eval_results.json
[ ! -d run/checkpoint-30 ] && [ -d run/checkpoint-20 ]
result $? 'those and no others'
t 0 'the rest is whole' "$SHEAF" verify run

# sheaf-bench notes its seed in the step.
for seed in 30 7 200 8; do
	step=$((${step:-0} + 1))
	mpi 1 save --run best --step $step --state state.json --seed $seed >out 2>err || break
done
t 0 'prune --best lists' "$SHEAF" prune best --keep-last 1 --best 1:bench.seed:min --json
json 'the least by the note' '{x["step"] for x in only("action", "keep")} == {2, 4} and \
	by("step")[2]["why"] == "the best by bench.seed (7)"'
t 0 'or the largest' "$SHEAF" prune best --keep-last 1 --best 2:bench.seed:max --json
json 'two of them' '{x["step"] for x in only("action", "keep")} == {1, 3, 4} and \
	by("step")[3]["why"] == "among the 2 best by bench.seed (200)"'
t 0 'a note that is not there' "$SHEAF" prune best --keep-last 1 --best 2:loss:min --json
json 'is missed aloud' 'by("step")[2] == {"step": 2, "action": "remove", \
	"bytes": by("step")[2]["bytes"], \
	"why": "if the newest step is verified as valid; it has no note loss"}'
t 0 'prune --best --apply removes' "$SHEAF" prune best --keep-last 1 --best 1:bench.seed:min --apply
[ ! -d best/checkpoint-1 ] && [ -d best/checkpoint-2 ] && [ ! -d best/checkpoint-3 ]
result $? 'the others'
t 0 'and later' "$SHEAF" prune best --keep-last 1 --apply
[ ! -d best/checkpoint-2 ] && [ -d best/checkpoint-4 ]
result $? 'what was best, though steps between are gone'
wrong "$SHEAF" prune best --keep-last 1 --best '1:no key:min'

t 0 'a step to go back to' "$SHEAF" mark run@20 bad
t 2 'is refused if it is marked bad' "$SHEAF" rewind run@20
has 'with what to do' err 'sheaf mark run@20 none takes that back'
t 0 'and nothing is set aside' "$SHEAF" ls run@40 --json
json 'at all' 'o[0]["state"] == "committed"'
t 0 'without the mark' "$SHEAF" mark run@20 none
t 0 'rewind' "$SHEAF" rewind run@20
silent 'is silent'
t 0 'later steps are aside' "$SHEAF" ls run --json
json 'and listed so' 'by("step")[40]["state"] == "aside" and by("step")[20]["state"] == "committed"'
t 0 'latest is the step gone back to' "$SHEAF" show run --json
json 'now' 'o[0]["step"] == 20'
t 0 'saving goes on from there' mpi 2 save --run run --step 40 --state state.json --adam \
	--mesh tp=2 --seed 6
t 0 'with the right parent' "$SHEAF" ls run@40 --json
json 'beside the one aside' 'only("state", "committed")[0]["parent"] == 20'
t 2 'a step that is not there cannot be gone back to' "$SHEAF" rewind run@35
t 0 'rewind on a terminal' tty "$SHEAF" rewind run@20
has 'says what went' out 'set aside: step 40'

t 0 'a rewind to the latest takes away nothing but bad steps' tty "$SHEAF" rewind run@latest
has 'of which there are none' out 'no later step to set aside'

t 0 'what is set aside is listed' "$SHEAF" aside run --json
json 'both saves of it' '[x["step"] for x in o] == [40, 40] and \
	{x["parent"] for x in o} == {20, 30} and \
	all(keys(x, "step session parent created bytes path") for x in o)'
json 'by the paths where they lie' \
	'all(x["path"] == ".sheaf/aside/40-" + x["session"] for x in o)'
mine=$(sed -n 's/.*"parent":20,.*"path":".sheaf.aside.\(40-[0-9a-f]*\)".*/\1/p' out | head -1)
other=$(sed "/$mine/d;s/.*aside.\(40-[0-9a-f]*\)\".*/\1/" out | head -1)
t 0 'as a table' "$SHEAF" aside run
has 'with a head' out 'FOLLOWS'
t 0 'a path of the list can be verified' "$SHEAF" verify "run/.sheaf/aside/$mine"
t 2 'of two saves of a step none is chosen' "$SHEAF" aside run --restore 40
has 'and it is said how one is named' err '2 saves of step 40 are set aside'
t 0 'the one that follows the newest comes back' "$SHEAF" aside run --json \
	--restore "$(printf %.12s "$mine")"
json 'says so' 'len(o) == 1 and o[0]["step"] == 40 and o[0]["action"] == "restore"'
t 0 'it is the latest' "$SHEAF" verify run@latest --json
json 'and good' 'o[-1]["result"] == "good"'
t 0 'and listed' "$SHEAF" ls run@latest --json
json 'as committed' 'o[0]["step"] == 40 and o[0]["state"] == "committed"'
t 1 'the number is taken now' "$SHEAF" aside run --restore "$other"
has 'and what makes room is said' err 'exists (sheaf rewind run@'
t 2 'nothing of another number is aside' "$SHEAF" aside run --delete 20
t 0 'on a terminal a deletion is told' tty "$SHEAF" aside run --delete 40
has 'in a line' out 'deleted: step 40'
t 0 'then nothing is aside' "$SHEAF" aside run --json
silent 'at all'
t 0 'and deleting all of it is fine' "$SHEAF" aside run --delete all
silent 'and silent'
t 0 'a run of which two steps are set aside' mpi 1 save --run held --step 10 --steps 3 --every 10 \
	--state state.json
t 0 'by a rewind' "$SHEAF" rewind held@10
reads=$(cd held/.sheaf/aside && echo 20-*)
mkfifo pipe
"$SHEAF" cat "held/.sheaf/aside/$reads" emb.weight >pipe 2>>err &
exec 3<pipe
head -c 1 <&3 >one
t 2 'to delete all while one is being read' "$SHEAF" aside held --delete all
[ "$(ls held/.sheaf/aside)" = "$reads" ]
result $? 'deletes the others'
exec 3<&-
wait
t 0 'and later' "$SHEAF" aside held --delete all
[ -z "$(ls held/.sheaf/aside)" ]
result $? 'that one, too'
# Findings that fill the pipe hold the verification up in the first step.
t 0 'a run to verify' mpi 1 save --run lives --step 10 --steps 3 --every 10 --state state.json
for i in $(seq 1000 1500); do
	: >"lives/checkpoint-10/$(printf '%0200d' "$i")"
done
"$SHEAF" verify lives >pipe 2>err &
exec 3<pipe
head -c 1 <&3 >one
mv lives/checkpoint-20 gone-20
cat <&3 >out
exec 3<&-
wait $!
rc=$? said='verify of a run of which a step goes meanwhile'
[ "$rc" = 1 ] && [ ! -s err ]
result $? 'a step that goes while a run is verified is passed over'
has 'and the others are verified' out '501 findings in 24 tensors'
rm lives/checkpoint-10/0*
t 2 'a step that is not there at all' "$SHEAF" verify lives@20
