#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command on directories that somebody else made, and means no good with. Prints TAP.

usage: hostile.py SHEAF GOLDEN-RUN [--long] [PART...]

Whatever lies there, every verb ends soon, in bounded memory, with an exit status it may give, in
at most one line on stderr and with nothing on either stream that moves a terminal's cursor; it
writes nothing outside the run, and what it writes has the modes that the umask leaves.
"""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

SHEAF, GOLDEN = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
LONG = "--long" in sys.argv
CPU_S = 2.0             # of processor time: others may use the machine
WALL_S = 20             # nothing may wait for a peer that never comes
RSS = 96 << 20          # bytes; the sparse ones are asked for more than any machine has
FLAT = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
POLY, ALL = 0x9A6C9329AC4BC9B5, 2**64 - 1
with open(SHEAF, "rb") as exe:
    SANITIZED = b"__asan_init" in exe.read()
state = {"n": 0, "bad": 0, "runs": 0, "cpu": 0.0, "rss": 0, "turn": 0, "pid": 0}
signal.signal(signal.SIGALRM, lambda *_: os.kill(state["pid"], signal.SIGKILL))


def result(good, claim, why=""):
    state["n"] += 1
    state["bad"] += not good
    print("%sok %d - %s" % ("" if good else "not ", state["n"], claim))
    if not good:
        print("".join("# %s\n" % line for line in str(why).splitlines()[:12]), end="")
    sys.stdout.flush()


def skip(claim, why):
    state["n"] += 1
    print("ok %d - %s # SKIP %s" % (state["n"], claim, why), flush=True)


def crc(data):
    c = ALL
    for b in data:
        c ^= b
        for _ in range(8):
            c = c >> 1 ^ (c & 1) * POLY
    return c ^ ALL


# --- running -----------------------------------------------------------------------------------

def as_user(user):
    return ["setpriv", "--reuid=%d" % user, "--regid=%d" % user, "--clear-groups"]


def run(args, user=None, umask=0o022):
    """Exit status, out, err, and what was wrong with how it went."""
    os.umask(umask)
    command = [SHEAF] + args
    if user:
        command = as_user(user) + command
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    fds = [os.open(os.devnull, os.O_RDONLY), os.open(path("out"), flags, 0o600),
           os.open(path("err"), flags, 0o600)]
    pid = os.posix_spawnp(command[0], command, os.environ, setsigmask=[],
                          file_actions=[(os.POSIX_SPAWN_DUP2, fd, i)
                                        for i, fd in enumerate(fds)])
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    state["pid"] = pid
    _, status, used = os.wait4(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    out, err = (os.pread(fd, 1 << 26, 0) for fd in fds[1:])
    for fd in fds:
        os.close(fd)
    code = os.waitstatus_to_exitcode(status)
    cpu, rss = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    state["runs"] += 1
    state["cpu"] = max(state["cpu"], cpu)
    state["rss"] = max(state["rss"], rss)
    wrong = []
    if code not in (0, 1, 2):
        wrong.append("ended with %d" % code)
    if cpu > CPU_S * (8 if SANITIZED else 1):
        wrong.append("took %.1f s of a processor" % cpu)
    if rss > RSS and not SANITIZED:
        wrong.append("took %d MiB of memory" % (rss >> 20))
    if err.count(b"\n") > 1 or (err and not err.endswith(b"\n")):
        wrong.append("said more than a line on stderr")
    if code == 2 and not err and not out:
        wrong.append("could not tell, and did not say why")
    for name, text in (("stdout", out), ("stderr", err)):
        if args[0] == "cat" and name == "stdout":
            continue
        try:
            raw = FLAT.search(text.decode("utf-8"))
        except UnicodeDecodeError as e:
            raw = e
        if raw:
            wrong.append("%s is not plain text: %s" % (name, raw))
        if "--json" in args:
            try:
                [json.loads(line) for line in text.splitlines()]
            except ValueError as e:
                wrong.append("%s is not JSON: %s" % (name, e))
    return code, out, err, "; ".join(wrong)


def verbs(place, tensor="a"):
    run_of = place.split("@", maxsplit=1)[0]
    for args in (["ls", run_of], ["show", place], ["show", place, "--hf"], ["verify", place],
                 ["diff", place, "good@10"], ["diff", "good@10", place], ["cat", place, tensor],
                 ["plan", place, "--mesh", "dp=2"], ["prune", run_of, "--keep-last", "1"]):
        yield args
        yield args + ["--json"]


def writers(run_of, step):
    for args in (["mark", "%s@%d" % (run_of, step), "keep"], ["rewind", "%s@%d" % (run_of, step)],
                 ["prune", run_of, "--keep-last", "1", "--apply"]):
        yield args + ["--timeout-ms", "50"] if args[0] != "prune" else args


def some(commands):
    """All of them with --long; else every sixteenth, from another one on each time."""
    commands = list(commands)
    state["turn"] += 1
    return commands if LONG else commands[state["turn"] % 16::16]


def every(claim, places, allowed=(0, 1, 2), write=None, **how):
    """All verbs on all places; write: a run and a step for those that change one."""
    wrong, n = [], 0
    for place in places:
        for args in some(verbs(place)):
            rc, out, err, why = run(args, **how)
            n += 1
            if not why and rc not in allowed:
                why = "exit %d" % rc
            if why:
                wrong.append("%s: %s\n%s\n%s" % (args, why, out[:200], err[:300]))
    if write:
        for args in writers(*write):
            _, out, err, why = run(args, **how)
            n += 1
            if why:
                wrong.append("%s: %s\n%s\n%s" % (args, why, out[:200], err[:300]))
    if tree(DECOY) != decoy_was:
        wrong.append("something outside was changed")
    result(not wrong, "%s (%d commands)" % (claim, n), "\n".join(wrong))


def tree(top):
    """What lies there, with all that a write would change."""
    found = []
    for at, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(at, name)
            st = os.lstat(path)
            found.append((path, st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns))
    return sorted(found)


# --- directories -------------------------------------------------------------------------------

STEP = "r/checkpoint-20/"
FILES = [STEP + f for f in ("sheaf.json", "sheaf.sums", "config.json",
                            "model-00001-of-00003.safetensors", "model.safetensors.index.json",
                            "optimizer/optimizer-00001-of-00002.safetensors")]
DOTS = ["r/.sheaf/" + f for f in ("run", "lock", "rewind", "marks/20", "lock.tmp", "run.tmp",
                                  "rewind.tmp")]
FOLDERS = ["r/checkpoint-20", STEP + "optimizer", "r/.sheaf", "r/.sheaf/stage", "r/.sheaf/trash",
           "r/.sheaf/aside", "r/.sheaf/marks", "r/.sheaf/tries"]


def path(*parts):
    return os.path.join(WORK, *parts)


def fresh():
    """A run of two steps, with a .sheaf."""
    shutil.rmtree(path("r"), ignore_errors=True)
    shutil.copytree(path("good"), path("r"), symlinks=True)


def gone(name):
    name = path(name)
    if os.path.isdir(name) and not os.path.islink(name):
        shutil.rmtree(name)
    elif os.path.lexists(name):
        os.unlink(name)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    return name


def put(name, data):
    name = path(name)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as f:
        f.write(data)


def edit(old, new):
    """Of the manifest, which then proves itself again."""
    with open(path(STEP + "sheaf.json"), "rb") as f:
        body = f.read()[:-31]
    assert old in body, old
    body = body.replace(old, new, 1)
    put(STEP + "sheaf.json", body + b',\n "self": "%016x"}\n' % crc(body))


def st(name, header, data=b"", n=None):
    put(name, struct.pack("<Q", len(header) if n is None else n) + header + data)


PLACES = ["r@20", "r", "r/checkpoint-20"]


def in_place_of(claim, make, names, places, **how):
    wrong_before = state["bad"]
    for name in names:
        fresh()
        make(name)
        every("%s: %s" % (claim, name), places, write=("r", 20), **how)
    return state["bad"] == wrong_before


def links():
    for name in FILES + DOTS:
        fresh()
        os.symlink(path("decoy", "file"), gone(name))
        every("a link that leads out: " + name, PLACES[:1], write=("r", 20))
    for name in FOLDERS:
        fresh()
        os.symlink(path("decoy"), gone(name))
        every("a link that leads out: " + name, PLACES[:1], write=("r", 20))
    # The same bytes, elsewhere: nothing but the link is wrong, and a run has none.
    for name in FILES + [STEP + "optimizer"]:
        fresh()
        shutil.move(path(name), path("moved"))
        os.symlink(path("moved"), path(name))
        rc, out, err, why = run(["verify", "r@20"])
        result(rc == 1 and not why, "a step of a run has no link: " + name,
               "%d %s %s %s" % (rc, out, err, why))
        rc, out, err, why = run(["cat", "r@20", TENSOR])
        if name in FILES[:2]:
            result(rc == 1 and not out and not why, "nor is one followed by cat: " + name,
                   "%d %s %s %s" % (rc, out[:100], err, why))
        gone("moved")


def others():
    def fifo(name):
        os.mkfifo(gone(name))

    def sock(name):
        here = os.getcwd()      # a socket's own name is short
        os.chdir(os.path.dirname(gone(name)))
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.basename(name))
        os.chdir(here)

    def folder(name):
        os.mkdir(gone(name))

    def zero(name):
        os.mknod(gone(name), 0o666 | 0o020000, os.makedev(1, 5))

    def file(name):
        put(os.path.relpath(gone(name), WORK), b"x")
    in_place_of("a pipe that nobody writes", fifo, FILES + DOTS + FOLDERS, PLACES[:1])
    in_place_of("a socket", sock, FILES[:4], PLACES[:1])
    in_place_of("a folder where a file should be", folder, FILES + DOTS, PLACES[:1])
    in_place_of("a file where a folder should be", file, FOLDERS, PLACES[:1])
    try:
        os.mknod(path("zero"), 0o666 | 0o020000, os.makedev(1, 5))
        with open(path("zero"), "rb"):
            pass
    except OSError:
        return skip("a device without an end", "no devices may be made here")
    in_place_of("a device without an end", zero, FILES[:4] + DOTS[:1], PLACES[:1])
    every("a device instead of a run", ["zero", "/dev/null"], allowed=(2,))


def foreign():
    """Hugging Face directories and files."""
    for kind in ("fifo", "folder", "device", "socket"):
        gone("hf")
        os.mkdir(path("hf"))
        name = path("hf/model.safetensors")
        if kind == "fifo":
            os.mkfifo(name)
        elif kind == "folder":
            os.mkdir(name)
        elif kind == "device":
            os.symlink("/dev/zero", name)
        else:
            os.symlink("/dev/full", name)
        every("weights that are a " + kind, ["hf"])
        rc, _, err, _ = run(["show", "hf"])
        result(rc == 1, "a %s is no checkpoint" % kind, err)
    gone("hf")
    os.mkdir(path("hf"))
    for i, n in enumerate((1 << 40, 2**63 - 1, 2**63, 2**64 - 1, 100000001, 1)):
        st("hf/n%d/model.safetensors" % i, b"{}", n=n)
        os.truncate(path("hf/n%d/model.safetensors" % i), 1 << 42)
    every("headers of a TiB and more, in files of 4 TiB of nothing",
          ["hf/n%d" % i for i in range(6)], allowed=(1, 2))
    big = 1 << 42
    head = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (big, big)
    st("hf/big.safetensors", head)
    os.truncate(path("hf/big.safetensors"), 8 + len(head) + big)
    for args in (["show", "hf/big.safetensors"],
                 ["cat", "hf/big.safetensors", "w", "--slice", "5000000000:5000000010"]):
        rc, out, err, why = run(args)
        result(rc == 0 and not why, "a tensor of 4 TiB of nothing: " + args[0],
               "%d %s %s %s" % (rc, out, err, why))
    st("hf/e.safetensors", b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' %
       (2**63 - 1, 2**63 - 1))
    every("a tensor of 8 EiB", ["hf/e.safetensors"], allowed=(1, 2))
    for i, name in enumerate(("../good/x", "/etc/passwd", "..", ".", "", "a/b", "x\\u001b[2J",
                              "\\ud800")):
        put("hf/i%d/model.safetensors.index.json" % i,
            b'{"weight_map":{"w":"%s"}}' % name.encode())
    every("an index that leads out", ["hf/i%d" % i for i in range(8)], allowed=(1, 2))
    put("hf/bomb/config.json", b"[" * 4000000)
    put("hf/flat/config.json", b"[" + b"0," * 4000000 + b"0]")
    for d in ("bomb", "flat"):
        st("hf/%s/model.safetensors" % d, b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
           b"x")
    every("a config.json that unfolds", ["hf/bomb", "hf/flat"])


def arrays():
    """Arrays of NumPy, GGUF, Zarr and OCDBT."""
    gone("arrays")
    array = b"\x93NUMPY\1\0\x76\0" + \
        b"{'descr':'|u1','fortran_order':False,'shape':(1099511627648,)}".ljust(117) + b"\n"
    packed = zlib.compress(array + bytes(16 << 20), 9)[2:-4]
    head = struct.pack("<HHHIIIHH", 8, 0, 0, 0, len(packed), 0xffffffff, 5, 12)
    size = struct.pack("<HHQ", 1, 8, 1 << 40)
    entry = struct.pack("<IHHH", 0x02014b50, 45, 45, 0) + head + bytes(14)
    body = struct.pack("<IHH", 0x04034b50, 45, 0) + head + b"a.npy" + size + packed
    entry += b"a.npy" + size
    put("arrays/bomb.npz", body + entry + struct.pack(
        "<IHHHHIIH", 0x06054b50, 0, 0, 1, 1, len(entry), len(body), 0))
    put("arrays/many.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    every("a TiB in 16 KiB, and 2^60 tensors", ["arrays/bomb.npz", "arrays/many.gguf"],
          allowed=(0, 1, 2))
    meta = {"zarr_format": 2, "shape": [2**62], "chunks": [1], "dtype": "|u1", "order": "C",
            "compressor": None, "fill_value": None, "filters": None}
    put("arrays/z/w/.zarray", json.dumps(meta).encode())
    for i in range(12):
        os.symlink("..", path("arrays/z/w/loop%d" % i))
    os.symlink("/etc", path("arrays/z/w/etc"))
    os.mkfifo(path("arrays/z/w/7"))
    put("arrays/o/manifest.ocdbt", b"\x0c\xdb\x3a\x2a" + struct.pack("<Q", 1 << 42))
    os.truncate(path("arrays/o/manifest.ocdbt"), 1 << 42)
    every("chunks that are pipes and circles, and a manifest of 4 TiB",
          ["arrays/z", "arrays/o"], allowed=(1, 2))


def names():
    evil = [b"\x1b]0;x\x07", b"\x7f", b"\xff\xfe", b"\xc2\x9b2J", "\u202ex".encode(),
            b"a\nb", b"\xed\xa0\x80", b"x" * 255]
    fresh()
    for name in evil:
        with open(os.path.join(path(STEP).encode(), name), "wb"):
            pass
        with open(os.path.join(path("r").encode(), name), "wb"):
            pass
        os.makedirs(os.path.join(path("r/.sheaf/stage").encode(), name), exist_ok=True)
    every("names that move a cursor, in a step", PLACES, write=("r", 20))
    shutil.copytree(path("r/checkpoint-20"), path("hf/names"))
    gone("hf/names/sheaf.json")
    gone("hf/names/sheaf.sums")
    every("and in a foreign directory", ["hf/names"])
    wrong = []
    for name in evil:
        for args in some(verbs(os.fsdecode(name))):
            rc, out, err, why = run(args)
            if why or rc == 0:
                wrong.append("%s: %d %s %s %s" % (args, rc, why, out, err))
    result(not wrong, "and as a PATH", "\n".join(wrong))
    fresh()
    edit(b'"notes": {', b'"notes": {\n  "aaa": "\\u001b[2J\\u0007\\u007f\\u009b\\u202e\\r",')
    every("notes that move a cursor", PLACES)
    fresh()
    edit(b'"version": "', b'"version": "\\u001b[2J\\u007f\\u009b\\u202e\\r')
    every("a writer that does", PLACES)
    for old, new in ((b'"model-00001-of', b'"../../decoy/model-00001-of'),
                     (b'"model-00001-of', b'"/etc/model-00001-of'),
                     (b'"config.json"', b'"../config.json"'),
                     (b'"optimizer/optimizer-00001', b'"optimizer/../optimizer-00001'),
                     (b'"dir": "optimizer"', b'"dir": ".."'),
                     (b'"sheaf.sums"', b'"../sheaf.sums"'),
                     (b'"model-00001-of', b'"\\u001b[2J-of')):
        fresh()
        edit(old, new)
        every("a manifest that says " + new.decode().replace("\\u", "u"), PLACES[:1])


def long_table():
    """A file of petabytes, by the manifest, and the table of its blocks: all of it holes."""
    blocks = 1 << 31
    with open(path(STEP + "sheaf.json"), "rb") as f:
        first = re.search(rb'"(model-00001-of[^"]*", "bytes": )(\d+)', f.read())
    had = int(first.group(2))
    edit(first.group(0), b'"%s%d' % (first.group(1), blocks << 20))
    with open(path(STEP + "sheaf.sums"), "r+b") as f:
        n = len(f.read())
        f.seek(0)
        head = list(struct.unpack("<8sII9Q", f.read(88)))
        head[5] += blocks - -(-had >> 20)
        for i, end in ((10, head[9] + 8 * head[5]), (11, 0)):
            end = end or head[10] + head[6]
            head[i] = -(-end // 64) * 64
        size = head[11] + -(-head[11] // 65536) * 8
        body = struct.pack("<8sII9Q", *head) + bytes(32)
        f.seek(0)
        f.write(body + struct.pack("<Q", crc(body)))
        f.truncate(size)
    edit(b'"sheaf.sums", "bytes": %d' % n, b'"sheaf.sums", "bytes": %d' % size)


def sizes():
    fresh()
    long_table()
    every("a table of sums as long as a file is said to be", PLACES)
    fresh()
    with open(path(STEP + "sheaf.sums"), "rb") as f:
        n = len(f.read())
    for size in (1 << 31, 1 << 40):
        fresh()
        os.truncate(path(STEP + "sheaf.sums"), size)
        edit(b'"sheaf.sums", "bytes": %d' % n, b'"sheaf.sums", "bytes": %d' % size)
        every("a table of sums of %d GiB of nothing" % (size >> 30), PLACES[:1])
    fresh()
    with open(path(STEP + "sheaf.json"), "rb") as f:
        at = re.search(rb'"model.safetensors.index.json", "bytes": (\d+)', f.read())
    os.truncate(path(STEP + "model.safetensors.index.json"), 300 << 20)
    edit(at.group(0), at.group(0).replace(at.group(1), b"%d" % (300 << 20)))
    every("an index of 300 MiB of nothing", PLACES[:1])
    for name in ("sheaf.json", "r/.sheaf/rewind", "r/.sheaf/run", "r/.sheaf/lock",
                 "r/.sheaf/marks/20"):
        fresh()
        name = name if "/" in name else STEP + name
        put(name, b"x")
        os.truncate(path(name), 1 << 40)
        every("a TiB of nothing: " + name, PLACES[:1], write=("r", 20))


def metrics():
    """Lines of metrics that no writer wrote, and what is no file."""
    good = {"what": "committed", "step": 3, "session": "ab" * 16, "at": "2026-01-31T12:00:00Z",
            "code": 0, "ranks": 2, "of": 2, "lazy": True, "images": 1, "bytes": 9, "gates": 1,
            "gates_waited": 0, **{t + "_ms": 1.5 for t in (
                "begin", "image", "gates", "gate_max", "exchange", "wait", "commit", "copy",
                "wall")}}
    line = json.dumps(good).encode()
    odd = [b'"\x1b[2J"', b'"\\u001b[2J"', b'"\\u202e"', b"-1", b"1e999", b"1e300", b"9" * 40,
           b"9223372036854775807", b"-9223372036854775808", b"null", b"[1]", b'"' + b"x" * 4000]
    lines = [line.replace(json.dumps({k: v}).encode()[1:-1],
                          b'"%s": %s' % (k.encode(), o), 1) for k, v in good.items() for o in odd]
    many = line + b"\n"
    texts = {"each member is odd": (b"\n".join(lines) + b"\n", 1), "one line": (b"x", 3 << 20),
             "brackets": (b"[", 1 << 20), "NULs": (b"\0", 1 << 20), "empty": (b"", 1),
             "ends of lines": (b"\n", 1 << 20), "twice in a line":
             (line[:-1] + b', "step": 4}\n', 1), "no text": (bytes(range(256)), 4096),
             "as many as there is room for": (many, (2 << 20) // len(many))}
    name, wrong, n = "r/.sheaf/metrics.jsonl", [], 0

    def look(claim, small=True):
        codes = set()
        for args in (["stats", "r"], ["stats", "r", "--json"], ["stats", "r", "--last", "1"]):
            if not small and "--json" in args:
                continue        # what we took to read it would count as the command's memory
            rc, out, err, why = run(args)
            codes.add(rc)
            if why:
                wrong.append("%s: %s: %s\n%s\n%s" % (claim, args, why, out[:200], err[:300]))
        return len(codes) == 1 and codes <= {0, 2}

    for claim, (text, times) in texts.items():
        fresh()
        put(name, text * times)
        n += look(claim, text is not many)
    for make in (os.mkfifo, os.mkdir, lambda to: os.symlink(path("decoy", "file"), to)):
        fresh()
        make(gone(name))
        n += look(make)
        shutil.rmtree(path("r/.sheaf"))
        make(path("r/.sheaf"))
        n += look(make)
    fresh()
    put(name, b"x")
    os.truncate(path(name), 1 << 40)
    n += look("a TiB of nothing")
    result(not wrong and n == len(texts) + 7,
           "metrics of nobody's: %d kinds of them" % n, "\n".join(wrong))


def changing():
    """Files that shrink, grow, go and come while they are read."""
    fresh()
    name, stop = path(STEP + "model-00001-of-00003.safetensors"), threading.Event()
    with open(name, "rb") as f:
        data = f.read()
    half = data[:len(data) // 2]

    def trouble():
        i = 0
        while not stop.is_set():
            i += 1
            if i % 4 == 0:
                os.truncate(name, 0)
            elif i % 4 == 1:
                with open(name + ".x", "wb") as out:
                    out.write(half)
                os.rename(name + ".x", name)
            elif i % 4 == 2:
                os.unlink(name)
            else:
                with open(name, "wb") as out:
                    out.write(data)
            time.sleep(0.0005)
    t = threading.Thread(target=trouble)
    t.start()
    wrong = []
    try:
        for _ in range(400 if LONG else 12):
            for args in (["verify", "r@20"], ["cat", "r@20", TENSOR], ["show", "r@20"],
                         ["ls", "r"], ["diff", "r@20", "good@20"]):
                rc, out, err, why = run(args)
                if why:
                    wrong.append("%s %d %s %s %s" % (args, rc, why, out[:100], err[:300]))
    finally:
        stop.set()
        t.join()
    result(not wrong, "a file that changes while it is read", "\n".join(wrong))


def many():
    """A hundred thousand of everything."""
    fresh()
    n = 100000 if LONG else 30000
    for top in ("m", "m/hf", "m/plain", "m/r"):
        os.mkdir(path(top))
    put("m/x", b"")
    for i in range(n):
        os.link(path("m/x"), path("m/hf/model-%05d-of-%05d.safetensors" % (i + 1, n - 1)))
        os.link(path("m/x"), path("m/plain/f%d.json" % i))
        os.link(path("m/x"), path("m/r/checkpoint-%d.x" % i))
        if i % 20000 == 19999:          # a file has not that many names everywhere
            gone("m/x")
            put("m/x", b"")
    st("m/plain/model.safetensors", b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")
    shutil.copytree(path("good/checkpoint-10"), path("m/r/checkpoint-10"))
    every("%d shards" % n, ["m/hf"], allowed=(1, 2))
    every("%d other files" % n, ["m/plain"])
    every("%d entries in a run" % n, ["m/r@10"])
    deep = path("r/.sheaf/trash/5-" + "0" * 32)
    for _ in range(40):
        deep += "/d" * 20
    os.makedirs(deep)
    every("800 folders in each other in the trash", PLACES[:1], write=("r", 20))
    long = "long"
    for _ in range(15):
        long += "/" + "n" * 240
    os.makedirs(path(long))
    here = os.getcwd()
    os.chdir(path(long))
    shutil.copytree(path("good"), "r")
    os.chdir(here)
    every("a path of 3600 bytes", [long + "/r@20", long + "/r"])


def rights():
    nobody, claim = 65534, "what somebody else may not read or write"
    if os.getuid():
        return skip(claim, "not root, so nobody else can be tried")
    if not shutil.which("setpriv"):
        return skip(claim, "setpriv is not installed")
    os.chmod(WORK, 0o755)
    if subprocess.run(as_user(nobody) + ["test", "-x", SHEAF], check=False).returncode:
        return skip(claim, "nobody may not run " + SHEAF)
    rc, _, err, why = run(["--version"], user=nobody)
    result(rc == 0 and not why, "nobody can run it", (err, why))
    for name in FILES + ["r/checkpoint-20", STEP + "optimizer", "r/.sheaf", "r/.sheaf/run", "r"]:
        fresh()
        os.chmod(path(name), 0)
        every("what may not be read: " + name, PLACES[:1], write=("r", 20), user=nobody)
        os.chmod(path(name), 0o755)
    fresh()
    was = tree(path("r"))
    every("a run of somebody else", PLACES, write=("r", 20), user=nobody)
    rc, _, err, why = run(["verify", "r@20"], user=nobody)
    result(rc == 0 and not why, "reads for whoever may read", err)
    result(tree(path("r")) == was, "and nothing of it was changed")


def modes():
    for umask in (0o002, 0o022, 0o077):
        fresh()
        shutil.rmtree(path("r/.sheaf"))
        for args in writers("r", 10):
            run(args, umask=umask)
        wrong = []
        for at, dirs, files in os.walk(path("r/.sheaf")):
            dirs[:] = [d for d in dirs if not d.startswith("20-")]      # that was there before
            for name in dirs:
                if os.lstat(os.path.join(at, name)).st_mode & 0o777 != 0o777 & ~umask:
                    wrong.append(os.path.join(at, name))
            for name in files:
                if os.lstat(os.path.join(at, name)).st_mode & 0o777 != 0o666 & ~umask:
                    wrong.append(os.path.join(at, name))
        result(not wrong and os.path.exists(path("r/.sheaf/aside")),
               "modes are what a umask of %03o leaves" % umask, "\n".join(wrong))


OPEN = re.compile(r'(?:openat2?\((\w+)(?:<([^>]*)>)?, |open\(|creat\()"([^"]*)"(.*)')


def strayed(line):
    """Of an open below WORK: what is wrong with it, or "". None: it is elsewhere. Only the run,
    which was named, may be opened by its path; what lies in it, by its name, from its folder."""
    at, folder, name, flags = OPEN.search(line).groups()
    folder = folder if folder and at != "AT_FDCWD" else WORK
    target = os.path.normpath(os.path.join(folder, name))
    if os.path.commonpath([target, WORK]) != WORK:
        return None
    if target != path("r") and (at in (None, "AT_FDCWD") or "/" in name):
        return "by its path"
    if name == ".." and folder != path("r"):
        return "out of a directory of the run"
    if target != path("r") and name != ".." and target != folder and "O_NOFOLLOW" not in flags:
        return "follows"
    return "" if "O_CLOEXEC" in flags else "is inherited"


def opens():
    """Below the run everything is opened from a directory, and no link is followed."""
    claim = "each open is from a directory and follows nothing"
    if SANITIZED:
        return skip(claim, "a sanitizer opens files too")
    strace = ["strace", "-f", "-y", "-e", "trace=openat,openat2,open,creat", "-o", path("trace")]
    if not shutil.which("strace") or subprocess.run(strace + ["true"], check=False).returncode:
        return skip(claim, "nothing may be traced here")
    wrong, n = set(), 0
    fresh()
    for args in (["ls", "r"], ["show", "r@20"], ["verify", "r@20"], ["cat", "r@20", TENSOR],
                 ["diff", "r@20", "r@10"], ["ls", path("r"), "--json"], ["stats", "r"],
                 *writers("r", 10)):
        subprocess.run(strace + [SHEAF] + args, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        with open(path("trace"), encoding="utf-8", errors="replace") as f:
            found = [(strayed(line), line) for line in f if OPEN.search(line)]
        n += sum(why is not None for why, _ in found)
        wrong |= {"%s: %s" % (why, re.sub(r"^\d+ ", "", line.strip()))
                  for why, line in found if why}
    result(n > 30 and not wrong, "of %d opens each is from a directory and follows nothing" % n,
           "\n".join(sorted(wrong)))


WORK = os.path.realpath(tempfile.mkdtemp(prefix="sheaf-hostile."))
os.chdir(WORK)
DECOY = path("decoy")
TENSOR = "embed"
try:
    shutil.copytree(GOLDEN, path("good"))
    os.mkdir(DECOY)
    put("decoy/file", b"somebody else's\n")
    put("decoy/sheaf.json", b"{}")
    out = run(["show", "good@20", "--json"])[1]
    TENSOR = next(t["name"] for line in out.splitlines()
                  for t in json.loads(line)["tensors"] if t["family"] == "model" and t["bytes"])
    assert run(["mark", "good@10", "keep"])[0] == 0
    assert run(["verify", "good"])[0] == 0, run(["verify", "good"])
    os.makedirs(path("good/.sheaf/tries"), exist_ok=True)
    decoy_was = tree(DECOY)
    parts = (links, others, foreign, arrays, names, sizes, metrics, changing, many, rights, modes,
             opens)
    wanted = [a for a in sys.argv[3:] if a != "--long"]
    for part in parts:
        if wanted and part.__name__ not in wanted:
            continue
        began = time.monotonic()
        part()
        print("# %s: %.1f s" % (part.__name__, time.monotonic() - began))
    print("# %d commands; the most of one: %.2f s of a processor, %d MiB" %
          (state["runs"], state["cpu"], state["rss"] >> 20))
finally:
    subprocess.run(["chmod", "-R", "u+rwx", WORK], check=False)
    subprocess.run(["rm", "-rf", WORK], check=False)
print("1..%d" % state["n"])
sys.exit(state["bad"] != 0)
