# SPDX-License-Identifier: Apache-2.0
# Steps copied into another run, and what the dead left in one.
if ! have_bench; then
	echo "ok $((n += 1)) - copy and recover # SKIP no sheaf-bench"
	return 0
fi
t 0 'a run is made' mpi 1 save --run run --step 10 --steps 3 --every 10 --state state.json --adam \
	--seed 5
t 0 'and another' mpi 1 save --run other --step 10 --steps 1 --state state.json --seed 6

t 0 'a step is copied into a run that is not there' "$SHEAF" copy run@10 far/away/dst
silent 'silently'
diff -r run/checkpoint-10 far/away/dst/checkpoint-10 >out 2>err
result $? 'byte for byte, the manifest too'
t 0 'what is there is sound' "$SHEAF" verify far/away/dst
t 0 'the latest as well' "$SHEAF" copy run@latest far/away/dst --json
json 'in an object' 'len(o) == 1 and keys(o[0], "step action to files tensors bytes written") and \
	o[0]["step"] == 30 and o[0]["action"] == "copy" and o[0]["written"] > o[0]["bytes"] > 1e6'
t 0 'and by its directory' "$SHEAF" copy run/checkpoint-20 far/away/dst
t 0 'ls shows them' "$SHEAF" ls far/away/dst --json
json 'committed, with their parents' '[(x["step"], x["state"], x["parent"]) for x in o] == \
	[(10, "committed", None), (20, "committed", 10), (30, "committed", 20)]'
t 0 'a second time is fine' "$SHEAF" copy run@10 far/away/dst --json
json 'and writes nothing' 'o[0]["action"] == "there" and o[0]["written"] == 0'
echo '{}' >far/away/dst/checkpoint-10/eval_results.json
t 0 'also with a file of another tool in it' "$SHEAF" copy run@10 far/away/dst
rm far/away/dst/checkpoint-10/eval_results.json
t 0 'on a terminal it says so' tty "$SHEAF" copy run@10 far/away/dst
has 'in a line' out 'there already, and good: step 10'
t 0 'saving goes on there' mpi 1 save --run far/away/dst --step 40 --state state.json --adam \
	--seed 7

cp -r run bad
"$PY" -c 'f = open("bad/checkpoint-20/model-00001-of-00001.safetensors", "r+b")
f.seek(1500000); b = f.read(1); f.seek(1500000); f.write(bytes([b[0] ^ 4]))'
t 1 'a damaged step is refused' "$SHEAF" copy bad@20 dst2
has 'and named: the file' err 'bad/checkpoint-20/model-00001-of-00001.safetensors'
has 'the block and the tensor' err 'block 1 at byte 1048576'
[ ! -e dst2/checkpoint-20 ] && [ -z "$(ls dst2/.sheaf/stage)" ]
result $? 'and nothing of it is there'
t 2 'a step of another run is refused' "$SHEAF" copy other@10 far/away/dst
has 'in a sentence' err 'copy it to a new directory, or to a copy of its own run'
t 2 'a step is no run to copy into' "$SHEAF" copy run@10 run/checkpoint-20
[ ! -e run/checkpoint-20/.sheaf ]
result $? 'and not touched'
t 2 'nor is the name of one' "$SHEAF" copy run@10 far/away/dst@10
[ ! -e far/away/dst@10 ]
result $? 'and nothing of that name is made'
mkdir hf && cp run/checkpoint-10/model* hf
t 1 'a foreign directory is refused' "$SHEAF" copy hf dst2
has 'and cp -a is recommended' err 'cp -a'
t 2 'a step that is not there' "$SHEAF" copy run@11 dst2
rm -r far/away/dst/checkpoint-10 && cp -r run/checkpoint-20 far/away/dst/checkpoint-10
t 1 'another save of that number is no success' "$SHEAF" copy run@10 far/away/dst --json
cp err out
json 'and says so' 'o[0]["error"] == "EEXIST" and o[0]["where"] == "far/away/dst"'

t 0 'recover lists' "$SHEAF" recover run --json
json 'who held the lock last' 'len(o) == 1 and o[0]["what"] == "lock" and o[0]["lives"] is False \
	and keys(o[0], "what step action path session bytes whole lives why")'
# As a writer leaves it who died just before the rename, two days ago.
session=$("$SHEAF" ls run@30 --json | sed 's/.*"session":"\([0-9a-f]*\)".*/\1/')
mv run/checkpoint-30 "run/.sheaf/stage/30-$session"
touch -d '2 days ago' "run/.sheaf/stage/30-$session"
t 0 'a save that was not published is listed' "$SHEAF" recover run --json
json 'as whole, of somebody dead' '[(x["step"], x["action"], x["whole"], x["lives"]) for x in o \
	if x["what"] == "staged"] == [(30, "delete", True, False)]'
t 0 'on paper too' "$SHEAF" recover run
has 'with what can be done' out '--salvage 30'
[ -d "run/.sheaf/stage/30-$session" ]
result $? 'and listing changes nothing'
t 2 'one that is not there cannot be published' "$SHEAF" recover run --salvage 31
t 1 'nor one whose number is taken' "$SHEAF" recover run --salvage 20
cp -rp run half && rm "half/.sheaf/stage/30-$session/config.json" 2>/dev/null
"$PY" -c 'import sys; f = open(sys.argv[1], "r+b"); f.truncate(5000)' \
	"half/.sheaf/stage/30-$session/model-00001-of-00001.safetensors"
touch -d '2 days ago' "half/.sheaf/stage/30-$session"
t 1 'nor one that is not whole' "$SHEAF" recover half --salvage 30
has 'and it says what' err 'model-00001-of-00001.safetensors'
[ ! -e half/checkpoint-30 ]
result $? 'and it does not appear'
t 0 'a whole one is published' "$SHEAF" recover run --salvage 30 --json
json 'and counted' 'len(o) == 1 and o[0]["step"] == 30 and o[0]["action"] == "salvage" and \
	o[0]["tensors"] > 20'
t 0 'and is sound' "$SHEAF" verify run@30
t 0 'apply settles' "$SHEAF" recover half --apply --json
json 'after listing' '[x["step"] for x in o if x["what"] == "staged"] == [30]'
t 0 'what was listed' "$SHEAF" recover half --json
json 'is gone' '[x["what"] for x in o] == ["lock"]'
t 0 'and nothing else' "$SHEAF" verify half
for i in $(seq 100 500); do
	mkdir -p "half/.sheaf/trash/$i-0123456789abcdef0123456789abcdef" &&
		: >"half/.sheaf/trash/$i-0123456789abcdef0123456789abcdef/x"
done
t 0 'what is to be deleted in too short a time' "$SHEAF" recover half --apply --timeout-ms 4
has 'is not all deleted, which is said' err 'some leftovers of earlier jobs are not deleted yet'
[ -n "$(ls half/.sheaf/trash)" ]
result $? 'and is so'
t 0 'more time' "$SHEAF" recover half --apply
[ -z "$(ls half/.sheaf/trash)" ] && [ ! -s err ]
result $? 'is enough'
