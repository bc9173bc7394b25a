# SPDX-License-Identifier: Apache-2.0
# bash completion for sheaf: verbs, options of a verb, then paths, and steps behind RUN@.

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
	# Bash breaks words at an @ that is in COMP_WORDBREAKS; then the step is a word by itself.
	if [[ $word == -* || $options == 'keep bad none' ]]; then
		COMPREPLY=($(compgen -W "$options" -- "$word"))
	elif [[ $word == @ && -d $before ]]; then
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
