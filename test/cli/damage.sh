# SPDX-License-Identifier: Apache-2.0
# One step, damaged in every way that a disk or a hand has.
if ! have_bench; then
	echo "ok $((n += 1)) - damage # SKIP no sheaf-bench"
	return 0
fi
t 0 'a step to damage' mpi 1 save --run sound --step 3 --state state.json --adam --seed 1
weights=model-00001-of-00001.safetensors
again() {               # a fresh copy; cp -a is one of the ways a step travels
	rm -rf run
	cp -a sound run
	C=run/checkpoint-3
}
poke() {                # FILE OFFSET: one bit
	"$PY" -c 'import sys
f = open(sys.argv[1], "r+b")
f.seek(int(sys.argv[2]), 0 if int(sys.argv[2]) >= 0 else 2)
at, b = f.tell(), f.read(1)[0]
f.seek(at)
f.write(bytes([b ^ 4]))' "$1" "$2"
}

again
t 0 'a copy is as good' "$SHEAF" verify run
mv run/checkpoint-3 moved && ln -s ../moved run/checkpoint-3
t 1 'a link to a checkpoint is no checkpoint of the run' "$SHEAF" show run@3
has 'which is said' err 'checkpoint-3: is a file or a symbolic link'
t 1 'and it is not passed over for an older one' "$SHEAF" show run@latest
has 'as it may be the newest' err 'checkpoint-3: is a symbolic link, which a run does not follow'
t 0 'what it leads to is opened by its own path' "$SHEAF" show moved
t 2 'nor are older ones marked or kept for it' "$SHEAF" mark run@latest bad
has 'as its name says' err 'checkpoint-3 is a symbolic link, which may be the latest'
rm run/checkpoint-3 && mv moved run/checkpoint-3
t 0 'a step that is marked bad' "$SHEAF" mark run@3 bad
mv run/checkpoint-3 moved && ln -s ../moved run/checkpoint-3
t 2 'and is a link after that' "$SHEAF" mark run@latest keep
has 'is passed over, as a load does' err 'every step here is marked bad, or there is none'
rm -r moved
again
touch run/checkpoint-3/sheaf.pruned
t 0 'a step that was taken back from the trash is as good' "$SHEAF" verify run
poke "$C/$weights" 1200000
t 1 'a flipped bit is found' "$SHEAF" verify run --json
json 'with file, block and offset' 'o[0]["finding"] == "checksum" and \
	o[0]["file"] == "'$weights'" and o[0]["block"] == 1 and o[0]["message"]'
json 'and counted' 'o[-1]["result"] == "bad"'
t 1 'in text as well' "$SHEAF" verify run@3
has 'by name' out "$weights"
t 1 'cat stops at it' "$SHEAF" cat run@3 emb.weight
cp out part
"$SHEAF" cat sound@3 emb.weight >whole 2>>err
"$PY" -c 'a, b = open("part", "rb").read(), open("whole", "rb").read()
assert b.startswith(a) and len(a) < len(b), (len(a), len(b))' 2>>err
result $? 'and what was written is good'
t 0 'a tensor in other blocks is fine' "$SHEAF" cat run@3 scalar/moment1_0 --family optimizer
t 0 '--unverified reads on' "$SHEAF" cat run@3 emb.weight --unverified
[ "$(wc -c <out)" = 1602174 ] && ! cmp -s out whole
result $? 'to the end, the flipped bit included'
t 1 'diff does not call it the same' "$SHEAF" diff run@3 sound@3 --family model
t 1 'load refuses it' mpi 1 load --run run --step 3 --state state.json --adam --seed 1 --json
json 'as corrupt' 'o[-1]["event"] == "error" and o[-1]["code"] == "ECORRUPT"'
t 1 'one damaged step of several is a no' "$SHEAF" verify run
t 0 'several paths are verified at once' "$SHEAF" verify sound sound@3
t 1 'a damaged one among them is a no' "$SHEAF" verify run@3 nowhere sound --json
json 'said with its path' 'o[0]["path"] == "run/checkpoint-3" and o[-1]["result"] == "bad"'
t 2 'one that is not there leaves it open' "$SHEAF" verify sound nowhere sound@3
has 'and is named' err nowhere

for where in 0 20 -1 sheaf.json:5 sheaf.json:-5 sheaf.json:120 sheaf.sums:3 sheaf.sums:150 \
	sheaf.sums:-1 optimizer/optimizer-00001-of-00001.safetensors:5000 \
	model.safetensors.index.json:30; do
	file=${where%:*} at=${where#*:}
	[ "$file" != "$where" ] || file=$weights
	again
	poke "$C/$file" "$at"
	t 1 "a flipped bit in $file at $at is found" "$SHEAF" verify run --json
	json "$file at $at: told" 'o[-1]["result"] == "bad" and "finding" in o[0]'
done

for file in $weights sheaf.sums sheaf.json model.safetensors.index.json \
	optimizer/optimizer-00001-of-00001.safetensors; do
	again
	"$PY" -c 'import os, sys; os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) - 1)' \
		"$C/$file"
	t 1 "$file cut short is found" "$SHEAF" verify run@3
	[ "$(head -n 1 out | grep -o "$file" | wc -l)" = 1 ]
	result $? 'and is named once'
	again
	printf x >>"$C/$file"
	t 1 "$file grown is found" "$SHEAF" verify run@3
	again
	rm "$C/$file"
	t 1 "$file gone is found" "$SHEAF" verify run@3
	again
	: >"$C/$file"
	t 1 "$file emptied is found" "$SHEAF" verify run@3
done
again
: >"$C/notes.txt"
t 1 'a file that does not belong is found' "$SHEAF" verify run --json
json 'as extra' 'o[0]["finding"] == "extra" and o[0]["file"] == "notes.txt"'
again
mkdir "$C/ema" && : >"$C/ema/x"
t 1 'in a folder as well' "$SHEAF" verify run
again
"$PY" -c 'import os; p = "run/checkpoint-3/'$weights'"; os.truncate(p, os.path.getsize(p) - 1)'
t 0 'ls calls a step with a short file damaged' "$SHEAF" ls run --json
json 'and still lists it' 'o[0]["state"] == "damaged"'

again
rm "$C/model.safetensors.index.json"
t 0 'a lost index stops no load' mpi 1 load --run run --step 3 --state state.json --adam --seed 1
again
mv run/checkpoint-3 run/checkpoint-4
t 1 'a step under another number is refused' "$SHEAF" show run@4
t 0 'by its path it opens' "$SHEAF" verify run/checkpoint-4
again
mv run/checkpoint-3 elsewhere
t 0 'a step outside its run is as good' "$SHEAF" verify elsewhere
chmod -R a-w elsewhere
t 0 'on a read-only place too' "$SHEAF" verify elsewhere
t 0 'a run whose only step was removed is empty' "$SHEAF" ls run
silent 'and that is no error'
t 2 'though it holds no step' "$SHEAF" verify run
t 0 'and saving goes on' mpi 1 save --run run --step 5 --state state.json --seed 1
