# SPDX-License-Identifier: Apache-2.0
# Checkpoints that others wrote: directories and single files, sound and not.
make() {
	"$PY" "$here/foreign.py" "$1" "$2"
}

for kind in hf qwen link; do
	make $kind $kind
done
for kind in single other f64 nan nan2 short long header json twice deep hole overlap dtype name \
	longname empty unknown bidi nine turned ninety; do
	make $kind $kind.safetensors
done

t 0 'a Hugging Face directory is shown' "$SHEAF" show hf --json
json 'as one, with its tensors and files' 'len(o) == 1 and o[0]["format"] == "hf" \
	and o[0]["step"] is None and o[0]["families"] == ["model"] \
	and "config.json" in o[0]["attached"] and len(o[0]["tensors"]) == 4'
json 'without digests, with offsets' 'all(x["digest"] is None and x["offset"] > 8 \
	and x["bytes"] > 0 for x in o[0]["tensors"])'
t 0 'a single file is shown' "$SHEAF" show single.safetensors --json
json 'as one' 'o[0]["format"] == "safetensors" and \
	[(x["name"], x["dtype"], x["shape"]) for x in o[0]["tensors"]] == \
	[("b", "F32", [3]), ("w", "F32", [2, 3])]'
t 0 'names pick tensors' "$SHEAF" show hf 'a.*' --json
json 'by pattern' '{x["name"] for x in o[0]["tensors"]} == {"a.weight", "a.bias"}'
t 1 'a name that is not there is an answer' "$SHEAF" show hf c.weight
has 'naming it' err 'c.weight'
t 0 'a file that is no run is listed as foreign' "$SHEAF" ls single.safetensors --json
json 'alone' 'len(o) == 1 and o[0]["state"] == "foreign"'
t 0 'a hub cache of links is read' "$SHEAF" cat link a.bias
printf '\0\0\340\100\0\0\360\100\0\0\0\101' | cmp -s - out
result $? 'through the links'

t 0 'cat writes raw bytes' "$SHEAF" cat single.safetensors b
printf '\0\0\020\101\0\0\030\101\0\0\040\101' | cmp -s - out
result $? 'as they are stored'
t 0 'a slice is a part' "$SHEAF" cat single.safetensors w --slice 1:,-2:
printf '\0\0\000\100\0\0\040\100' | cmp -s - out
result $? 'rows from 1, the last two columns'
t 0 'an empty slice is nothing' "$SHEAF" cat single.safetensors w --slice 5:,:
silent 'at all'
for slice in 0 0:1 0:1:2,: a:b,: 0:1,:,: :,: ,; do
	[ "$slice" = ':,:' ] || wrong "$SHEAF" cat single.safetensors w --slice "$slice"
done
t 1 'a tensor that is not there is an answer' "$SHEAF" cat single.safetensors x
"$SHEAF" cat single.safetensors w --npy >w.npy 2>err
"$PY" -c 'import ast, struct
f = open("w.npy", "rb").read()
n = struct.unpack("<H", f[8:10])[0]
assert f[:8] == b"\x93NUMPY\x01\x00" and (10 + n) % 64 == 0 and f[9 + n] == 10
assert ast.literal_eval(f[10:10 + n].decode()) == {
    "descr": "<f4", "fortran_order": False, "shape": (2, 3)}
assert struct.unpack("<6f", f[10 + n:]) == (0, .5, 1, 1.5, 2, 2.5)' 2>>err
result $? '--npy is a NumPy file'

t 0 'a file is the same as itself' "$SHEAF" diff single.safetensors single.safetensors
silent 'without a word'
t 1 'one value makes a difference' "$SHEAF" diff single.safetensors other.safetensors --json
json 'counted and placed' 'o[0] == dict(o[0], family="model", name="w", what="values", count=1, \
	first=5, max_abs=0.25, first_index=[1, 2]) and abs(o[0]["max_rel"] - 0.25 / 2.75) < 1e-9 \
	and o[1] == {"result": "different", "tensors": 2, "different": 1,
	"following": 0, "left_out": []}'
t 0 'within a tolerance it does not' \
	"$SHEAF" diff single.safetensors other.safetensors --atol 0.25
t 1 'a little less and it does' "$SHEAF" diff single.safetensors other.safetensors --atol 0.2499
t 0 'relative to the right side' "$SHEAF" diff single.safetensors other.safetensors --rtol 0.091
t 1 'another dtype differs' "$SHEAF" diff single.safetensors f64.safetensors --json
json 'by name' '[x["what"] for x in o[:-1]] == ["dtype", "dtype"] and \
	all(x["dtypes"] == ["F32", "F64"] and x["shapes"][0] == x["shapes"][1] for x in o[:-1])'
t 1 'which a person is told' "$SHEAF" diff single.safetensors f64.safetensors
has 'of both sides' out 'model/w: dtype, F32 [2, 3] and F64 [2, 3]'
t 0 'but not with a tolerance' "$SHEAF" diff single.safetensors f64.safetensors --atol 0
t 1 'bits of NaN differ' "$SHEAF" diff nan.safetensors nan2.safetensors --json
json 'in two items, not in the first' 'o[0]["count"] == 2 and o[0]["first"] == 1'
t 1 'with a tolerance only the infinity does' \
	"$SHEAF" diff nan.safetensors nan2.safetensors --rtol 1 --json
json 'and no number is made up' 'o[0]["count"] == 1 and o[0]["first"] == 2 \
	and o[0]["max_abs"] is None'
t 1 'other tensors differ' "$SHEAF" diff hf single.safetensors --json
json 'on either side' '[x["what"] for x in o[:-1]] == ["left-only"] * 4 + ["right-only"] * 2'
t 2 'a family on neither side is no answer' "$SHEAF" diff hf hf --family optimizer

t 2 'no sums, no proof' "$SHEAF" verify hf --json
json 'said as unknown' 'o[-1]["result"] == "unknown" and o[-1]["tensors"] == 4'
t 2 'nor of a single file' "$SHEAF" verify single.safetensors
has 'in a sentence' out 'not all can be verified'
for kind in short long header json twice deep hole overlap dtype; do
	t 1 "verify finds a file that is broken: $kind" "$SHEAF" verify $kind.safetensors --json
	json "$kind: as a finding" 'len(o) > 1 and "finding" in o[0] and o[0]["message"] \
		and o[-1]["result"] == "bad"'
	t 1 "show refuses it: $kind" "$SHEAF" show $kind.safetensors
	[ "$(wc -l <err)" = 1 ] && [ ! -s out ]
	result $? "$kind: in one line"
done
t 0 'a name that would turn the line around is shown' "$SHEAF" show bidi.safetensors
has 'escaped' out 'w\u202ez'
t 0 'nine dimensions are shown' "$SHEAF" show nine.safetensors --json
json 'all of them' 'o[0]["tensors"][0]["shape"] == [1] * 8 + [5]'
t 0 'written' "$SHEAF" cat nine.safetensors w
[ "$(cat out)" = 12345 ]
result $? 'byte for byte'
t 0 'as an array of NumPy, too' "$SHEAF" cat nine.safetensors w --npy
has 'of nine dimensions' out "'shape': (1, 1, 1, 1, 1, 1, 1, 1, 5), }"
t 2 'a part of it is not' "$SHEAF" cat nine.safetensors w --slice 0:1
t 0 'and compared' "$SHEAF" diff nine.safetensors nine.safetensors
t 1 'by shape' "$SHEAF" diff nine.safetensors turned.safetensors
has 'of which the sizes are the same' out 'model/w: shape'
sed 's/12345$/12349/' nine.safetensors >nine2.safetensors
t 1 'and by value' "$SHEAF" diff nine.safetensors nine2.safetensors
has 'with its place' out 'values differ in 1 item, first at [4]'
t 0 'ninety dimensions are counted' "$SHEAF" show ninety.safetensors
has 'and no more' out '[90 dimensions]'
t 0 'they are written' "$SHEAF" cat ninety.safetensors w
[ "$(cat out)" = 12345 ]
result $? 'byte for byte'
t 1 'but not for NumPy' "$SHEAF" cat ninety.safetensors w --npy
t 0 'and compared' "$SHEAF" diff ninety.safetensors ninety.safetensors
t 1 'by their number, too' "$SHEAF" diff ninety.safetensors nine.safetensors
has 'which is said' out 'model/w: shape, U8 [90 dimensions] and U8 [1, 1, 1, 1, 1, 1, 1, 1, 5]'
t 0 'a name may hold control characters' "$SHEAF" show name.safetensors
has 'which are shown escaped' out 'w\u001b[31m\u0085'
t 0 'and asked for so' "$SHEAF" cat name.safetensors 'w\u001b[31m\u0085'
[ "$(cat out)" = 12345 ]
result $? 'to have the bytes'
t 0 'a name may be long' "$SHEAF" cat longname.safetensors \
	"$("$PY" -c 'print("n" * 5000)')"
[ "$(cat out)" = 12345 ]
result $? 'as long as it likes'
t 0 'or empty' "$SHEAF" cat empty.safetensors ''
[ "$(cat out)" = 12345 ]
result $? 'and is found'
t 0 'members that nobody knows are passed over' "$SHEAF" show unknown.safetensors --json
json 'however deep' 'o[0]["tensors"][0]["shape"] == [5]'
for kind in name longname empty unknown; do
	t 0 "diff reads it: $kind" "$SHEAF" diff $kind.safetensors $kind.safetensors
	t 2 "verify has nothing against it: $kind" "$SHEAF" verify $kind.safetensors --json
	json "$kind: but proves nothing" 'o[-1]["result"] == "unknown"'
done

make hf torn
mv torn/model.safetensors.index.json right.json
t 0 'a lost index is said' "$SHEAF" show torn --json
json 'as evidence' '"model.safetensors.index.json: missing" in o[0]["evidence"] \
	and len(o[0]["tensors"]) == 4'
t 0 'and written anew' "$SHEAF" repair-index torn --json
json 'once' 'o == [{"path": "torn", "written": 1}]'
"$PY" -c 'import json
a, b = (json.load(open(p)) for p in ("right.json", "torn/model.safetensors.index.json"))
assert a["weight_map"] == b["weight_map"]' 2>err
result $? 'with the files of all tensors'
t 0 'then it is right' tty "$SHEAF" repair-index torn
has 'and says so' out 'the index is right'
head -c 60 right.json >torn/model.safetensors.index.json
t 1 'an index that is cut is found' "$SHEAF" verify torn --json
json 'by its name' 'o[0]["finding"] == "index" \
	and o[0]["file"] == "model.safetensors.index.json"'
t 0 'and repaired' "$SHEAF" repair-index torn
silent 'in silence'
wrong "$SHEAF" repair-index nowhere

rm hf/model-00002-of-00002.safetensors
t 1 'a file that the index names and that is gone is found' "$SHEAF" verify hf --json
json 'by name' 'o[0]["finding"] == "missing" and o[0]["file"] == "model-00002-of-00002.safetensors"'
make hf hf2
"$PY" -c 'import json
p = "hf2/model.safetensors.index.json"
d = json.load(open(p))
d["weight_map"]["b.ids"] = "../single.safetensors"
json.dump(d, open(p, "w"))'
t 1 'an index may not leave the directory' "$SHEAF" verify hf2 --json
json 'and that is a finding' 'o[0]["finding"] == "index" and o[0]["file"]'
t 1 'nor does anything read through it' "$SHEAF" cat hf2 b.ids

"$PY" -c 'import zipfile
with zipfile.ZipFile("ends.npz", "w") as z:
    for name, kind in ("big", ">f4"), ("little", "<f4"):
        head = "{%r: %r, %r: False, %r: (2,)}" % ("descr", kind, "fortran_order", "shape")
        z.writestr(name + ".npy", b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") +
                   head.encode() + bytes(8))'
t 0 'an archive with an array that is not read is converted' "$SHEAF" convert ends.npz ends
has 'and it is said that the array is missing' err 'not read, and so not written: 1'
t 0 'and imported' "$SHEAF" import ends.npz ends.run@1
has 'with the same words' err 'and so not written: 1'
t 0 'where each is read' "$SHEAF" convert single.safetensors all
! grep -q 'not written' err
result $? 'nothing of the kind is said'

t 0 'show --hf is content with a whole Qwen2' "$SHEAF" show qwen --hf
has 'and says so' out 'finds all it needs'
"$PY" -c 'import json
d = json.load(open("qwen/config.json"))
d["num_hidden_layers"] = 3
d["tie_word_embeddings"] = False
json.dump(d, open("qwen/config.json", "w"))'
t 1 'a layer that config.json wants is missed' "$SHEAF" show qwen --hf --json
json 'each tensor by name' \
	'"lm_head.weight" in by("name") and "model.layers.2.mlp.up_proj.weight" in by("name") \
	and o[-1] == {"result": "missing", "missing": 13, "notes": 0}'
rm qwen/config.json qwen/tokenizer.json
t 1 'config.json itself is missed' "$SHEAF" show qwen --hf
has 'by name' out 'config.json: missing'
has 'and a tokenizer noted' out 'tokenizer'
t 1 'one file is no model directory' "$SHEAF" show single.safetensors --hf
make hf both
cp single.safetensors both/model.safetensors
t 1 'nor are shards beside a whole file, which transformers prefers' "$SHEAF" show both --hf
has 'which is said' out 'model.safetensors.index.json: it names other files'
t 0 'the whole file is what is read' "$SHEAF" diff both single.safetensors
t 0 'and show says why' "$SHEAF" show both --json
json 'naming both' '"model.safetensors.index.json: names other files" in o[0]["evidence"] and \
	"transformers" in o[0]["evidence"]'
