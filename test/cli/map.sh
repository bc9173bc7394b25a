# SPDX-License-Identifier: Apache-2.0
# Maps: the same model under the names and in the shapes of several programs.
maps=$here/../../maps

# A map there and back: what it makes is what maps.py says, and what comes back has the same bytes.
# What a map drops on its way does not come back: DROPPED.
both_ways() {           # MODEL MAP SIDE-BACK DROPPED [OPTION...]
	name=$(basename "$2" .map) model=$1 map=$2 back=$3 dropped=$4
	shift 4
	"$PY" "$here/maps.py" make "$model" "$name" moment1_0 moment2_0
	t 0 "$name is applied" "$SHEAF" convert "$name" "$name.there" --map "$map" "$@"
	t 0 "$name makes what it should" "$PY" "$here/maps.py" check "$name" "$name" "$name.there"
	t 0 "$name is applied backwards" \
		"$SHEAF" convert "$name.there" "$name.back" --map "$map" --to "$back" "$@"
	case $name in
	*-megatron) has 'and says that padding is left out' err 'leaves out as padding: ' ;;
	esac
	if [ "$dropped" ]; then
		t 1 "$name gives back all but what it drops" "$SHEAF" diff "$name" "$name.back"
		[ "$(grep -c left-only "$T/out")" = "$dropped" ] &&
			[ "$(wc -l <"$T/out")" = $((dropped + 1)) ]
		result $? 'and nothing else'
		return
	fi
	"$SHEAF" convert "$name" "$name.plain" 2>"$T/err"
	cmp "$name.back/model.safetensors" "$name.plain/model.safetensors" >"$T/out" 2>"$T/err"
	result $? "$name gives the same bytes back"
	t 0 "$name compares both" "$SHEAF" diff "$name" "$name.there" --map "$map" "$@"
	t 0 "$name compares both from the other side" \
		"$SHEAF" diff "$name.there" "$name" --map "$map" --to "$back" "$@"
}

# A run with masters and moments becomes a checkpoint of Megatron, and comes back.
cat >families.map <<'M'
sheaf-map 1 flat families
also {*}/master = {*} in master_weights
also {*}/moment1_0 = {*}/moment1_0 in optimizer
also {*}/moment2_0 = {*}/moment2_0 in optimizer
{*} = {*}
M
trained() {             # MODEL MAP [OPTION...]
	name=$(basename "$2" .map) of=trained.$1 map=$2
	"$PY" "$here/maps.py" make "$1" "$of" master moment1_0 moment2_0
	"$SHEAF" import "$of" "$of.run@7" --map families.map >"$T/out" 2>"$T/err"
	shift 2
	t 0 "$name makes a checkpoint of Megatron with all families" \
		"$SHEAF" export "$of.run@7" "$of.m" --format megatron --all --map "$map" "$@"
	t 0 'which is the run' "$SHEAF" diff "$of.run@7" "$of.m" --map "$map" --json "$@"
	json 'in all of them' 'o[-1]["left_out"] == [] and o[-1]["tensors"] % 4 == 0'
	t 0 'and becomes one' "$SHEAF" import "$of.m" "$of.back" --map "$map" --to hf \
		--config "$of/config.json" "$@"
	t 0 'with the same tensors' "$SHEAF" diff "$of.run@7" "$of.back@7"
	mv "$of.m/iter_0000007" "$of.dcp"
	rm "$of.dcp/common.pt" "$of.dcp/metadata.json"
	t 0 'also if only the tensors of it are left' "$SHEAF" import "$of.dcp" "$of.left@7" \
		--map "$map" --to hf --config "$of/config.json" "$@"
	t 0 'under the names of Megatron-Core' "$SHEAF" diff "$of.run@7" "$of.left@7"
	for family in master_weights optimizer; do
		t 0 "family $family alone is mapped" "$SHEAF" import "$of.run@7" \
			"$of.$family@7" --family $family --map "$map" "$@"
		t 0 'and back' "$SHEAF" import "$of.$family@7" "$of.$family.back@7" \
			--map "$map" --to hf --config "$of/config.json" "$@"
		t 0 'with each of its tensors' "$SHEAF" diff "$of.run@7" "$of.$family.back@7" \
			--family $family
	done
}

trained qwen2 "$maps/qwen2-hf-megatron.map" --set tp=2,pad=4
for model in llama qwen3 qwen2moe deepseek2; do
	trained $model "$maps/$model-hf-megatron.map"
done
both_ways qwen2 "$maps/qwen2-hf-megatron.map" hf '' --set tp=2,pad=4
for pair in qwen2:qwen2-hf-paddle llama:llama-hf-paddle llama:llama-hf-megatron \
	llama:llama-hf-meta qwen3:qwen3-hf-paddle qwen3:qwen3-hf-megatron \
	qwen2moe:qwen2moe-hf-paddle qwen2moe:qwen2moe-hf-megatron qwen2moe:hf-paddleformers \
	deepseek2:deepseek2-hf-megatron ernie45moe:ernie45moe-hf-paddle llama:llama-hf-gguf \
	qwen2:qwen2-hf-gguf qwen3:qwen3-hf-gguf; do
	both_ways "${pair%%:*}" "$maps/${pair#*:}.map" hf ''
done
# A source without a configuration gets the one that is named, and one that has its own keeps it.
mv llama-hf-megatron.there/config.json named.json
t 0 'a configuration that lies elsewhere is named' "$SHEAF" convert llama-hf-megatron.there \
	llama-named --map "$maps/llama-hf-megatron.map" --to hf --config named.json
cmp llama-named/config.json named.json && ! grep -q 'config.json' "$T/err"
result $? 'and copied, so nothing is missing'
t 0 'into a run, too' "$SHEAF" import llama-hf-megatron.there named-run@1 \
	--map "$maps/llama-hf-megatron.map" --to hf --config named.json
t 0 'where it is attached' "$SHEAF" verify named-run@1
cmp named-run/checkpoint-1/config.json named.json
result $? 'as it was named'
cp named.json llama-hf-megatron.there/config.json
sed 's/^{/{"mark": 1, /' <named.json >other.json
t 0 'beside one that is there' "$SHEAF" convert llama-hf-megatron.there \
	llama-other --map "$maps/llama-hf-megatron.map" --to hf --config other.json
cmp llama-other/config.json named.json
result $? 'it is only for the map'
for format in torch dcp; do
	t 0 "what a map makes is written in format $format" "$SHEAF" convert llama-hf-megatron \
		"mapped.$format" --format $format --map "$maps/llama-hf-megatron.map"
done
t 0 'with the same values' "$SHEAF" diff llama-hf-megatron.there mapped.torch
t 0 'and the same' "$SHEAF" diff llama-hf-megatron.there mapped.dcp
# The map that --format gguf needs follows from config.json, here of a repository in the cache of
# the hub with weights of torch.save.
hub=models--org--name/snapshots/1111
mkdir -p $hub models--org--name/blobs
"$PY" "$here/maps.py" make qwen2 hf.qwen2
"$SHEAF" convert hf.qwen2 $hub/pytorch_model.bin --format torch 2>"$T/err"
"$PY" - hf.qwen2/config.json <<'P' >$hub/config.json
import json, sys
more = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "max_position_embeddings": 64}
print(json.dumps(dict(json.load(open(sys.argv[1])), **more)))
P
echo '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
	"pre_tokenizer": {"type": "ByteLevel"}}' >$hub/tokenizer.json
t 0 'a repository in the cache of the hub is converted to GGUF' \
	"$SHEAF" convert models--org--name qwen2.gguf --format gguf
t 0 'and has the names of llama.cpp' "$SHEAF" cat qwen2.gguf blk.0.attn_q.weight
cp "$T/out" q
"$SHEAF" cat qwen2-hf-gguf.there blk.0.attn_q.weight | cmp - q >"$T/out" 2>"$T/err"
result $? 'and the values of the snapshot'
# Each map that comes with Sheaf was tried.
for map in "$maps"/*.map; do
	[ -d "$(basename "$map" .map).back" ]
	result $? "$(basename "$map") is tested"
done

"$PY" "$here/maps.py" page "$here/../../doc/mapping.md" >worked.map
both_ways worked worked.map apart 3

# A checkpoint of a trainer, whose families stay, and whose state goes with the weights. The powers
# of beta, one for each tensor, are shared by what one tensor becomes.
cp -r "$here/../golden/foreign/paddle-uc" uc
cat >uc.map <<'M'
sheaf-map 1 paddle hf
let a = 6
let b = 6
l.0.down_proj.weight [i o] = l.0.down_proj.weight [o i]
l.0.gate_up_fused_proj.weight [h (a + b)] = l.0.gate_proj.weight [a h], l.0.up_proj.weight [b h]
{*} = {*}
M
t 0 'families are imported through a map' "$SHEAF" import uc run --map uc.map --json
json 'all of them, with the state of the optimizer' 'o[0]["step"] == 12 and o[0]["tensors"] == 30'
t 0 'the step is the checkpoint' "$SHEAF" diff run uc --map uc.map --to paddle --json
json 'in each tensor' 'o[-1]["tensors"] == 24 and o[-1]["left_out"] == []'
t 0 'all families are exported through a map' \
	"$SHEAF" export run mapped.pt --format torch --all --map uc.map --to paddle
t 0 'and without one' "$SHEAF" export uc plain.pt --format torch --all
t 0 'and are the same' "$SHEAF" diff mapped.pt plain.pt
t 0 'and the checkpoint is the step' "$SHEAF" diff uc run --map uc.map
t 0 'one family is converted' \
	"$SHEAF" convert run master --family master_weights --map uc.map --to paddle
t 0 'and listed' "$SHEAF" show master --json
json 'under the names of the other side' '"l.0.gate_up_fused_proj.weight" in str(o)'
t 1 'what differs' "$SHEAF" diff uc master --map uc.map --to hf
has 'is named' out 'right-only'
printf 'sheaf-map 1 short long\n{*} = net.{*}\n' >long.map
"$SHEAF" import "$here/../golden/foreign/deepspeed-z1" trained@3 >"$T/out" 2>"$T/err" &&
	"$SHEAF" import trained@3 weights@3 --map long.map --family model >"$T/out" 2>"$T/err" &&
	"$SHEAF" export trained@3 trained.uc --format paddle-uc --all --map long.map \
		>"$T/out" 2>"$T/err"
t 1 'also through a map a run lacks the families that it does not have' \
	"$SHEAF" diff trained@3 weights@3 --map long.map --json
json 'which are differences' '{x["what"] for x in o[:-1]} == {"left-only"} and \
	"optimizer" in {x["family"] for x in o[:-1]} and o[-1]["left_out"] == []'
t 0 'and an export is the step that it was made of' \
	"$SHEAF" diff trained@3 trained.uc --map long.map --json
json 'but for the numbers of updates' 'o[0]["following"] > 0 and o[0]["left_out"] == []'
t 0 'a checkpoint is listed through a map' "$SHEAF" show uc --map uc.map --json
json 'in all families' '{(x["family"], x["name"]) for x in o[0]["tensors"]} >= \
	{("model", "l.0.gate_proj.weight"), ("optimizer", "l.0.up_proj.weight/moment1_0")}'
t 0 'and a family alone' "$SHEAF" show uc --family model --map uc.map --json
json 'alone' '{x["family"] for x in o[0]["tensors"]} == {"model"}'
t 0 'a tensor that a map makes is read' \
	"$SHEAF" cat uc l.0.down_proj.weight --map uc.map --npy
cp "$T/out" turned.npy
"$SHEAF" cat uc l.0.down_proj.weight --npy >plain.npy
"$PY" - <<'P' >"$T/out" 2>"$T/err"
def read(name):
    data = open(name, "rb").read()
    n = 10 + data[8] + 256 * data[9]
    shape = eval(data[10:n].decode())["shape"]
    size = (len(data) - n) // (shape[0] * shape[1])
    return shape, [data[at:at + size] for at in range(n, len(data), size)]
(rows, cols), a = read("plain.npy")
shape, b = read("turned.npy")
assert shape == (cols, rows) and rows != cols
assert all(b[c * rows + r] == a[r * cols + c] for r in range(rows) for c in range(cols))
P
result $? 'and is turned over'
t 1 'one that it takes is not there' "$SHEAF" cat uc l.0.gate_up_fused_proj.weight --map uc.map
wrong "$SHEAF" show uc --hf --map uc.map
wrong "$SHEAF" show uc --to hf
wrong "$SHEAF" cat uc embed.weight --map nowhere.map

# What is wrong is one sentence.
wrong "$SHEAF" convert uc dst --to hf
wrong "$SHEAF" convert uc dst --map nowhere.map
wrong "$SHEAF" convert uc dst --map qwen9-hf-paddle
wrong "$SHEAF" convert uc dst --map uc.map --to torch
wrong "$SHEAF" convert uc dst --map uc.map --set a
wrong "$SHEAF" convert uc dst --map uc.map --set a=3
wrong "$SHEAF" convert uc dst --map uc.map --config nowhere.json
printf 'sheaf-map 1 a b\nx [o i] = y [o\n' >bad.map
wrong "$SHEAF" import uc other --map bad.map
has 'with file, line and what to do' err 'bad.map:2: the bracket of the dimensions is not closed'
printf 'sheaf-map 1 a b\nnorm.weight = n\n' >less.map
t 1 'a tensor that no rule takes' "$SHEAF" convert uc dst --map less.map
has 'is listed, and refused' err \
	'no rule of less.map takes, from a to b, 3 tensors: embed.weight, l.0.'
[ ! -e dst ] && [ ! -e dst.partial ]
result $? 'and nothing is made'
printf 'sheaf-map 1 a b\nh [o i] = x [i o] : F32\ndrop a {*}\n' >prefix.map
t 0 'a prefix is taken off before the map' \
	"$SHEAF" convert "$here/../golden/foreign/dcp-mesh" pre --map prefix.map --prefix model.
t 0 'which casts and drops' "$SHEAF" show pre --json
json 'what it says' '[(x["name"], x["dtype"], x["shape"]) for x in o[0]["tensors"]] == \
	[("x", "F32", [9, 6])]'
t 0 'a map that comes with the command is found by its name' \
	"$SHEAF" diff qwen2-hf-paddle qwen2-hf-paddle.there --map qwen2-hf-paddle
t 0 'or in another directory' env SHEAF_MAPS="$maps" \
	"$SHEAF" diff qwen2-hf-paddle qwen2-hf-paddle.there --map qwen2-hf-paddle
t 2 'a name that no map has' "$SHEAF" diff qwen2-hf-paddle qwen2-hf-paddle.there --map qwen2
has 'is refused with where to look' err 'no map of this name comes with sheaf'

# A tensor that is turned over is never in memory as a whole, and comes in parts.
printf 'sheaf-map 1 a b\nw [o i] = w [i o]\n' >turn.map
"$PY" "$here/maps.py" big sparse 19000 4001 1
t 0 'a tensor of 152 MB is transposed in less memory' "$PY" "$here/maps.py" most 110000000 \
	"$SHEAF" convert sparse sparse.there --map turn.map --mem 40M
rm -r sparse.there
"$PY" "$here/maps.py" big some 4609 4101 0
t 0 'a tensor of several parts is transposed' "$SHEAF" convert some some.there --map turn.map
t 0 'and back' "$SHEAF" convert some.there some.back --map turn.map --to a --mem 1
t 0 'and is what it was' "$SHEAF" diff some some.back
t 0 'and the same by parts' "$SHEAF" diff some some.there --map turn.map
