# SPDX-License-Identifier: Apache-2.0
# Checkpoints written as Hugging Face directories.
golden=$here/../golden
cp -r "$golden/foreign" f
mkdir conf && cp f/training.pt conf/ && echo '{}' >conf/config.json && echo x >conf/notes.txt

wrong "$SHEAF" convert
wrong "$SHEAF" convert f/training.pt
wrong "$SHEAF" convert nowhere.pt out
wrong "$SHEAF" convert f/training.pt dst --dtype I32
wrong "$SHEAF" convert f/training.pt dst --dtype float32
wrong "$SHEAF" convert f/training.pt dst --dtype F8_E8M0
wrong "$SHEAF" convert f/training.pt dst --mem 0
wrong "$SHEAF" convert f/training.pt dst --max-shard-size 5X
wrong "$SHEAF" convert f/training.pt nowhere/out
wrong "$SHEAF" convert f/training.pt .
wrong "$SHEAF" convert f/training.pt dst/..

wrong "$SHEAF" convert f/training.pt dst --format pickle
wrong "$SHEAF" convert f/training.pt dst --format torch --max-shard-size 5M
wrong "$SHEAF" convert f/training.pt dst --all
wrong "$SHEAF" convert f/training.pt dst --format torch --all --dtype BF16
wrong "$SHEAF" export f/training.pt
wrong "$SHEAF" convert f/training.pt dst --betas 0.9,0.95
has 'betas are not ignored' err '--betas: does not go with --format hf'
wrong "$SHEAF" convert f/training.pt dst --format gguf --step 3
has 'nor is a step' err '--step: does not go with --format gguf'

t 0 'a torch.save file is converted' "$SHEAF" convert conf/training.pt dst --json
json 'in an object' 'len(o) == 1 and keys(o[0], "to files tensors bytes written seconds") and \
	o[0]["files"] == 1 and o[0]["written"] > o[0]["bytes"] > 0'
[ "$(ls -A dst | tr '\n' ' ')" = 'config.json model.safetensors ' ]
result $? 'the configuration beside it comes along, and nothing else'
t 0 'and all its weights are there' "$SHEAF" diff conf/training.pt dst --family model
[ ! -e dst.partial ]
result $? 'nothing is left beside it'
t 1 'what is there is not replaced' "$SHEAF" convert conf/training.pt dst
has 'and named' err 'dst: exists'
t 0 'a directory of DCP is converted, in many files' \
	"$SHEAF" convert f/dcp-mesh mesh --max-shard-size 600 --mem 1
has 'and it is said that there is no configuration' err 'has no config.json'
t 0 'they hold what it holds' "$SHEAF" diff f/dcp-mesh mesh
[ -f mesh/model.safetensors.index.json ] && [ -f mesh/model-00001-of-00003.safetensors ]
result $? 'with an index'
t 0 'a Hugging Face directory is converted, too' "$SHEAF" convert mesh one --dtype BF16
t 0 'to another type' "$SHEAF" show one --json
json 'of floating-point tensors' '{x["dtype"] for x in o[0]["tensors"]} <= {"BF16", "I64"}'
t 1 'a prefix that no name has is an answer' "$SHEAF" convert mesh two --prefix x.
has 'in a sentence' err "no tensor whose name begins with 'x.'"
t 1 'and so is a family that is not there' "$SHEAF" convert mesh two --family ema
[ ! -e two ] && [ ! -e two.partial ]
result $? 'and nothing is made'
t 0 'a prefix is left out' "$SHEAF" convert mesh two --prefix model. --json
t 0 'of the names' "$SHEAF" cat two w
mkdir mine.partial && echo x >mine.partial/thesis.txt
t 1 'a directory that happens to have the name is not touched' "$SHEAF" convert mesh mine
has 'and named' err 'mine.partial: is not what an export has left'
[ "$(cat mine.partial/thesis.txt)" = x ]
result $? 'in any way'
"$PY" - <<'P'
import os
os.mkdir("half.partial")
open("half.partial/.sheaf-export", "w").close()
data = bytearray(open("dst/model.safetensors", "rb").read())
data[-1] ^= 1
open("half.partial/model.safetensors", "wb").write(data)
open("half.partial/part-model.safetensors", "wb").write(b"x")
P
t 0 'what a killed one has left is taken up' "$SHEAF" convert conf/training.pt half
t 0 'and what is wrong in it written again' "$SHEAF" diff half dst
[ "$(ls -A half | tr '\n' ' ')" = 'config.json model.safetensors ' ]
result $? 'and the rest of it is gone'
# A second name, where the tensor's own name does not begin so.
cp -r "$golden/v1/checkpoint-10" tied
t 0 'a tensor whose second name has the prefix is written' "$SHEAF" convert tied head --prefix lm_
t 0 'under that name' "$SHEAF" cat head head.weight
cp out second
t 0 'and it is the tensor' "$SHEAF" cat tied embed.weight
cmp -s out second
result $? 'with all its bytes'
t 0 'without a prefix it is written once' "$SHEAF" convert tied once
t 0 'under its own name' "$SHEAF" show once --json
json 'alone' '"embed.weight" in {x["name"] for x in o[0]["tensors"]} and \
	"lm_head.weight" not in {x["name"] for x in o[0]["tensors"]}'
# What lies beside the weights of another program.
cp -r mesh beside && mkdir beside/1_Pooling && echo '{}' >beside/1_Pooling/config.json
echo x >'beside/a name.txt' && echo '{}' >beside/notes.json && : >beside/.sheaf-export
truncate -s 65M beside/tokenizer.json
t 0 'a directory with other files is converted' "$SHEAF" convert beside copied
has 'a folder that is not copied is named' err '1_Pooling'
has 'and a file whose name cannot be that of an attached file' err 'a name.txt'
! grep -q 'notes.json\|tokenizer.json\|safetensors\|sheaf-export' "$T/err"
result $? 'and nothing else'
cmp -s beside/tokenizer.json copied/tokenizer.json && cmp -s beside/notes.json copied/notes.json
result $? 'a large tokenizer is copied'
[ ! -e copied/.sheaf-export ]
result $? 'but not the mark of another export'
for kind in uc-ranks sharding flex; do
	t 0 "the model of Paddle's $kind is converted" "$SHEAF" convert f/paddle-$kind pd-$kind
	! grep -q 'not copied' "$T/err"
	result $? 'and files with tensors are not said to be left out'
done
t 0 'a directory is converted to a new one inside it' "$SHEAF" convert mesh mesh/inside
! grep -q 'not copied' "$T/err"
result $? 'which is not named as a folder that was not copied'
rm -r mesh/inside
# More files than a process may have open.
t 0 'a checkpoint of many files' "$SHEAF" convert mesh many --max-shard-size 1
[ "$(ls many/*.safetensors | wc -l)" -ge 4 ]
result $? 'has many'
(ulimit -Sn 8 && exec "$SHEAF" convert many one-of-many) >"$T/out" 2>"$T/err"
result $? 'is converted although few descriptors are allowed at first'
(ulimit -n 8 && exec "$SHEAF" convert many none-of-many) >"$T/out" 2>"$T/err"
rc=$?
[ "$rc" = 2 ]
result $? 'but not if no more can be had'
has 'which is said with the limit' err 'at most 8 files may be open in a process'
# A whole pickled model: an object of a class that is not read.
"$PY" - <<'P'
import zipfile
with zipfile.ZipFile("model.pt", "w") as z:
    z.writestr("model/data.pkl", b"\x80\x02cuser_code\nModel\n)\x81.")
    z.writestr("model/version", b"3\n")
P
t 1 'a pickled model is not converted' "$SHEAF" convert model.pt pickled
has 'and it is said why' err 'has no tensor that can be read; use sheaf show'
t 0 'which' "$SHEAF" show model.pt
has 'names its class' out 'an object of user_code.Model, which sheaf does not read'

t 0 'a Hugging Face directory is exported as a torch.save file' \
	"$SHEAF" export dst out.pt --format torch --json
json 'with all its tensors' 'o[0]["files"] == 1 and o[0]["written"] > o[0]["bytes"] > 0'
[ -f out.pt ] && [ ! -e out.pt.partial ]
result $? 'which is one file'
t 0 'whose sums are right' "$SHEAF" verify out.pt
t 0 'and whose values are those of the source' "$SHEAF" diff dst out.pt
t 1 'it is not replaced' "$SHEAF" export dst out.pt --format torch
has 'and named' err 'out.pt: exists'
for format in torch dcp paddle; do
	t 0 "all families are exported in format $format" \
		"$SHEAF" export f/paddle-uc all.$format --format $format --all
	t 0 'as dictionaries' "$SHEAF" show all.$format --json
	[ $format = dcp ] && state=model moment='model.norm.weight/moment1_0 --family optimizer' ||
		state=optimizer moment=optimizer.norm.weight/moment1_0
	json 'with their names' '{x["name"].split(".")[0] for x in o[0]["tensors"]} == \
		{"model", "master_weights", "'$state'"}'
	"$SHEAF" cat f/paddle-uc norm.weight/moment1_0 --family optimizer >moment &&
		"$SHEAF" cat all.$format $moment | cmp - moment
	result $? 'and their values'
	t 0 'diff finds the families in the names' "$SHEAF" diff f/paddle-uc all.$format
	t 0 'and one of them' "$SHEAF" diff all.$format f/paddle-uc --family optimizer --json
	json 'alone' 'o[0]["tensors"] == 16 and o[0]["result"] == "same"'
done
"$SHEAF" convert f/training.pt counted --format paddle-uc --all >>err 2>&1
t 0 'files of two other programs are the same where one has counts and one has powers of betas' \
	"$SHEAF" diff f/training.pt counted --family optimizer
t 0 'moments of Lightning need neither --step nor --betas' \
	"$SHEAF" convert f/lightning.ckpt lit --format paddle-uc --all
t 0 'nor do those of a dictionary of torch.save' \
	"$SHEAF" convert f/training.pt dict --format paddle-uc --all
t 0 'also as files of ranks of sharding_io' \
	"$SHEAF" convert f/training.pt dict.shared --format sharding-io --all
for of in lit:net.first.bias:3 dict:model.up.bias:2 dict.shared:model.up.bias:2; do
	name=${of#*:}
	"$SHEAF" cat "${of%%:*}" "${name%:*}/beta1_pow_acc_0" --family optimizer >power &&
		"$PY" -c 'import struct, sys
n = int(sys.argv[1]); have, = struct.unpack("<f", open("power", "rb").read())
sys.exit(have != struct.unpack("<f", struct.pack("<f", .9 ** n))[0])' "${of##*:}"
	result $? "the powers of ${of%%:*} are those of the next update"
done
# Every format gives back what the step has, and says what it does not have.
"$SHEAF" import f/deepspeed-z1 trained@3 >"$T/out" 2>"$T/err"
for format in torch dcp paddle paddle-uc paddle-fc sharding-io deepspeed-universal megatron; do
	t 0 "a step with moments is exported in format $format" \
		"$SHEAF" export trained@3 back.$format --format $format --all
	case $format in
	deepspeed-universal) [ ! -s "$T/err" ] ;;
	*) grep -q "back.$format: notes of the source that it has no place for: [0-9]" "$T/err" ;;
	esac
	result $? 'which says how many notes are left out'
	t 0 'and diff finds no difference' "$SHEAF" diff trained@3 back.$format
	t 0 'in either direction' "$SHEAF" diff back.$format trained@3 --json
	json 'and compares all families' 'o[0]["left_out"] == [] and o[0]["tensors"] > 10'
done
[ -f back.paddle-uc/trainer_state.json ] && [ -f back.sharding-io/scheduler.pdparams ]
result $? 'and trainers with Paddle find where they were'
t 0 'a step with attached files' "$SHEAF" import conf/training.pt attached@1
t 0 'is exported as one file' "$SHEAF" export attached@1 attached.pt --format torch
has 'and it is said which files it has no place for' err \
	'attached.pt: these were not copied: config.json'
t 0 'and as a directory' "$SHEAF" export attached@1 attached.dcp --format dcp
[ -f attached.dcp/config.json ] && ! grep -q 'not copied' "$T/err"
result $? 'which has them'
mkdir meets && cp one/model.safetensors meets/ && echo x >meets/.metadata
t 0 'a file that has the name of one of DCP is attached' "$SHEAF" import meets metrun@1
t 0 'and not copied where DCP has its own' "$SHEAF" export metrun@1 met.dcp --format dcp
has 'which is said' err 'met.dcp: these were not copied: .metadata'
t 0 'and the checkpoint is whole' "$SHEAF" diff metrun@1 met.dcp
t 0 'a directory of DCP is exported in files of some size' \
	"$SHEAF" export dst out.dcp --format dcp --max-shard-size 4K
[ -f out.dcp/.metadata ] && [ -f out.dcp/__0_1.distcp ] && [ ! -e out.dcp.partial ]
result $? 'and metadata'
t 0 'whose values are those of the source' "$SHEAF" diff dst out.dcp
t 2 'a type that NumPy does not have is refused' "$SHEAF" export one out.npz --format npz
has 'by name' err 'is of type BF16, which format npz does not have'
t 2 'also with all families' "$SHEAF" export f/paddle-uc all.npz --format npz --all
has 'with what can be done then' err 'use another format, or write one family alone'
t 0 'unless it is converted' "$SHEAF" export one out.npz --format npz --dtype F32
wrong "$SHEAF" export one other.npz --format npz --max-shard-size 1M

t 1 'quantised tensors of a GGUF file are not left out' "$SHEAF" convert f/quantised.gguf quantised
has 'but refused by name' err 'is quantised (Q'
t 1 'also by an import' "$SHEAF" import f/quantised.gguf quantised@1
t 0 'the others can be converted' "$SHEAF" convert f/quantised.gguf output --prefix output

t 0 'a checkpoint of Megatron is written' \
	"$SHEAF" convert f/megatron-flat meg --format megatron --all --max-shard-size 4K
[ "$(cat meg/latest_checkpointed_iteration.txt)" = 2 ] && [ -f meg/iter_0000002/common.pt ]
result $? 'as that of its iteration'
t 0 'and has all values' "$SHEAF" diff f/megatron-flat meg
t 0 'and sound archives' "$SHEAF" verify meg
t 0 'weights of no iteration' "$SHEAF" convert two released --format megatron
[ "$(cat released/latest_checkpointed_iteration.txt)" = release ]
result $? 'are a release'

for from in ckpt-torch:metadata.pkl zarr-ocdbt-numbered:manifest; do
	t 0 "a directory ${from%:*}" "$SHEAF" convert f/${from%:*} of.${from%:*}
	! grep -q "not copied:.*${from#*:}" "$T/err"
	result $? 'has an index, which is not named as a file that was not copied'
done

# A model that a pipeline of Paddle has saved.
mkdir pipe && cp one/model.safetensors pipe/
printf '{\n  "architectures": ["Qwen2ForCausalLMPipe"],\n  "tensor_parallel_degree": 2\n}\n' \
	>pipe/config.json
t 0 'the class of a pipeline is known to no other program' "$SHEAF" convert pipe plain
has 'so another one is written, which is said' err \
	'plain: config.json names the class Qwen2ForCausalLM instead of Qwen2ForCausalLMPipe'
printf '{\n  "architectures": ["Qwen2ForCausalLM"],\n  "tensor_parallel_degree": 1\n}\n' |
	cmp -s - plain/config.json
result $? 'and all else stays'
t 0 'as in every other format that has a configuration' "$SHEAF" convert pipe plain.dcp --format dcp
has 'which is said, too' err 'plain.dcp: config.json names the class Qwen2ForCausalLM instead of'
t 1 'show --hf tells it of the source' "$SHEAF" show pipe --hf
has 'by what would fail' out 'a class of a pipeline or helper, which vLLM does not know'
t 0 'an import attaches it, too' "$SHEAF" import pipe imported
grep -q '"Qwen2ForCausalLM"' imported/checkpoint-0/config.json
result $? 'under the plain name'
t 0 'and its checksum is that of what was written' "$SHEAF" verify imported@0

# The cache of the Hugging Face hub: links to blobs, in a folder for each commit.
hub=hub/models--org--name
mkdir -p $hub/blobs $hub/refs $hub/snapshots/1111 $hub/snapshots/2222
cp one/model.safetensors $hub/blobs/aa && cp conf/config.json $hub/blobs/bb
ln -s ../../blobs/aa $hub/snapshots/2222/model.safetensors
ln -s ../../blobs/bb $hub/snapshots/2222/config.json
printf 2222 >$hub/refs/main
t 0 'a repository in the cache of the hub is opened at its main snapshot' "$SHEAF" show $hub
has 'which is said' out 'hub/models--org--name/snapshots/2222'
t 0 'and converted' "$SHEAF" convert $hub from-hub
[ ! -s "$T/err" ] && [ -f from-hub/config.json ]
result $? 'with its configuration, and nothing is said of the cache'
t 0 'and it is that snapshot' "$SHEAF" diff $hub from-hub
rm $hub/refs/main
t 1 'without a branch main the snapshots are named' "$SHEAF" show $hub
has 'in a sentence' err 'open one of them, as hub/models--org--name/snapshots/'
