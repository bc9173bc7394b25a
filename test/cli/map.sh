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

both_ways qwen2 "$maps/qwen2-hf-megatron.map" hf '' --set tp=2,pad=4
for pair in qwen2:qwen2-hf-paddle llama:llama-hf-paddle llama:llama-hf-megatron \
	llama:llama-hf-meta qwen3:qwen3-hf-paddle qwen3:qwen3-hf-megatron \
	qwen2moe:qwen2moe-hf-paddle qwen2moe:qwen2moe-hf-megatron qwen2moe:hf-paddleformers \
	deepseek2:deepseek2-hf-megatron ernie45moe:ernie45moe-hf-paddle; do
	both_ways "${pair%%:*}" "$maps/${pair#*:}.map" hf ''
done
# Each map that comes with Sheaf was tried.
for map in "$maps"/*.map; do
	[ -d "$(basename "$map" .map).back" ]
	result $? "$(basename "$map") is tested"
done

"$PY" "$here/maps.py" page "$here/../../doc/mapping.md" >worked.map
both_ways worked worked.map apart 3
