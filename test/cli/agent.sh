# SPDX-License-Identifier: Apache-2.0
# The memory of a node: saves to it, deaths of everybody, restarts from it, what is written then.
if ! have_bench; then
	echo "ok $((n += 1)) - the memory tier # SKIP no sheaf-bench"
	return 0
fi
home=$PWD
all_end() {
	for r in mem due first second third fourth; do
		"$SHEAF" agent "$home/$r" --stop --force
	done
} 2>/dev/null
trap 'all_end; chmod -R u+w "$W"; rm -rf "$W"' EXIT
small='--state state.json --adam --seed 3'
begun() {               # FILE TEXT: until it is there, 60 s at most
	for _ in $(seq 600); do
		grep -q "$2" "$1" 2>/dev/null && return 0
		sleep 0.1
	done
	return 1
}
run_id() { sed -n 's/.*"run": *"\([0-9a-f]*\)".*/\1/p' "$1"/checkpoint-*/sheaf.json | head -n 1; }

t 1 'where nobody is an agent, nobody answers' "$SHEAF" agent mem --status
t 0 'an agent makes the run' "$SHEAF" agent mem --detach
silent 'silently'
t 2 'a second one is refused' "$SHEAF" agent mem
has 'and says why' err 'another agent listens on this socket'
t 0 'a launcher that starts one where one serves is fine' "$SHEAF" agent mem --detach
t 2 'and with other options is not' "$SHEAF" agent mem --detach --steps 3 --hook /bin/true
has 'which is said' err 'with other options: sheaf agent RUN (sheaf agent RUN --stop'
t 0 'it says what it has' "$SHEAF" agent mem --status --json
json 'which is nothing' 'len(o) == 1 and o[0]["bytes"] == 0 and o[0]["users"] == 0 and \
	o[0]["steps"] is None'
agent_pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$T/out")

t 0 'every step to memory, every fifth to disk' mpi 2 save --run mem --step 5 --steps 2 --every 5 \
	--memory-every 1 --async --lazy --agent auto --events ev $small --mesh dp=2 --zero 1
cp ev out
json 'as events say' 'sorted((x["step"], x["to"]) for x in o if x["event"] == "saved") == \
	[(5, "disk"), (6, "memory"), (7, "memory"), (8, "memory"), (9, "memory"), (10, "disk")]'
json 'and memory costs no disk' 'all(x["disk_bytes"] == 0 for x in o if x.get("to") == "memory")'
t 0 'it is in two places' "$SHEAF" ls mem --json
json 'of which ls lists the disk' '[x["step"] for x in o] == [5, 10]'
d=$(echo /tmp/sheaf-"$(id -u)-$(run_id mem)"-*-"$(printf %x "$(stat -c %i mem/.sheaf)")")
[ "$(stat -c %a "$d")" = 700 ] && [ "$(stat -c %a "$d/agent.sock")" = 600 ]
result $? 'nobody else can reach it'

# Killed between two steps that are in memory alone.
mpi_bg 2 save --run mem --step 15 --steps 9000 --every 5000 --memory-every 1 --async --lazy \
	--agent auto --events "$home/ev2" $small --mesh dp=2 --zero 1 --images 3
begun ev2 '"step":18,.*"to":"memory"'
result $? 'a job saves each step'
pkill -9 -f "$home/ev2"
wait
# Steps end in any order: the one that goes to disk may be committed after three to memory.
last=$(sed -n 's/.*"event":"committed","step":\([0-9]*\).*/\1/p' ev2 | sort -n | tail -n 1)
t 0 'killed: the next one goes on, in another layout' mpi 3 load --run mem --step latest \
	--agent auto $small --mesh dp=3 --zero 3 --json
json "from memory, where it was" "o[-1]['step'] in range($last, $last + 4) and \
	o[-1]['source'] == 'memory' and o[-1]['disk_bytes'] == 0 and o[-1]['memory_bytes'] > 0"
t 0 'ls shows what memory alone has' "$SHEAF" ls mem --json
json 'as such' "[x['step'] for x in o if x['state'] == 'memory'][-1] >= $last"
t 2 'the latest of a run cannot be marked while memory alone has it' "$SHEAF" mark mem@latest bad
has 'which is said' err 'is the latest, but in the memory of an agent alone'
t 2 'nor is it gone back to' "$SHEAF" rewind mem@latest
t 0 'and nothing is done' "$SHEAF" ls mem --json
json 'to an older one' "all(x['mark'] == 'none' for x in o) and \
	[x['step'] for x in o if x['state'] == 'memory'][-1] >= $last"
t 0 'and what the agent has can be written' "$SHEAF" agent mem --flush --json
json 'by the commit of every save' "o[0]['step'] >= $last and o[0]['written'] > 1000000"
t 0 'and is sound' "$SHEAF" verify mem
t 1 'once' "$SHEAF" agent mem --flush

t 0 'without the agent' mpi 1 load --run mem --step latest $small --json
json 'it comes from the disk' "o[-1]['step'] >= $last and o[-1]['source'] == 'disk'"
kill -9 "$agent_pid"
t 0 'a killed agent is none' mpi 2 load --run mem --step latest --agent auto $small \
	--mesh dp=2 --json
json 'and the disk is taken' "o[-1]['step'] >= $last and o[-1]['source'] == 'disk'"
has 'which is said' err 'no agent answers'
t 0 'its socket is no hindrance' "$SHEAF" agent mem --detach --memory-max 1000000
t 0 'an agent that may not keep so much' mpi 1 save --run mem --step 20000 --steps 2 --every 2 \
	--memory-every 1 --async --agent auto --events ev3 $small
cp ev3 out
json 'keeps nothing, and training goes on' '[x["step"] for x in o if x["event"] == "dropped"] == \
	[20001] and [x["step"] for x in o if x["event"] == "saved"] == [20000, 20002]'
left=0
for _ in 1 2 3 4 5 6 7 8 9 10; do
	run "$SHEAF" agent mem --stop
	[ "$rc" = 0 ] && [ ! -e "$d" ] || left=1
	"$SHEAF" agent mem --detach || left=1
done
result $left 'it ends when it is told to, before the one who told it goes on'
t 0 'for good' "$SHEAF" agent mem --stop
t 0 'to stop what has ended is no failure' "$SHEAF" agent mem --stop
t 2 'of a run that is not there it is' "$SHEAF" agent no-such-run --stop
t 2 'ls says that an agent that was named does not answer' "$SHEAF" ls mem --socket "$PWD/no-agent"
[ ! -e "$d" ]
result $? 'and leaves nothing'

# An agent is of a directory, not of all that have its run's identity.
t 0 'an agent of a run' "$SHEAF" agent mem --detach
cp -a mem mem-copy && cp -al mem mem-links
t 1 'is not that of a copy' "$SHEAF" agent mem-copy --status
t 1 'nor of one made of hard links' "$SHEAF" agent mem-links --status
t 0 'which may have one of its own' "$SHEAF" agent mem-copy --detach
t 0 'that ends' "$SHEAF" agent mem-copy --stop
t 0 'and the first goes on' "$SHEAF" agent mem --status
mv mem mem-moved
t 0 'also where the run has another name' "$SHEAF" agent mem-moved --status
mv mem-moved mem
rm -rf mem-copy mem-links
t 0 'until it is told' "$SHEAF" agent mem --stop

# Agents are listed, and one whose run was deleted is ended by its socket.
t 0 'an agent of a run that will be deleted' "$SHEAF" agent gone --detach
t 0 'the agents of a node are listed' "$SHEAF" agent --list --json
json 'with their runs' '[x["there"] for x in o if x["run"] == "'"$PWD"'/gone"] == [True] and \
	all(keys(x, "pid users bytes socket run there") for x in o)'
socket=$("$PY" -c 'import json, sys
print(*[x["socket"] for x in map(json.loads, open("out")) if x["run"] == sys.argv[1] + "/gone"])' \
	"$PWD")
rm -rf gone
t 0 'also where the run is gone' "$SHEAF" agent --list
has 'which is said' out "run $PWD/gone (not there any more), socket $socket"
t 2 'by the run it cannot be ended' "$SHEAF" agent gone --stop
has 'which says how it can' err 'sheaf agent --list names the socket'
t 0 'but by the socket' "$SHEAF" agent --stop --socket "$socket"
long=$(printf 'a%.0s' $(seq 120))
t 0 'an agent of a run with a long path' "$SHEAF" agent "$long" --detach
t 0 'whose path is cut in the list' "$SHEAF" agent --list --json
json 'so that nothing is said of its directory' \
	'[x["there"] for x in o if x["run"].startswith("...")] == [None]'
t 0 'which is there' "$SHEAF" agent "$long" --stop
t 0 'then it is listed no more' "$SHEAF" agent --list --json
json 'at all' '[x for x in o if x["run"] == "'"$PWD"'/gone"] == []'
t 0 'and to end it again is no failure' "$SHEAF" agent --stop --socket "$socket"
wrong "$SHEAF" agent --stop
wrong "$SHEAF" agent mem --list
wrong "$SHEAF" agent --list --stop

# An agent that allows so many steps.
wrong "$SHEAF" agent mem --steps 1
has 'and says why' err 'must be at least 2, because one step is kept while the next is copied'
for steps in 0 -1 2x 99999999999; do
	wrong "$SHEAF" agent mem --steps "$steps"
done
for grace in 2s -1 '' 86401; do
	wrong "$SHEAF" agent mem --detach --grace "$grace"
done
wrong "$SHEAF" agent mem --detach --hook ./nothing
wrong "$SHEAF" agent mem --detach --idle 0
t 1 'and none of them serves' "$SHEAF" agent mem --status
t 0 'an agent of two steps' "$SHEAF" agent mem --detach --steps 2
t 0 'is there' "$SHEAF" agent mem --detach --steps 2
t 2 'and not one of as many as a job has' "$SHEAF" agent mem --detach
has 'as it says' err 'with other options: sheaf agent RUN --steps 2 ('
t 0 'says so' "$SHEAF" agent mem --status
has 'in text' out ', 2 steps at most, 0 connected'
t 0 'in JSON' "$SHEAF" agent mem --status --json
json 'as well' 'o[0]["steps"] == 2'
t 0 'a job that was given more images' mpi 2 save --run mem --step 25000 --steps 2 --every 6 \
	--memory-every 1 --async --lazy --agent auto --images 4 $small --mesh dp=2
has 'is told' err 'keeps 2 checkpoints at most, so saves have that many staging buffers'
t 0 'its newest step' mpi 1 load --run mem --step latest --agent auto $small --json
json 'is in memory' 'o[-1]["step"] == 25006 and o[-1]["source"] == "memory"'
t 0 'it ends, too' "$SHEAF" agent mem --stop

# An agent that is stopped, and goes on; one of another version.
t 0 'an agent once more' "$SHEAF" agent mem --detach
agent_pid=$("$SHEAF" agent mem --status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
mpi_bg 1 save --run mem --step 30000 --steps 100000 --every 50 --memory-every 1 --async --lazy \
	--keep-last 2 --agent auto --events "$home/ev4" $small --images 3
begun ev4 '"to":"memory"'
kill -STOP "$agent_pid"
begun ev4 '"dropped"'
result $? 'a stopped agent keeps nothing'
stopped=$(wc -l <ev4)
more() { tail -n +"$stopped" ev4 | sed 1d | grep -q '"saved".*"to":"disk"'; }
for _ in $(seq 600); do more && break; sleep 0.1; done
more
result $? 'and training goes on'
kill -CONT "$agent_pid"
stopped=$(wc -l <ev4)
more() { tail -n +"$stopped" ev4 | sed 1d | grep -q '"saved".*"to":"memory"'; }
for _ in $(seq 900); do more && break; sleep 0.1; done
more
result $? 'when it goes on, it keeps steps again'
pkill -9 -f "$home/ev4"
wait
# What was being written when the job was killed may be due.
t 0 'it ends' "$SHEAF" agent mem --stop --force
cat >older.py <<'EOF'
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen()
while True:
    c, _ = s.accept()
    m = bytearray(c.recv(4096))
    struct.pack_into("I", m, 8, 7)
    c.send(m)
    c.close()
EOF
python3 older.py "$home/older" &
older=$!
for _ in $(seq 100); do [ -S "$home/older" ] && break; sleep 0.1; done
t 0 'with an agent of another version' mpi 1 save --run due --step 1 --steps 2 --every 2 \
	--memory-every 1 --async --agent "$home/older" --events ev5 $small
cp ev5 out
json 'nothing is kept, and training goes on' '[x["step"] for x in o if x["event"] == "dropped"] == \
	[2] and [x["step"] for x in o if x["event"] == "saved"] == [1, 3]'
kill "$older"
rm -rf due

# Who started the agent hears of what has come to disk.
printf '#!/bin/sh\necho "$1 $2" >>"%s/hooked"\n' "$home" >hook
chmod +x hook
t 0 'an agent with a hook' "$SHEAF" agent due --detach --hook ./hook --socket sock
t 0 'a step comes to disk' mpi 1 save --run due --step 1 --agent "$home/sock" $small
begun hooked "^1 $home/due/checkpoint-1\$"
result $? 'and the hook is run'
[ -S "$home/sock" ] && [ "$(stat -c %a "$home/sock")" = 600 ]
result $? 'the socket is where it was asked for'
cp -a due due-copy
t 2 'that of another directory is not asked there' "$SHEAF" agent due-copy --status --socket sock
has 'which is said' err 'serves another run, or a copy of this run'
rm -rf due-copy
t 0 'it is told to stop' "$SHEAF" agent due --stop --socket "$home/sock"
[ ! -e sock.log ]
result $? 'and leaves no empty log'

# The run is away during the grace, and when the flush begins: that is said where somebody can look.
t 0 'an agent once more' "$SHEAF" agent due --detach --grace 3 --socket sock
mpi_bg 1 save --run due --step 2 --steps 9000 --every 5000 --memory-every 1 --async --lazy \
	--agent "$home/sock" --events "$home/ev6" $small
begun ev6 '"step":4,.*"to":"memory"'
pkill -9 -f "$home/ev6"
mv due away
wait
begun sock.log "^sheaf: .*$home/due"
result $? 'a flush that failed says why in a file beside the socket'
mv away due
t 0 'and goes, with the log' "$SHEAF" agent due --stop --socket "$home/sock"
t 0 'one that nobody uses' "$SHEAF" agent due --detach --idle 1
sleep 1.5
t 1 'ends' "$SHEAF" agent due --status

# The lock of an agent that is being killed outlives its answers.
"$PY" -c 'import fcntl, sys, time
f = open(sys.argv[1], "w")
fcntl.flock(f, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(2)' "$home/sock.lock" >holds &
begun holds locked
t 0 'an agent begins where one has not quite ended' "$SHEAF" agent due --detach --socket sock
t 0 'and serves' "$SHEAF" agent due --status --socket sock
t 0 'until it ends' "$SHEAF" agent due --stop --socket sock

# A run that is renamed under its agent: jobs say where it is, and each commit to disk.
rm -f hooked
t 0 'an agent of a run' "$SHEAF" agent first --detach --hook ./hook --grace 1
mv first second
t 0 'that is renamed' mpi 1 save --run second --step 1 --agent auto $small
begun hooked "^1 $home/second/checkpoint-1\$"
result $? 'its hook is told of the new name'
mpi_bg 1 save --run second --step 2 --steps 9000 --agent auto --events "$home/ev7" $small
begun ev7 '"step":4,.*"to":"disk"'
mv second third
begun hooked " $home/third/checkpoint-"
found=$?
[ $found = 0 ] || tail -n 3 "$T/bg" ev7 hooked | sed 's/^/# /'
result $found 'so it is where a job goes on under the rename'
pkill -9 -f "$home/ev7"
wait
if strace -o /dev/null true 2>/dev/null; then
	# A job dies before the rename that publishes STEP, which lies in memory whole, or after it.
	# PID, an agent, gets SIGTERM a second before.
	dies() {        # enter|exit RUN STEP [PID]
		strace -f -o /dev/null -e trace=renameat2 \
			-e "inject=renameat2:delay_$1=600000000:when=2" "$BENCH" save --run "$2" \
			--step "$3" --agent auto $small >/dev/null 2>&1 </dev/null &
		tracer=$!
		for _ in $(seq 600); do
			if [ "$1" = exit ]; then
				[ -d "$2/checkpoint-$3" ]
			else
				"$SHEAF" agent "$2" --status 2>/dev/null |
					grep -q "^ *$3 .*to be on disk and is not"
			fi && break
			sleep 0.1
		done
		[ -z "${4-}" ] || { kill -TERM "$4"; sleep 1; }
		# It is dead at once, its tracer only when the delay is over.
		# shellcheck disable=SC2046
		kill -9 $(pgrep -P $tracer)
		kill -9 $tracer
		wait $tracer
		for _ in $(seq 600); do
			"$SHEAF" agent "$2" --status >connected || break
			grep -q ', 0 connected' connected && break
			sleep 0.1
		done
	} 2>/dev/null
	serves() {      # RUN OPTION...: an agent; its pid becomes agent_pid
		"$SHEAF" agent "$@" --detach && "$SHEAF" agent "$1" --status --json >serving &&
			agent_pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' serving)
	}
	ended() {       # 0: agent_pid ends, within 60 s
		for _ in $(seq 600); do
			kill -0 "$agent_pid" 2>/dev/null || return 0
			sleep 0.1
		done
		return 1
	}
	mv third fourth
	dies enter fourth 20000
	begun hooked "^20000 $home/fourth/checkpoint-20000\$"
	result $? 'and what is due is written there'
	t 0 'whole' "$SHEAF" verify fourth@20000
	dies exit fourth 20001
	t 0 'of a step that has come to disk' "$SHEAF" agent fourth --status --json
	json 'the agent does not say that it is due' \
		'[x["due"] for x in o if x.get("step") == 20001] == [False]'
	t 0 'it ends' "$SHEAF" agent fourth --stop
	t 0 'one that writes nothing by itself' "$SHEAF" agent fourth --detach --no-flush
	dies enter fourth 20002
	t 2 'is not stopped while a step is due' "$SHEAF" agent fourth --stop
	has 'which is said' err 'step 20002 was to be written to disk, but is in memory alone'
	run "$SHEAF" agent --list --json
	socket=$("$PY" -c 'import json
print(*[x["socket"] for x in map(json.loads, open("out")) if x["run"].endswith("/fourth")])')
	t 2 'nor by its socket' "$SHEAF" agent --stop --socket "$socket"
	has 'which says why' err 'this agent keeps steps, which may not be on disk'
	t 0 'the step is written' "$SHEAF" agent fourth --flush --due
	t 0 'and it ends' "$SHEAF" agent fourth --stop
	t 0 'another one' "$SHEAF" agent fourth --detach --no-flush
	dies enter fourth 20003
	t 0 'is ended all the same' "$SHEAF" agent fourth --stop --force
	t 1 'at once' "$SHEAF" agent fourth --status
	[ ! -e fourth/checkpoint-20003 ]
	result $? 'and what was due is gone'
	wrong "$SHEAF" agent fourth --force
	t 0 'one whose grace is long' serves fourth --grace 60
	dies enter fourth 20004
	kill -TERM "$agent_pid"
	ended
	result $? 'ends after SIGTERM'
	t 0 'and what is due is on disk' "$SHEAF" verify fourth@20004
	t 0 'another one' serves fourth --grace 60
	dies enter fourth 20005 "$agent_pid"
	ended
	result $? 'to which SIGTERM came while the job was connected ends with it'
	t 0 'after what is due is on disk' "$SHEAF" verify fourth@20005
	t 0 'one that writes nothing by itself' serves fourth --no-flush
	dies enter fourth 20006
	kill -TERM "$agent_pid"
	ended
	result $? 'ends'
	[ ! -e fourth/checkpoint-20006 ]
	result $? 'and writes nothing'
	t 0 'an agent once more' "$SHEAF" agent fourth --detach
else
	echo "ok $((n += 1)) - a job that dies while it publishes # SKIP no strace"
	mv third fourth
fi
t 0 'it ends' "$SHEAF" agent fourth --stop
