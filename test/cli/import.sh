# SPDX-License-Identifier: Apache-2.0
# Checkpoints written as steps of a run.
golden=$here/../golden
cp -r "$golden/foreign" f
cp -r "$golden/v1" old

wrong "$SHEAF" import
wrong "$SHEAF" import f/bare.pt
wrong "$SHEAF" import nowhere.pt run
wrong "$SHEAF" import f/bare.pt run@latest
wrong "$SHEAF" import f/bare.pt run@-1
wrong "$SHEAF" import f/bare.pt run@ten
wrong "$SHEAF" import f/bare.pt run@9223372036854775808
wrong "$SHEAF" import f/bare.pt run --dtype I32
wrong "$SHEAF" import f/bare.pt run --as 'Big One'
wrong "$SHEAF" import f/bare.pt run --mem 0
wrong "$SHEAF" import f/bare.pt old/checkpoint-10
[ ! -e run ]
result $? 'and no run is made'

t 0 'a torch.save file is imported' "$SHEAF" import f/training.pt run --json
json 'in an object' 'len(o) == 1 and keys(o[0], "to step files tensors bytes written " \
	"notes_left_out files_left_out seconds") and \
	o[0]["files"] == 2 and o[0]["written"] > o[0]["bytes"] > 0'
json 'as the step that it says' 'o[0]["step"] == 12'
t 0 'it has all values of the file' "$SHEAF" diff f/training.pt run@12
t 0 'and every block has its checksum' "$SHEAF" verify run@12
t 0 'and the step' "$SHEAF" show run@12 --json
json 'has the values that are no tensors as notes' 'o[0]["notes"]["step"] == "12"'
json 'and no parent' 'o[0]["parent"] is None'
t 1 'what is there is not replaced' "$SHEAF" import f/training.pt run
has 'and named' err 'run/checkpoint-12: exists'
t 0 'another number is given behind an @' "$SHEAF" import f/training.pt run@7
t 0 'to the same tensors' "$SHEAF" diff run@7 run@12

cp -r f/dcp-mesh mesh && echo '{}' >mesh/config.json && echo x >mesh/thesis.txt
t 0 'a directory of DCP is imported, in many files' \
	"$SHEAF" import mesh run@200 --max-shard-size 600 --mem 1
t 0 'with what it holds' "$SHEAF" diff mesh run@200
! grep -q 'attached files' "$T/err"
result $? 'and without a word of files'
[ -f run/checkpoint-200/config.json ] && [ ! -e run/checkpoint-200/thesis.txt ]
result $? 'and with its configuration, but not what happens to lie there'
t 0 'the step is whole' "$SHEAF" verify run@200
truncate -s 65M mesh/tokenizer.json
t 0 'a file that is too large for a step' "$SHEAF" import mesh run@201 --json
json 'is counted' 'o[0]["files_left_out"] == 1'
has 'and said to be left out' err 'does not have, for their names or sizes: 1'
[ ! -e run/checkpoint-201/tokenizer.json ]
result $? 'and is not there'
rm mesh/tokenizer.json
t 0 'a Hugging Face directory' "$SHEAF" convert mesh hf
t 0 'has no number, and becomes step 0' "$SHEAF" import hf run --dtype BF16 --json
json 'of the run' 'o[0]["step"] == 0'
t 0 'in another type' "$SHEAF" show run@0 --json
json 'where tensors are floating-point numbers' \
	'{x["dtype"] for x in o[0]["tensors"]} <= {"BF16", "I64"}'
t 0 'the family is named' "$SHEAF" import hf ema@5 --as ema --prefix model.
t 0 'and has a folder' "$SHEAF" show ema@5 --json
json 'of its own' 'o[0]["families"] == ["ema"] and {x["name"] for x in o[0]["tensors"]} >= {"w"}'
t 2 'diff does not call it the same as a model, which has no such family' "$SHEAF" diff ema@5 hf
has 'but says what each side has' err \
	'both sides: the left has ema, the right has model (choose one with --family;'
t 2 'nor from the other side' "$SHEAF" diff hf ema@5 --json
[ ! -s "$T/out" ]
result $? 'without a result'
t 1 'one of the two families is a difference' "$SHEAF" diff ema@5 hf --family ema
printf 'sheaf-map 1 names steps\n{*} = {*}/step\n' >steps.map
t 0 'a state of numbers of updates alone' \
	"$SHEAF" import hf steps@5 --as optimizer --map steps.map
t 2 'is nothing to compare' "$SHEAF" diff steps@5 hf --family optimizer
has 'which is said' err 'nothing was compared: there are only numbers of updates'
t 1 'a prefix that no name has is an answer' "$SHEAF" import hf ema@6 --prefix x.
has 'in a sentence' err "no tensor whose name begins with 'x.'"

t 0 'the weights and the state of the optimizer' "$SHEAF" import f/training.pt cut@7 --prefix model.
has 'without the other tensors, which are counted' err 'do not begin with model.: 6'
t 0 'lose the key of the model' "$SHEAF" show cut@7 --json
json 'both' 'set(o[0]["families"]) == {"model", "optimizer"} and \
	not any(x["name"].startswith("model.") for x in o[0]["tensors"])'
t 1 'diff pairs both, from one side' "$SHEAF" diff f/training.pt cut@7
has 'and misses what was left out' out '6 of 34 tensors differ'
t 1 'and from the other' "$SHEAF" diff cut@7 f/training.pt
has 'and misses the same' out '6 of 34 tensors differ'
t 0 'a dictionary of several families in one directory' \
	"$SHEAF" export cut@7 cut.dcp --format dcp --all
t 0 'is that step again' "$SHEAF" import cut.dcp cut@8 --prefix model.
t 0 'in every family' "$SHEAF" diff cut@7 cut@8
t 1 'a prefix that one family has not' "$SHEAF" import old@10 cut@9 --prefix h
has 'is refused' err 'has no tensor whose name begins with'

# A step of another run, with all its families.
t 0 'a step of another run is imported' "$SHEAF" import old@10 run --max-shard-size 6000
t 0 'with all its families' "$SHEAF" diff old@10 run@10
t 0 'and every block has its checksum' "$SHEAF" verify run@10
[ -z "$(diff -rq old/checkpoint-10 run/checkpoint-10 | grep -v sheaf.json)" ]
result $? 'and all files but the manifest are equal'
t 0 'the manifest' "$SHEAF" show old@10 --json
cp out old.json
t 0 'differs' "$SHEAF" show run@10 --json
json 'in the session, not in the notes' 'o[0]["session"] != \
	json.loads(open("old.json").readline())["session"] and \
	o[0]["notes"] == json.loads(open("old.json").readline())["notes"]'
t 2 'one type for several families is refused' "$SHEAF" import old@10 run@11 --dtype F32
has 'with what to do' err 'name that one'
t 0 'one family is imported' "$SHEAF" import old@10 run@11 --family model --dtype F32
t 0 'alone' "$SHEAF" show run@11 --json
json 'as the model' 'o[0]["families"] == ["model"]'
t 1 'a family that is not there is an answer' "$SHEAF" import old@10 run@16 --family nothing

# Damage, and a disk that is full.
cp -r old/checkpoint-10 bent
"$PY" - <<'P'
path = "bent/model-00001-of-00003.safetensors"
data = bytearray(open(path, "rb").read())
data[-1] ^= 1
open(path, "wb").write(data)
P
t 1 'a damaged step is not imported' "$SHEAF" import bent run@13
has 'and the block is named' err 'model-00001-of-00003.safetensors: block 0'
[ ! -e run/checkpoint-13 ] && [ -z "$(ls run/.sheaf/stage)" ]
result $? 'and nothing of it is left'
truncate -s -9 f/views.pt
t 1 'half a torch.save file is not imported' "$SHEAF" import f/views.pt run@14
(ulimit -f 1 && exec "$SHEAF" import old@10 run@15) >"$T/out" 2>"$T/err"
rc=$?
[ "$rc" = 2 ] && [ ! -e run/checkpoint-15 ]
result $? 'without room nothing appears'
[ -n "$(ls run/.sheaf/stage)" ]
result $? 'and what was finished waits'
t 0 'where recover' "$SHEAF" recover run --json
json 'says so' '[x["what"] for x in o if x["step"] == 15] == ["copy"]'
t 0 'for the next import' "$SHEAF" import old@10 run@15
[ -z "$(ls run/.sheaf/stage)" ]
result $? 'which leaves nothing'
t 0 'and is whole' "$SHEAF" verify run@15

t 0 'a checkpoint of Paddle is imported as the step of its trainer' \
	"$SHEAF" import f/paddle-uc paddle --json
json 'which its trainer_state.json has' 'o[0]["step"] == 12'
cp -r f/paddle-sharding huge
sed -i 's/"embed.weight": *\[\[[^]]*\]/"embed.weight": [[1, 4294967296, 4294967296]/' \
	huge/model_meta.json
grep -q 4294967296 huge/model_meta.json
result $? 'a shape of more than 2^63 items is written'
t 1 'and refused' "$SHEAF" show huge
