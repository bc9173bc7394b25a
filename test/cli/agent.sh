# SPDX-License-Identifier: Apache-2.0
# The memory of a node: saves to it, deaths of everybody, restarts from it, what is written then.
if ! have_bench; then
	echo "ok $((n += 1)) - the memory tier # SKIP no sheaf-bench"
	return 0
fi
home=$PWD
agents() { "$SHEAF" agent "$1" --stop; } 2>/dev/null
trap 'agents "$home/mem"; agents "$home/due"; chmod -R u+w "$W"; rm -rf "$W"' EXIT
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
has 'and says why' err 'another agent serves there'
t 0 'a launcher that starts one where one serves is fine' "$SHEAF" agent mem --detach
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
d=/tmp/sheaf-$(id -u)-$(run_id mem)
[ "$(stat -c %a "$d")" = 700 ] && [ "$(stat -c %a "$d/agent.sock")" = 600 ]
result $? 'nobody else can reach it'

# Killed between two steps that are in memory alone.
mpi_bg 2 save --run mem --step 15 --steps 9000 --every 5000 --memory-every 1 --async --lazy \
	--agent auto --events "$home/ev2" $small --mesh dp=2 --zero 1 --images 3
begun ev2 '"step":18,.*"to":"memory"'
result $? 'a job saves each step'
pkill -9 -f "$home/ev2"
wait
last=$(sed -n 's/.*"event":"committed","step":\([0-9]*\).*/\1/p' ev2 | tail -n 1)
t 0 'killed: the next one goes on, in another layout' mpi 3 load --run mem --step latest \
	--agent auto $small --mesh dp=3 --zero 3 --json
json "from memory, where it was" "o[-1]['step'] in ($last, $last + 1) and \
	o[-1]['source'] == 'memory' and o[-1]['disk_bytes'] == 0 and o[-1]['memory_bytes'] > 0"
t 0 'ls shows what memory alone has' "$SHEAF" ls mem --json
json 'as such' "[x['step'] for x in o if x['state'] == 'memory'][-1] >= $last"
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
[ ! -e "$d" ]
result $? 'and leaves nothing'

# An agent that allows so many steps.
wrong "$SHEAF" agent mem --steps 1
has 'and says why' err 'one step is kept while the next is copied, so 2 at least'
for steps in 0 -1 2x 99999999999; do
	wrong "$SHEAF" agent mem --steps "$steps"
done
t 1 'and none of them serves' "$SHEAF" agent mem --status
t 0 'an agent of two steps' "$SHEAF" agent mem --detach --steps 2
t 0 'says so' "$SHEAF" agent mem --status
has 'in text' out ', 2 steps at most, 0 connected'
t 0 'in JSON' "$SHEAF" agent mem --status --json
json 'as well' 'o[0]["steps"] == 2'
t 0 'a job that was given more images' mpi 2 save --run mem --step 25000 --steps 2 --every 6 \
	--memory-every 1 --async --lazy --agent auto --images 4 $small --mesh dp=2
has 'is told' err 'an agent keeps 2 steps at most: saves have as many images, not 4'
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
t 0 'it ends' "$SHEAF" agent mem --stop
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
t 0 'it is told to stop' "$SHEAF" agent due --stop --socket "$home/sock"
t 0 'one that nobody uses' "$SHEAF" agent due --detach --idle 1
sleep 1.5
t 1 'ends' "$SHEAF" agent due --status
