# SPDX-License-Identifier: Apache-2.0
# Hosts that are namespaces of this machine, each with its network, mounts, /dev/shm, host name and
# processes, one disk between them, and MPI across. Needs root.
PATH=$PATH:/usr/sbin:/sbin
hosts_hub=
hosts_down() {
	pkill -9 -f "hostfile $W/net/file"
	for p in "$W"/net/pid-*; do
		[ -e "$p" ] && kill -9 "$(cat "$p")" 2>/dev/null
		rm -f "$p"
	done
	[ -z "$hosts_hub" ] || kill -9 "$hosts_hub" 2>/dev/null
	hosts_hub=
}
on() {                  # HOST CMD...: there
	pid=$(cat "$W/net/pid-$1")
	shift
	nsenter -t "$pid" -m -n -i -u -p sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}
host_up() {             # HOST
	unshare --net --mount --ipc --uts --pid --fork --kill-child --mount-proc sh -c "
		hostname host$1 && mount -t tmpfs -o size=2g none /dev/shm &&
		ip link set lo up && touch '$W/net/up-$1' && exec sleep 3600" \
		>"$W/net/said-$1" 2>&1 &
	up=$!
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ -e "$W/net/up-$1" ] && break
		sleep 0.1
	done
	pgrep -P $up >"$W/net/pid-$1" && [ -e "$W/net/up-$1" ] &&
		nsenter -t "$hosts_hub" -n ip link add name "v$1" type veth peer name eth0 \
			netns "$(cat "$W/net/pid-$1")" &&
		nsenter -t "$hosts_hub" -n ip link set "v$1" master br0 up &&
		on "$1" ip addr add "10.77.0.$1/24" dev eth0 && on "$1" ip link set eth0 up
}
hosts_up() {            # a switch, and two hosts on it
	mkdir "$W/net"
	unshare --net sleep 3600 &
	hosts_hub=$!
	sleep 0.2
	nsenter -t "$hosts_hub" -n sh -c 'ip link set lo up && ip link add name br0 type bridge &&
		ip addr add 10.77.0.254/24 dev br0 && ip link set br0 up' || return 1
	cat >"$W/net/rsh" <<-EOF
	#!/bin/sh
	pid=\$(cat "$W/net/pid-\${1##*.}")
	shift
	exec nsenter -t "\$pid" -m -n -i -u -p sh -c "\$*"
	EOF
	chmod +x "$W/net/rsh"
	host_up 1 && host_up 2
}
spread() {              # HOSTS RANKS-EACH ARGS...: sheaf-bench over hosts "1 2"
	for h in $1; do echo "10.77.0.$h slots=$2"; done >"$W/net/file"
	each=$2
	ranks=$(($(wc -l <"$W/net/file") * each))
	shift 2
	nsenter -t "$hosts_hub" -n mpirun --allow-run-as-root --hostfile "$W/net/file" \
		-n $ranks --mca plm_rsh_agent "$W/net/rsh" --mca btl tcp,self,vader \
		--mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
		--mca orte_tmpdir_base "$W/net" "$BENCH" "$@"
}
sums() {                # of all files of a step but the manifest
	(cd "$1" && find . -type f ! -name sheaf.json -exec sha256sum {} + | sort)
}
await() {               # CMD...: until it holds, 120 s
	for _ in $(seq 1200); do
		"$@" >/dev/null 2>&1 && return 0
		sleep 0.1
	done
	return 1
}
some_committed() { [ "$(grep -c '"committed"' events)" -ge 3 ]; }
no_ranks() {             # but for those who start them
	for p in $(pgrep -f -- "$many"); do
		grep -qE 'nsenter|mpirun' "/proc/$p/comm" 2>/dev/null || return 1
	done
}
a_stage() { [ -n "$(ls run/.sheaf/stage)" ]; }

trap 'hosts_down; chmod -R u+w "$W"; rm -rf "$W"' EXIT
if ! have_bench; then
	echo "ok $((n += 1)) - hosts # SKIP no sheaf-bench"
	return 0
fi
if ! { [ "$(id -u)" = 0 ] && hosts_up >"$T/out" 2>"$T/err"; }; then
	echo "ok $((n += 1)) - hosts # SKIP namespaces need root: $(head -n 1 "$T/err")"
	return 0
fi

# ---- where bytes go ----
state='--state state.json --adam'
# Nobody else's processes have this in their arguments.
many="--run run --step 1 --steps $((1000000 + $$))"
for mesh in dp=2,tp=2 tp=4 pp=2,tp=2; do
	t 0 "$mesh over two hosts is saved" spread '1 2' 2 save --run run-$mesh --step 1 $state \
		--mesh $mesh --json
	"$PY" "$here/lines.py" out 'print([e for e in o
		if e["event"] == "saved"][0]["net_bytes"]) or 1' >sent 2>>err
	t 0 'and as one host with two nodes in the plan' "$SHEAF" plan state.json --mesh $mesh \
		--nodes 2 --adam --json
	json "$mesh: each host is a node: what travels is what is planned" \
		"o[-1]['sends'] == $(cat sent)"
	t 0 "$mesh on one host" mpi 4 save --run one-$mesh --step 1 $state --mesh $mesh
	[ "$(sums run-$mesh/checkpoint-1)" = "$(sums one-$mesh/checkpoint-1)" ]
	result $? "$mesh: the same bytes"
done
t 0 'loaded over two hosts in another layout' spread '1 2' 2 load --run run-tp=4 --step 1 $state \
	--mesh dp=4 --zero 1
t 0 'and on one of them' on 2 "$BENCH" load --run run-tp=4 --step 1 $state

# ---- a writer whose processes cannot be seen from here ----
on 1 "$BENCH" save $many $state --json >events 2>&1 </dev/null &
await some_committed
await a_stage
writer=$(pgrep -f -- "$many")
inside=$(echo "$writer" | tail -n 1)
kill -STOP "$inside"
a_stage || { kill -CONT "$inside"; await a_stage; kill -STOP "$inside"; }
stage=$(ls run/.sheaf/stage | head -n 1)
t 2 'a run that another host writes is busy' on 2 "$BENCH" save --run run --step 900000 $state \
	--timeout-ms 800 --json
json 'and says who' 'o[-1]["code"] == "EBUSY" and "on host1" in o[-1]["message"]'
[ "$(ls run/.sheaf/stage | head -n 1)" = "$stage" ]
result $? 'what it is making stands'
# shellcheck disable=SC2086
kill -9 $writer         # with nsenter, which had stopped like its child
wait "$!" 2>/dev/null
t 0 'dead, another host goes on at once' on 2 "$BENCH" save --run run --step 900000 $state
[ -z "$(ls run/.sheaf/stage)" ]
result $? 'and clears away what it left: the kernel says that it is dead'
t 0 'all steps are good' "$SHEAF" verify run

# ---- steps in the memory of two hosts ----
# Hosts have their own /tmp; here they share it.
sock=/dev/shm/agent
keep="--agent $sock --async --lazy --images 3"
for h in 1 2; do
	t 0 "an agent on host $h" on $h "$SHEAF" agent mem --detach --socket $sock
done
t 0 'every step to both memories, every fifth to the disk' spread '1 2' 2 save --run mem --step 5 \
	--steps 2 --every 5 --memory-every 1 $keep $state --mesh dp=2,tp=2 --json
json 'as events say' 'sorted((x["step"], x["to"]) for x in o if x["event"] == "saved") == \
	[(5, "disk"), (6, "memory"), (7, "memory"), (8, "memory"), (9, "memory"), (10, "disk")]'
spread '1 2' 2 save --run mem --step 15 --steps 9000 --every 5000 --memory-every 1 $keep \
	--events "$W/memory" $state --mesh dp=2,tp=2 >said 2>&1 </dev/null &
job=$!
some_in_memory() { grep -q '"step":18,.*"to":"memory"' "$W/memory"; }
await some_in_memory
result $? 'a job saves each step'
pkill -9 -f -- "--events $W/memory"
wait $job 2>/dev/null
last=$(sed -n 's/.*"event":"committed","step":\([0-9]*\).*/\1/p' "$W/memory" | tail -n 1)
t 0 'killed: the next one goes on, in another layout' spread '1 2' 2 load --run mem --step latest \
	--agent $sock $state --mesh tp=4 --json
json 'from the memory of both' "[(e['source'], e['disk_bytes']) for e in o
	if e['event'] == 'loaded'] == [('memory', 0)]"
json 'with nothing lost' "[e for e in o if e['event'] == 'loaded'][0]['step'] >= $last"
on 2 "$SHEAF" agent mem --flush --socket $sock --json >flushed 2>&1 </dev/null &
other=$!
t 0 'what lies on two is written by both' on 1 "$SHEAF" agent mem --flush --socket $sock --json
json 'as one step' "o[0]['step'] >= $last"
wait $other
result $? 'whoever publishes it'
t 0 'and is sound' "$SHEAF" verify mem
[ -z "$(ls mem/.sheaf/stage)$(ls -d mem/.sheaf/flush-* 2>/dev/null)" ]
result $? 'and nothing is left of their meeting'
# Twice: the memory of one host goes with all that runs there. What goes behind is a little late.
some_twice() { [ "$(grep -c '"to":"memory"' "$W/twice")" -gt 12 ]; }
first=20000
for behind in '' --copies-behind; do
	spread '1 2' 2 save --run mem --step $first --steps 9000 --every 5000 --memory-every 1 \
		--copies 2 $behind $keep --events "$W/twice" $state --mesh dp=2,tp=2 \
		>said 2>&1 </dev/null &
	job=$!
	await some_twice
	result $? "a job keeps each step in both memories $behind"
	pkill -9 -f -- "--events $W/twice"
	wait $job 2>/dev/null
	on 2 pkill -9 -f 'agent mem'
	twice=$(sed -n 's/.*"event":"committed","step":\([0-9]*\).*/\1/p' "$W/twice" | tail -n 1)
	[ "$behind" ] && twice=$((first + 1))
	rm "$W/twice"
	t 0 'an empty agent is where one was lost' on 2 "$SHEAF" agent mem --detach --socket $sock
	t 0 'the next one goes on' spread '1 2' 2 load --run mem --step latest --agent $sock \
		$state --mesh tp=4 --json
	json 'from the copies of its neighbour' "[(e['source'], e['disk_bytes']) for e in o
		if e['event'] == 'loaded'] == [('peer', 0)]"
	json 'with nothing lost either' "[e for e in o
		if e['event'] == 'loaded'][0]['step'] >= $twice"
	first=40000
done
t 0 'the agent of one host ends' on 2 "$SHEAF" agent mem --stop --socket $sock
t 0 'and another takes its place' on 2 "$SHEAF" agent mem --detach --socket $sock
t 0 'what it had is read from the disk' spread '1 2' 2 load --run mem --step latest \
	--agent $sock $state --mesh dp=2,tp=2 --json
json 'which has that step too' "[e for e in o if e['event'] == 'loaded'][0]['step'] >= $last"
for h in 1 2; do
	t 0 "the agent of host $h ends" on $h "$SHEAF" agent mem --stop --socket $sock
done

# ---- a host that is lost, and another in its place ----
rm -rf run events
spread '1 2' 2 save $many $state --mesh dp=2,tp=2 --events events \
	--timeout-ms 3000 >said 2>&1 </dev/null &
job=$!
await some_committed
kill -9 "$(cat "$W/net/pid-2")"
# Its network went with it: nobody is told, and MPI itself may wait for ever.
await no_ranks
result $? 'the ranks that are left end by themselves'
pkill -9 -f "hostfile $W/net/file"
wait $job 2>/dev/null
rm "$W/net/pid-2"
last=$(grep '"committed"' events | tail -n 1 | tr -dc 0-9)
t 0 'what was acknowledged is good' "$SHEAF" verify "run@$last"
t 0 'the newest is loaded where one host is left' spread 1 2 load --run run --step latest $state \
	--mesh dp=2 --json
json 'and no older than that' "[e for e in o if e['event'] == 'loaded'][0]['step'] >= $last"
t 0 'a host takes its place' host_up 3
t 0 'the job goes on' spread '1 3' 2 save --run run --step 900000 $state --mesh tp=2,dp=2
[ -z "$(ls run/.sheaf/stage)" ]
result $? 'and what the lost one left is cleared away'
t 0 'loaded there too' spread '1 3' 2 load --run run --step latest $state --mesh pp=2,tp=2
hosts_down
