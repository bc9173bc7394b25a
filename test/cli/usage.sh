# SPDX-License-Identifier: Apache-2.0
# Wrong command lines, and the pages.
mkdir -p empty-run/.sheaf
: >plain.txt
mkdir plain-dir

wrong "$SHEAF"
wrong "$SHEAF" frobnicate
wrong "$SHEAF" --frobnicate
wrong "$SHEAF" '' x
wrong "$SHEAF" help frobnicate
wrong "$SHEAF" help ls more
wrong "$SHEAF" ls
wrong "$SHEAF" ls a b
wrong "$SHEAF" ls ''
wrong "$SHEAF" ls --jsno .
wrong "$SHEAF" ls -l .
wrong "$SHEAF" ls nowhere
wrong "$SHEAF" ls plain.txt/x
wrong "$SHEAF" show
wrong "$SHEAF" show nowhere@1
wrong "$SHEAF" show empty-run
wrong "$SHEAF" show empty-run@5
wrong "$SHEAF" show empty-run@latest
wrong "$SHEAF" show empty-run@newest
wrong "$SHEAF" show empty-run@99999999999999999999
wrong "$SHEAF" show plain.txt@3
wrong "$SHEAF" show . --family
wrong "$SHEAF" show . --family=
wrong "$SHEAF" show . --hf=yes
wrong "$SHEAF" show /dev/null
wrong "$SHEAF" verify
wrong "$SHEAF" verify empty-run
wrong "$SHEAF" verify empty-run@7
t 2 'of several paths each is told that is not there' "$SHEAF" verify nowhere also-nowhere
has 'the first' err 'nowhere: '
has 'the second' err 'also-nowhere: '
wrong "$SHEAF" verify nowhere
d=$(printf 'd%.0s' $(seq 200))
mkdir "$d"
t 2 'a long path is said without its middle' "$SHEAF" show "./$d"
has 'once, and then what is wrong' err \
	"sheaf: show: ./$(printf '%.56s...%.57s' "$d" "$d"): has no checkpoint"
rmdir "$d"
wrong "$SHEAF" diff
wrong "$SHEAF" diff a
wrong "$SHEAF" diff a b c
wrong "$SHEAF" diff nowhere nowhere
wrong "$SHEAF" diff a b --rtol -1
wrong "$SHEAF" diff a b --rtol nan
wrong "$SHEAF" diff a b --atol inf
wrong "$SHEAF" diff a b --atol 1e-3x
wrong "$SHEAF" diff a b --rtol 1 --rtol 2
wrong "$SHEAF" cat
wrong "$SHEAF" cat a
wrong "$SHEAF" cat a b c
wrong "$SHEAF" cat empty-run x
wrong "$SHEAF" cat nowhere x --npy
wrong "$SHEAF" plan
wrong "$SHEAF" plan nowhere.json
wrong "$SHEAF" plan plain.txt
wrong "$SHEAF" plan state.json --mesh dp=0
wrong "$SHEAF" plan state.json --mesh dp
wrong "$SHEAF" plan state.json --mesh xp=2
wrong "$SHEAF" plan state.json --mesh dp=2,dp=2
wrong "$SHEAF" plan state.json --mesh dp=2 --expert-mesh ep=4
wrong "$SHEAF" plan state.json --mesh dp=3 --nodes 2
wrong "$SHEAF" plan state.json --zero 4
wrong "$SHEAF" plan state.json --families modle
wrong "$SHEAF" plan state.json --nodes 0
wrong "$SHEAF" plan state.json --file-bytes 4X
wrong "$SHEAF" plan state.json --file-bytes G
wrong "$SHEAF" plan state.json --file-bytes 9999999T
wrong "$SHEAF" agent empty-run --memory-max 64GB
wrong "$SHEAF" agent empty-run --status --memory-max 64G
has 'which option' err '--memory-max: an agent that serves keeps the options'
wrong "$SHEAF" agent empty-run --stop --hook true
wrong "$SHEAF" agent empty-run --flush --steps 2
wrong "$SHEAF" prune
wrong "$SHEAF" prune empty-run
wrong "$SHEAF" prune empty-run --keep-last 0
wrong "$SHEAF" prune empty-run --keep-last -3
wrong "$SHEAF" prune empty-run --keep-last many
wrong "$SHEAF" prune empty-run --keep-last 2 --best 3:loss
wrong "$SHEAF" prune empty-run --keep-last 2 --best 0:loss:min
wrong "$SHEAF" prune empty-run --keep-last 2 --best 3::min
wrong "$SHEAF" prune empty-run --keep-last 2 --best 3:loss:most
wrong "$SHEAF" prune empty-run --keep-last 2 --best loss:min
wrong "$SHEAF" prune empty-run --keep-last 2 --best 99999999999:loss:min
wrong "$SHEAF" prune empty-run --best 3:loss:min
wrong "$SHEAF" prune empty-run@3 --keep-last 2
wrong "$SHEAF" prune nowhere --keep-last 2
wrong "$SHEAF" mark nowhere@1 keep
wrong "$SHEAF" prune plain-dir --keep-last 2 --apply
wrong "$SHEAF" rewind plain-dir@1
wrong "$SHEAF" mark empty-run keep
wrong "$SHEAF" mark empty-run@latest keep
wrong "$SHEAF" mark empty-run@3 good
wrong "$SHEAF" mark empty-run@3
wrong "$SHEAF" rewind empty-run
wrong "$SHEAF" rewind empty-run@latest
wrong "$SHEAF" aside
wrong "$SHEAF" aside empty-run --restore 3
wrong "$SHEAF" aside empty-run --delete 3
wrong "$SHEAF" aside empty-run --restore three
wrong "$SHEAF" aside empty-run --restore 3 --delete 3
wrong "$SHEAF" aside empty-run@3
wrong "$SHEAF" copy empty-run
wrong "$SHEAF" copy empty-run@3 elsewhere
wrong "$SHEAF" copy nowhere elsewhere
wrong "$SHEAF" stats
wrong "$SHEAF" stats nowhere
wrong "$SHEAF" stats empty-run
wrong "$SHEAF" stats empty-run@3
wrong "$SHEAF" stats plain.txt
wrong "$SHEAF" stats empty-run --last 0
wrong "$SHEAF" stats empty-run --last many
wrong "$SHEAF" recover nowhere
wrong "$SHEAF" recover empty-run@3
wrong "$SHEAF" recover empty-run --salvage -1
wrong "$SHEAF" recover empty-run --salvage 3 --apply
wrong "$SHEAF" recover empty-run --salvage 3

t 2 'an unknown option is guessed at' "$SHEAF" ls --jsno .
has 'and the guess is in parentheses' err '(did you mean --json?)'
t 2 'an unknown verb is guessed at' "$SHEAF" vreify .
has 'the nearest one' err '(did you mean verify?)'
t 2 'with --json an error is an object' "$SHEAF" show nowhere --json
cp err out
json 'with error, what, where, why, hint' \
	'len(o) == 1 and keys(o[0], "error what where why hint") and o[0]["error"] == "ENOENT" \
	and o[0]["what"] == "show" and o[0]["where"] == "nowhere"'
t 2 'a usage error as well' "$SHEAF" show --json --what
cp err out
json 'even where the option is the error' 'len(o) == 1 and o[0]["error"] == "USAGE"'
printf x >"$(printf 'a\033[31mb\302\205')"
t 1 'a path with control characters is no checkpoint' \
	"$SHEAF" show "$(printf 'a\033[31mb\302\205')"
has 'and does not reach the terminal raw' err 'a\x1b[31mb\u0085'

t 0 'help lists the verbs' "$SHEAF" help
has 'each of them' out 'rewind'
for verb in ls show verify diff cat plan prune mark rewind aside copy recover agent stats bench; do
	t 0 "help $verb is a page" "$SHEAF" help $verb
	has "$verb says how it exits" out 'exit status'
	cp out page
	"$SHEAF" $verb --help >out 2>err
	cmp -s page out
	result $? "$verb --help is the same page"
	for way in "--help $verb" "-h $verb" "$verb -h"; do
		"$SHEAF" $way >out 2>err
		cmp -s page out
		result $? "so is $way"
	done
done
t 0 'version is told' "$SHEAF" --version
has 'as three numbers' out 'sheaf 0.1.0'
cp out page
t 0 'so it is by -V' "$SHEAF" -V
cmp -s page out
result $? 'in the same words'
t 0 '-h lists the verbs' "$SHEAF" -h
has 'as help does' out 'rewind'
wrong "$SHEAF" --version more
wrong "$SHEAF" -h frobnicate
t 0 'an empty run lists nothing' "$SHEAF" ls empty-run
silent 'and says nothing'
mkdir nothing
for verb in 'ls nothing' 'recover nothing' 'prune nothing --keep-last 1' 'aside nothing' \
	'stats nothing'; do
	t 2 "$verb: an empty directory is not a run" "$SHEAF" $verb
	has 'and it is said' err 'not a run: it has neither .sheaf nor a checkpoint-N'
done
if [ -c /dev/full ]; then
	said='sheaf help >/dev/full'
	"$SHEAF" help >/dev/full 2>err
	rc=$?
	[ $rc = 2 ] && [ -s err ]
	result $? 'an answer that cannot be written is an error'
fi

if have_bench; then
	S="--run w --step 1 --state state.json"
	wrong "$BENCH"
	wrong "$BENCH" frob
	wrong "$BENCH" save
	wrong "$BENCH" save --run w
	wrong "$BENCH" save --run w --step 1
	wrong "$BENCH" save --run w --step x --state state.json
	wrong "$BENCH" save --run w --step latest --state state.json
	wrong "$BENCH" load --run w --step latest --steps 2 --state state.json
	wrong "$BENCH" save --run w --step 1 --state nowhere.json
	wrong "$BENCH" save --run w --step 1 --state plain.txt
	wrong "$BENCH" save --run w --step 1 --state state.json --preset llama-7b
	wrong "$BENCH" save --run w --step 1 --like nowhere
	wrong "$BENCH" save --run w --step 1 --preset gpt-5
	wrong "$BENCH" save $S --gb 1
	wrong "$BENCH" save $S --mesh dp=2
	wrong "$BENCH" save $S --expert-mesh ep=2
	wrong "$BENCH" save $S --to tp=1
	wrong "$BENCH" save $S --zero 4
	wrong "$BENCH" save $S --io uring
	wrong "$BENCH" save $S --io fast
	wrong "$BENCH" save $S --isa avx512
	wrong "$BENCH" save $S --memory-every 1
	wrong "$BENCH" save $S --seed -1
	wrong "$BENCH" save $S --seed 18446744073709551616
	wrong "$BENCH" save $S --json=1
	wrong "$BENCH" save $S --timeout-ms 0
	wrong "$BENCH" save $S --families modle
	wrong "$BENCH" save $S --events nowhere/events
	wrong "$BENCH" save $S extra
	wrong "$BENCH" reshard $S
	wrong "$BENCH" reshard $S --to tp=2
	has 'said without a hint at the options' err 'there are 1'
	wrong "$BENCH" save --run nowhere/w --step 1 --state state.json --json=
	wrong "$BENCH" save --run w --step 1 --state "$(printf 'a\033[31mb')"
	has 'a file name does not reach the terminal raw' err 'a\x1b[31mb'
	wrong "$BENCH" save --run w --step 1 --state state.json --like x
	has 'said as it is' err 'give only one of --state, --like, --preset'
	echo '{"tensors":[{"name":"e","dtype":"F32","shape":[2],"expert":0}]}' >expert.json
	wrong "$BENCH" save --run w --step 1 --state expert.json
	has 'one of how many' err 'has "expert" and no "experts"'
	"$PY" -c 'import json
print(json.dumps({"tensors": [{"name": 1020 * "n", "dtype": "F32", "shape": [2]}]}))' >long.json
	wrong "$BENCH" save --run w --step 1 --state long.json --adam
	has 'Adam makes a name too long' err 'with /moment1_0 for Adam its name has 1030 bytes'
	has 'in which file' err 'long.json: '
	[ "$(wc -c <err)" -lt 300 ] && ! grep -q -e --help err
	result $? 'and the sentence is short'
	[ ! -e w ]
	result $? 'none of these touched the run'
	t 2 'a mesh that does not fit the ranks is refused on all of them' \
		mpi 2 save $S --mesh dp=3
	has 'with the numbers' err "mesh 'dp=3' has 3 ranks, there are 2"
	[ "$(grep -c "has 3 ranks" err)" = 1 ] && [ ! -e w ]
	result $? 'said once, and the run is not touched'
	run mpirun --allow-run-as-root --oversubscribe -n 1 "$BENCH" save $S --mesh dp=2 : \
		-n 1 "$BENCH" save $S --mesh dp=2 --frob
	[ "$rc" = 2 ] && [ "$(grep -c "unknown option '--frob'" err)" = 1 ] && [ ! -e w ]
	result $? 'an option that is wrong on one rank stops all at once'
fi

# The completion of bash, as bash calls it: the words, and the index of the last.
if command -v bash >"$T/out" 2>&1 && [ -f "$here/../../completion/sheaf.bash" ]; then
	mkdir -p 'runs/gpt 2/.sheaf' runs/gpt/checkpoint-8 runs/gpt/checkpoint-10 \
		runs/gpt/checkpoint-x
	complete_as() {         # WANT CLAIM WORD...
		want=$1 claim=$2
		shift 2
		run bash -c 'compopt() { :; }; . "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
			_sheaf; printf "%s\n" "${COMPREPLY[@]}" | LC_ALL=C sort | tr "\n" " "' \
			"$here/../../completion/sheaf.bash" "$@"
		[ "$(cat "$T/out")" = "$want" ]
		result $? "$claim"
	}
	complete_as 'runs/gpt@10 runs/gpt@8 runs/gpt@latest ' 'steps are completed behind RUN@' \
		sheaf show runs/gpt@
	complete_as 'runs/gpt@10 ' 'by their first digits' sheaf verify runs/gpt@1
	complete_as '@10 @8 @latest ' 'and where bash breaks words at an @' sheaf show runs/gpt @
	complete_as 'latest ' 'behind it, too' sheaf show runs/gpt @ l
	complete_as 'bad keep none ' 'marks are completed behind a step' sheaf mark runs/gpt@8 ''
	complete_as 'bad ' 'also where it was broken' sheaf mark runs/gpt @ 8 b
	complete_as 'aside ' 'verbs are completed' sheaf as
	complete_as '--delete ' 'and their options' sheaf aside runs/gpt --d
	complete_as 'runs/gpt runs/gpt 2 ' 'and paths' sheaf ls runs/g
	for verb in $("$SHEAF" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
		complete_as "$verb " "bash knows $verb" sheaf "$verb"
		grep -q "^		'$verb:" "$here/../../completion/_sheaf"
		result $? "and so does zsh"
	done
fi
