# SPDX-License-Identifier: Apache-2.0
# bash completion for sheaf and sheaf-train: verbs, options of a verb, then paths, and steps behind
# RUN@. Those of sheaf-train are read from its help, which is written from its one table of options.

# The steps of the run before the @ of $1, and latest.
_sheaf_steps()
{
	local run=${1%@*} entry
	run=${run/#\~/$HOME}
	for entry in "$run"/checkpoint-*/; do
		entry=${entry%/}
		[[ -d $entry && ${entry##*-} != *[!0-9]* ]] && echo "${entry##*-}"
	done
	echo latest
}

_sheaf()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb='' i
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-*) ;;
		*) verb=${COMP_WORDS[i]}; break ;;
		esac
	done
	if [[ -z $verb ]]; then
		COMPREPLY=($(compgen -W 'ls show verify diff cat plan prune mark rewind aside copy
			convert export import recover repair-index agent stats bench help --help --version' -- "$word"))
		return
	fi
	case $before in
	--family)
		COMPREPLY=($(compgen -W 'model master_weights optimizer ema ranks' -- "$word"))
		return ;;
	--as)
		COMPREPLY=($(compgen -W 'model master_weights optimizer ema' -- "$word"))
		return ;;
	--dtype)
		COMPREPLY=($(compgen -W 'F32 F16 BF16 F64 F8_E4M3 F8_E5M2' -- "$word"))
		return ;;
	--format)
		COMPREPLY=($(compgen -W 'hf torch dcp npz paddle paddle-uc paddle-fc sharding-io deepspeed-universal gguf megatron' -- "$word"))
		return ;;
	--zero)
		COMPREPLY=($(compgen -W '0 1 2 3' -- "$word"))
		return ;;
	esac
	local options='--json --help'
	case $verb in
	help)
		COMPREPLY=($(compgen -W 'ls show verify diff cat plan prune mark rewind aside copy
			convert export import recover repair-index agent stats bench' -- "$word"))
		return ;;
	ls) options+=' --socket' ;;
	aside) options+=' --restore --delete --timeout-ms' ;;
	show) options+=' --family --hf --map --to --set --config' ;;
	diff) options+=' --rtol --atol --family --unverified --map --to --set --config' ;;
	cat) options+=' --family --slice --npy --unverified --map --to --set --config' ;;
	plan) options+=' --mesh --expert-mesh --zero --nodes --adam --families --file-bytes
			--staging-bytes --mb-per-s' ;;
	prune) options+=' --keep-last --keep-every --best --apply --grace --timeout-ms' ;;
	mark)
		options+=' --timeout-ms'
		[[ $before == *@* && $before != @ || ${COMP_WORDS[COMP_CWORD-2]-} == @ ]] &&
			options='keep bad none' ;;
	rewind) options+=' --timeout-ms' ;;
	convert) options+=' --format --step --betas --all --family --prefix --dtype --map --to --set --config --max-shard-size --mem' ;;
	export) options+=' --format --step --betas --all --family --prefix --dtype --map --to --set --config --max-shard-size --mem' ;;
	import) options+=' --family --as --prefix --dtype --map --to --set --config --max-shard-size --mem' ;;
	recover) options+=' --apply --salvage --timeout-ms' ;;
	agent) options+=' --detach --socket --memory-max --steps --idle --folder --hook --no-flush --grace --status --flush
			--due --list --stop --force' ;;
	stats) options+=' --last' ;;
	bench) options+=' --size --rounds --threads' ;;
	esac
	if [[ $word == -* || $options == 'keep bad none' ]]; then
		COMPREPLY=($(compgen -W "$options" -- "$word"))
	else
		_sheaf_paths
	fi
}

# Paths, and steps behind RUN@. Bash breaks words at an @ that is in COMP_WORDBREAKS; then the step
# is a word by itself.
_sheaf_paths()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
	if [[ $word == @ && -d $before ]]; then
		COMPREPLY=($(compgen -W "$(_sheaf_steps "$before@")" -P @))
	elif [[ $before == @ && -d ${COMP_WORDS[COMP_CWORD-2]-} ]]; then
		COMPREPLY=($(compgen -W "$(_sheaf_steps "${COMP_WORDS[COMP_CWORD-2]}@")" -- "$word"))
	elif [[ $word == *@* && -d ${word%@*} ]]; then
		COMPREPLY=($(compgen -W "$(_sheaf_steps "$word")" -P "${word%@*}@" -- "${word##*@}"))
	else
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
	fi
}
complete -F _sheaf sheaf

# The keys in the help of sheaf-train, as options.
_sheaf_train_keys()
{
	sed -n 's/^  \([a-z][a-z0-9-]*\) .*/--\1/p' <<<"$1"
}

# The values that the help $1 lists for the option $2; none if it may be anything.
_sheaf_train_values()
{
	awk -v key="${2#--}" '/^  [a-z]/ && $1 == key {
		getline
		if (match($0, /\(one of [^;)]*/))
			print substr($0, RSTART + 8, RLENGTH - 8)
		else if (/\(true or false/)
			print "true|false"
	}' <<<"$1" | tr '|' ' '
}

_sheaf_train()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} help options values=
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W 'run eval plan plot data help --help --version' -- "$word"))
		return
	fi
	# Bash breaks --KEY=VALUE into three words.
	if [[ $word == = ]]; then
		word=''
	elif [[ $before == = ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	case ${COMP_WORDS[1]} in
	data) options='-o -j --tokenizer'
		[[ $before == --tokenizer ]] && values=bytes ;;
	plot) options='-o' ;;
	run | eval | plan)
		help=$("${COMP_WORDS[0]}" help 2>/dev/null)
		options="$(_sheaf_train_keys "$help") --json"
		[[ ${COMP_WORDS[1]} == plan ]] || options+=' --events --print-config'
		[[ $before == --* ]] && values=$(_sheaf_train_values "$help" "$before")
		[[ $before == --resume ]] && values=$(compgen -W 'auto none' -- "$word") ;;
	*) return ;;
	esac
	if [[ -n $values && $word != -* ]]; then
		COMPREPLY=($(compgen -W "$values" -- "$word"))
	elif [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "$options" -- "$word"))
	else
		_sheaf_paths
	fi
}
complete -F _sheaf_train sheaf-train
