# SPDX-License-Identifier: Apache-2.0
# Each verb on a run whose steps are named step-N. An agent makes the run, as a launcher would.
if ! have_bench; then
	echo "ok $((n += 1)) - a run with names of its own # SKIP no sheaf-bench"
	return 0
fi
trap '"$SHEAF" agent "$W/folder/run" --stop --force 2>/dev/null
	chmod -R u+w "$W"; rm -rf "$W"' EXIT
printf '#!/bin/sh\necho "$1 $2" >>"%s/hooked"\n' "$PWD" >hook
chmod +x hook
t 0 'an agent makes a run with names of its own' "$SHEAF" agent run --detach --folder 'step-{n}' \
	--hook ./hook --socket sock
t 0 'which stay' grep -qx 'folder step-{n}' run/.sheaf/run
t 0 'it is asked with the same names' "$SHEAF" agent run --detach --folder 'step-{n}' \
	--hook ./hook --socket sock
t 2 'others are refused' "$SHEAF" agent run --detach --folder 'save-{n}' --socket other
has 'and both are named' err 'named step-{n}, and opts.folder is save-{n}'
t 2 'a name that leads out of the run is no name' "$SHEAF" agent more --folder '../{n}'
has 'and the rule is said' err 'it must be up to 40 of [A-Za-z0-9._-], then {n}'
t 0 'a job saves there' mpi 2 save --run run --step 10 --steps 4 --every 10 --state state.json \
	--mesh tp=2 --seed 5 --agent "$PWD/sock"
[ -d run/step-40 ] && [ ! -e run/checkpoint-40 ]
result $? 'under these names'
for _ in $(seq 100); do
	grep -q '^40 ' hooked && break
	sleep 0.1
done
t 0 'and the hook is told them' grep -qx "40 $PWD/run/step-40" hooked
t 0 'the agent ends' "$SHEAF" agent run --stop --socket sock

t 0 'ls' "$SHEAF" ls run --json
json 'lists them' '[x["path"] for x in o] == ["step-10", "step-20", "step-30", "step-40"] and \
	all(x["state"] == "committed" for x in o)'
"$SHEAF" ls run@20 --json >one
t 0 'ls of the folder of one' "$SHEAF" ls run/step-20/ --json
cmp -s out one
result $? 'is the line of that step'
t 0 'show' "$SHEAF" show run@20 --json
json 'shows it' 'o[0]["step"] == 20'
t 0 'verify of the latest' "$SHEAF" verify run
t 0 'verify by path' "$SHEAF" verify run/step-10
t 1 'diff of two' "$SHEAF" diff run@10 run@20
t 0 'cat' "$SHEAF" cat run@20 half --npy
t 0 'cat past damage' "$SHEAF" cat run@20 half --npy --unverified
t 0 'mark' "$SHEAF" mark run@10 keep
t 0 'prune' "$SHEAF" prune run --keep-last 1 --apply
[ -d run/step-10 ] && [ ! -e run/step-20 ] && [ ! -e run/step-30 ] && [ -d run/step-40 ]
result $? 'leaves the newest and the marked'
t 0 'copy into a new run' "$SHEAF" copy run@10 new
[ -d new/step-10 ]
result $? 'which has the same names'
t 0 'rewind' "$SHEAF" rewind run@10
[ ! -e run/step-40 ]
result $? 'sets the later one aside'
t 0 'the next job goes on' mpi 1 save --run run --step 20 --state state.json --seed 5
[ -d run/step-20 ]
result $? 'under the same names'
t 0 'recover' "$SHEAF" recover run --json
json 'finds what was set aside' '[x["step"] for x in o if x["what"] == "aside"] == [40]'
