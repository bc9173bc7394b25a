#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads and proves committed steps; written from doc/format.md alone, its sections in brackets.

usage: reader.py STEP...               one JSON line a tensor; exit 0 all good, 1 damage, 2 usage
       reader.py --stream NAME N STEP  what each of N ranks takes of a stream of bytes: the tensor,
                                       "kept" or "absent"; exit 1: refused
"""
import json, os, re, struct, sys
from math import prod

ALL, POLY, BLOCK = 2**64 - 1, 0x9A6C9329AC4BC9B5, 1 << 20
NAMES = ("BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 BF16 F32 F64 C64 F8_E4M3 F8_E5M2 F8_E8M0 "
         "F8_E4M3FNUZ F8_E5M2FNUZ F4 F6_E2M3 F6_E3M2").split()
BITS = 8, 8, 8, 16, 16, 32, 32, 64, 64, 16, 16, 32, 64, 64, 8, 8, 8, 8, 8, 4, 6, 6
DTYPES = {name: (i + 1, bits) for i, (name, bits) in enumerate(zip(NAMES, BITS))}

def need(true, *what):
    if not true:
        raise ValueError(" ".join(map(str, what)))
def times_x(v):                     # [8]
    return v >> 1 ^ (v & 1) * POLY
def mul(a, b):
    p = 0
    for i in range(63, -1, -1):
        p, b = p ^ (a >> i & 1) * b, times_x(b)
    return p
def x8(n):                          # x^(8n)
    p, square = 1 << 63, 1 << 55
    while n:
        p, square, n = mul(p, square) if n & 1 else p, mul(square, square), n >> 1
    return p

TABLE = list(range(256))
for _ in range(8):
    TABLE = [times_x(v) for v in TABLE]

def raw(data, c=0):
    for b in data:
        c = TABLE[(c ^ b) & 255] ^ c >> 8
    return c
def std(data):
    return raw(data, ALL) ^ ALL
class Members(dict):                # of an object, and those that are there twice
    def __init__(self, pairs):
        super().__init__(pairs)
        self.twice = [k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i])]
def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a member twice")
    return dict(pairs)
def whole_number(text):             # the only numbers that are int afterwards [3]
    return int(text) if text.isdigit() else float(text)
def constant(text):
    raise ValueError("%s is no JSON" % text)
def parse(data, pairs=once):        # [3]
    text, depth, deepest = data.decode("utf-8"), 0, 0
    for c in re.sub(r'"(\\.|[^"\\])*"', "", text):
        depth += (c in "[{") - (c in "]}")
        deepest = max(depth, deepest)
    need(deepest <= 64, "nested too deep")
    value = json.loads(text, object_pairs_hook=pairs, parse_int=whole_number,
                       parse_constant=constant)
    json.dumps(value, ensure_ascii=False).encode("utf-8")       # no lone surrogates
    return value
def whole(root, name, size=None):
    with open(os.path.join(root, name), "rb") as file:
        data = file.read()
    need(size is None or len(data) == size, name, "has", len(data), "bytes, want", size)
    return data

def read_manifest(root):            # [6]
    data = whole(root, "sheaf.json")
    tail = re.search(rb',\n "self": "([0-9a-f]{16})"}\n\Z', data)
    need(len(data) < BLOCK and tail and std(data[:-31]) == int(tail[1], 16), "manifest checksum")
    m = parse(data, Members)
    need(m["sheaf"] == 1 and m["needs"] == [], "written by a newer sheaf")
    need((m["page"], m["block"], m["sum"]) == (4096, BLOCK, "crc64nvme"), "another format")
    check_members(m, "step", "file_bytes_max", "ranks", **MEMBERS)
    need(not m["notes"].twice and m["ranks"] > 0 and m["file_bytes_max"] > 0, "notes or numbers")
    for f in m["files"] + m["attached"] + [m["sums"]]:
        check_members(f, "bytes", name=str, crc=str)
    for f in m["families"]:
        check_members(f, "files", "tensors", "bytes", name=str, dir=str)
    return m

MEMBERS = {"sheaf": int, "needs": list, "session": str, "run": str, "created": str,
           "writer": dict, "flags": list, "page": int, "block": int, "sum": str, "plan": str,
           "families": list, "files": list, "attached": list, "tied": list, "notes": dict,
           "sums": dict, "self": str}

def check_members(o, *numbers, **kinds):                        # [6]
    kinds.update({n: int for n in numbers})
    need(not set(o.twice) & {"config", "parent", "mesh", "ema", *kinds}, "a member twice")
    wrong = [k for k, kind in kinds.items() if type(o[k]) is not kind and
             not (kind is dict and isinstance(o[k], dict))]
    need(not wrong, "of another kind:", *wrong)

def check_names(m, tensors):        # [1, 6]: attached files, indexes, tied names
    families = {f["name"]: f for f in m["families"]}
    need(len(families) == len(m["families"]), "a family twice")
    index = {os.path.normpath("%s/%s.safetensors.index.json" % (f["dir"], n))
             for n, f in families.items()}
    need(all(f["dir"] == ("." if n == "model" else n) for n, f in families.items()), "folders")
    attached = [a["name"] for a in m["attached"]]
    plain = set(attached) - index
    need(index <= set(attached), "an index is not attached")
    need(len(set(attached)) == len(attached), "attached twice")
    need(all(re.fullmatch(r"[A-Za-z0-9._-]{1,128}", a) and ".safetensors" not in a and
             not re.match(r"sheaf\.|alive-|\.\.?\Z", a) and a not in set(families) - {"model"}
             for a in plain), "name of an attached file")
    stored = {(t["family"], t["name"]) for t in tensors}
    need(all(isinstance(t, list) and len(t) == 3 for t in m["tied"]), "tied names")
    tied = [(family, name) for family, name, to in m["tied"]]
    need(len(set(tied)) == len(tied) and not set(tied) & stored, "tied twice, or tied and stored")
    need(all((family, to) in stored for family, name, to in m["tied"]), "tied to nothing stored")

def natural(name):                  # [1]
    runs = re.findall(rb"[0-9]+|[^0-9]+", name.encode())
    cut = [(0, len(r.lstrip(b"0")), r.lstrip(b"0")) if r.isdigit() else (1, r) for r in runs]
    return cut, sum(len(r) - len(r.lstrip(b"0")) for r in runs if r.isdigit()), name.encode()

def stream(m, tensors, name, ranks):                            # [1]
    there = {t["name"] for t in tensors if t["family"] == "ranks"}
    rule, saved = m["notes"].get("ranks." + name, "strict"), m["ranks"]
    if not any(t.startswith(name + "/") for t in there):
        return ["absent"] * ranks
    if ranks != saved and rule == "drop":
        return ["kept"] * ranks
    need(ranks == saved or rule == "modulo", "stream", name, "of", saved, "ranks is strict")
    takes = ["%s/%d" % (name, r % saved) for r in range(ranks)]
    return [t if t in there else "absent" for t in takes]

def optimizer(m, tensors, name):    # [13]: state of a parameter by key, and its count of updates
    of = (t for t in tensors if t["family"] == "optimizer")
    keys = {t["name"].rpartition("/")[2]: t for t in of if t["name"].rpartition("/")[0] == name}
    return keys, keys["step"] if "step" in keys else m["notes"].get("adam.step")

def unpack(bits, data):             # [2]: the codes of items of `bits` bits
    v = int.from_bytes(data, "little")
    return [v >> i & (1 << bits) - 1 for i in range(0, 8 * len(data), bits)]

def read_sums(data, crc):           # [7]
    need(data[:16] == b"SHEAFSUM\1" + bytes(7) and data[88:120] == bytes(32), "sums header")
    need(std(data[:120]) == int.from_bytes(data[120:128], "little"), "sums header checksum")
    counts, offs, sizes = struct.unpack_from("<4Q", data, 16), [128], (32, 64, 8, 1)
    for count, size in zip(counts, sizes):
        offs.append(-(-(offs[-1] + count * size) // 64) * 64)
    end, pages = offs[4], range(0, offs[4], 65536)
    need(struct.unpack_from("<5Q", data, 48) == tuple(offs), "sums layout")
    need(std(data[:128] + data[end:]) == crc, "sums checksum in the manifest")
    want = b"".join(std(data[at:end][:65536]).to_bytes(8, "little") for at in pages)
    need(data[end:] == want, "sums page")
    files, tensors, blocks, text = [data[a:a + c * s] for a, c, s in zip(offs, counts, sizes)]
    tensors = list(struct.iter_unpack("<2Q2I3QH2BIQ", tensors))
    names = [text[t[4]:t[4] + t[3] + 1] for t in tensors]
    need(b"".join(names) == text and len(set(names)) == len(names), "sums names")
    need(all(std(n[:-1]) == t[5] for n, t in zip(names, tensors)), "sums keys")
    order = sorted(range(len(tensors)), key=lambda i: (tensors[i][5], i))
    need([t[10] for t in tensors] == order, "sums slots")
    files, blocks = struct.iter_unpack("<3Q2I", files), struct.iter_unpack("<Q", blocks)
    return list(files), tensors, [b[0] for b in blocks], [n[:-1].decode() for n in names]

def read_header(data):              # [3]
    need(len(data) == 8 + int.from_bytes(data[:8], "little") and data[8:9] == b"{", "header")
    entries = parse(data[8:])
    need(data.rstrip(b" ")[-1:] == b"}" and len(data) % 4096 == 0, "header padding")
    need(entries.pop("__metadata__") == {"format": "pt"}, "header metadata")
    return list(entries.items())

def check_tensor(file, name, e, pos, head, rec):
    (begin, end), (number, bits), items = e["data_offsets"], DTYPES[e["dtype"]], prod(e["shape"])
    need(rec[0] == pos == head + begin and rec[1] == end - begin == items * bits / 8, "bytes", name)
    need(rec[7:10] == (number, len(e["shape"]), 0) and rec[11] == items, "table of", name)
    digest = 0
    file.seek(pos)
    for at in range(0, rec[1], BLOCK):
        digest = raw(file.read(min(BLOCK, rec[1] - at)), digest)
    need(digest == rec[6], "digest of", name)

def check_file(root, want, family, rec, tensors, blocks, names):
    path, (size, block, first, count, head) = want["name"], rec
    with open(os.path.join(root, path), "rb") as file:
        need(size == want["bytes"] == os.fstat(file.fileno()).st_size, path, "size")
        total, pos = 0, head
        for b in range(-(-size // BLOCK)):
            data = file.read(BLOCK)
            need(std(data) == blocks[block + b], path, "block", b)
            total = mul(total, x8(len(data))) ^ blocks[block + b]
        need(total == int(want["crc"], 16), path, "checksum")
        file.seek(0)
        entries, tensors = read_header(file.read(head)), tensors[first:first + count]
        theirs = [family + "\0" + name for name, e in entries]
        need(theirs == names[first:first + count], "tensors of", path)
        for (name, e), t in zip(entries, tensors):
            check_tensor(file, name, e, pos, head, t)
            pos += t[1]
            yield {"family": family, "name": name, "dtype": e["dtype"], "shape": e["shape"],
                   "file": path, "offset": t[0], "bytes": t[1], "digest": "%016x" % t[6]}
        need(pos == size, path, "ends behind its tensors")

def check_step(root):               # [9]
    m, out, i = read_manifest(root), [], 0
    data = whole(root, m["sums"]["name"], m["sums"]["bytes"])
    files, *table = read_sums(data, int(m["sums"]["crc"], 16))
    need(len(files) == len(m["files"]) == sum(f["files"] for f in m["families"]), "files")
    for a in m["attached"]:
        need(std(whole(root, a["name"], a["bytes"])) == int(a["crc"], 16), a["name"], "checksum")
    for fam in m["families"]:
        name, got = fam["name"], []
        for want, rec in list(zip(m["files"], files))[i:i + fam["files"]]:
            got += check_file(root, want, name, rec, *table)
        i += fam["files"]
        index = whole(root, os.path.join(fam["dir"], name + ".safetensors.index.json"))
        where = {t["name"]: t["file"].split("/")[-1] for t in got}
        there = parse(index)
        need(there == {"metadata": {"total_size": fam["bytes"]}, "weight_map": where} and
             list(there["weight_map"]) == sorted(where, key=natural), name, "index")
        need(len(got) == fam["tensors"] and sum(t["bytes"] for t in got) == fam["bytes"], name)
        out += got
    named = {"sheaf.json", "sheaf.sums"} | {f["name"] for f in m["files"] + m["attached"]}
    there = {os.path.relpath(os.path.join(at, f), root) for at, _, fs in os.walk(root) for f in fs}
    need(len(out) == len(table[0]) and there == named, "nobody names", there ^ named)
    check_names(m, out)
    return m, out

if __name__ == "__main__":
    bad = 0 if len(sys.argv) > 1 else print(__doc__, file=sys.stderr) or 2
    asked = sys.argv[2:4] if sys.argv[1:2] == ["--stream"] else None
    for step in sys.argv[4 if asked else 1:]:
        try:
            manifest, lines = check_step(step)
            if asked:
                lines = stream(manifest, lines, asked[0], int(asked[1]))
            print("".join(json.dumps(line) + "\n" for line in lines), end="")
        except (OSError, ValueError, KeyError, IndexError, TypeError, struct.error) as e:
            print("%s: %s: %s" % (step, type(e).__name__, e), file=sys.stderr)
            bad = 1
    sys.exit(bad)
