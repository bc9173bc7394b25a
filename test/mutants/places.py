# SPDX-License-Identifier: Apache-2.0
"""Where a source can be mutated, and into what: five kinds of small mistakes.

    delete   a call whose value nobody takes is not made
    negate   a condition, or one operand of it, is the opposite
    offby    a comparison takes in its bound or leaves it out; + 1 and - 1 are nothing
    swap     two arguments beside each other change places
    drop     an error is not told: the call is not made, or its code is passed over

In what is put there the word MUTANT is true while the mutant is awake, as in table.py. Sources are
read as text: comments, strings and preprocessor lines are blanked, brackets are counted.
"""
import collections
import re

# text: the line, "{was => now}" where it changes; it names the place however lines move.
Place = collections.namedtuple("Place", "kind file function start end was put text")

KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "do", "else", "case", "goto",
            "assert", "always", "_Static_assert", "defined", "offsetof", "_Alignof"}
# Of these two arguments each may be the first; a hint changes nothing, and what glibc makes nothing
# of does not either. These two have one value.
SYMMETRIC = {"shf_alloc", "shf_zalloc", "calloc", "same_desc", "__builtin_add_overflow",
             "__builtin_mul_overflow", "shf_box_equal"}
# Of these the second and the third: a product, a sum, what two boxes share.
SYMMETRIC_BEHIND = {"shf_arena_alloc", "shf_realloc", "shf_mul", "shf_mul64", "shf_add",
                    "shf_add64", "shf_box_intersect"}
EQUAL = {"1", "SHEAF_MAX"}
HINTS = {"__builtin_prefetch", "pthread_mutex_destroy", "pthread_cond_destroy", "va_end"}
CALL = re.compile(r"\b([A-Za-z_]\w*)((?:(?:->|\.)\w+)*)\(")
OPENS, CLOSES = "([{", ")]}"


def blank(m):
    return re.sub(r"[^\n]", " ", m.group())


def masked(text):
    """As long as the text, without what is no code. A string keeps its quotes."""
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
                  lambda m: blank(m) if m.group()[0] == "/" else
                  m.group()[0] + "_" * (len(m.group()) - 2) + m.group()[-1], text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def closing(code, at):
    """Where the bracket that opens there is closed."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] in OPENS:
            depth += 1
        elif code[i] in CLOSES:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("a bracket is not closed")


def split(code, start, end, signs):
    """The parts between these signs, where no bracket is open: their spans without white space."""
    parts, depth, i, begin = [], 0, start, start
    while i < end:
        depth += (code[i] in OPENS) - (code[i] in CLOSES)
        sign = next((s for s in signs if code.startswith(s, i)), None) if depth == 0 else None
        if sign:
            parts.append((begin, i))
            i += len(sign)
            begin = i
        else:
            i += 1
    parts.append((begin, end))
    out = []
    for a, b in parts:
        words = code[a:b]
        out.append((a + len(words) - len(words.lstrip()), a + len(words.rstrip())))
    return out


def functions(code):
    """Name and body of each function; a body ends at a brace in the first column."""
    for m in re.finditer(r"^\{\n", code, flags=re.M):
        head = code[code.rfind("\n\n", 0, m.start()) + 1:m.start()]
        found = re.findall(r"\b([A-Za-z_]\w*)\(", head)
        names = [n for n in found if n != "__attribute__"]
        end = code.find("\n}\n", m.start())
        if names and end >= 0 and "=" not in head.split("(")[0]:
            yield names[0], m.end(), end + 1


class Source:
    def __init__(self, file, text):
        self.file, self.text, self.code = file, text, masked(text)
        self.found = []
        for name, start, end in functions(self.code):
            self.name, self.start, self.end = name, start, end
            self.guards = [(m.end() - 1, self.guard_end(m.end() - 1)) for m in re.finditer(
                r"\b(?:assert|always|_Static_assert)\(", self.code[:end]) if m.start() >= start]
            self.calls()
            self.conditions()
            self.bounds()
            self.errors()

    def guard_end(self, at):
        """With the answer to what cannot be."""
        shut = closing(self.code, at)
        then = re.match(r"\)\s*return\b[^;]*\bSHEAF_EBUG\b[^;]*", self.code[shut + 1:])
        return shut + 1 + then.end() if then else shut

    def add(self, kind, start, end, put, now=None):
        """`now` is what it becomes, for the reader; put otherwise."""
        if any(a < end and start <= b for a, b in self.guards):
            return                          # what cannot be is no behaviour
        a = self.text.rfind("\n", 0, start) + 1
        b = self.text.find("\n", end)
        was = self.text[start:end]
        text = "%s{%s => %s}%s" % (self.text[a:start], was, now or "", self.text[end:b])
        self.found.append(Place(kind, self.file, self.name, start, end, was, put,
                                " ".join(text.split())))

    def calls(self):
        code = self.code
        for m in CALL.finditer(code, self.start, self.end):
            if m.group(1) in KEYWORDS | HINTS or code[m.start() - 1] in ".>":
                continue
            shut = closing(code, m.end() - 1)
            whole = self.text[m.start():shut + 1]
            before = code[self.start:m.start()].rstrip()
            if code[shut + 1:shut + 2] == ";" and (
                    re.search(r"(?:[;{}]|\belse|\bdo|\(void\)!?|^)$", before) or
                    self.is_body(before)):
                self.delete(m.start(), shut + 1)
            if m.group(1) not in SYMMETRIC:
                self.swap(m, shut, whole, before)

    def is_body(self, before):
        """Whether what comes is all that an if or a loop does."""
        if not before.endswith(")"):
            return False
        depth = 0
        for i in range(len(before) - 1, -1, -1):
            depth += (before[i] == ")") - (before[i] == "(")
            if depth == 0:
                return bool(re.search(r"\b(?:if|while|for|switch)\s*$", before[:i]))
        return False

    def delete(self, start, end):
        before = self.code[self.start:start].rstrip()
        if before.endswith(("(void)", "(void)!")):
            start = self.start + before.rfind("(void)")
        self.add("delete", start, end + 1, "{ if (!MUTANT) %s }" % self.text[start:end + 1])

    def swap(self, m, shut, whole, before):
        args = split(self.code, m.end(), shut, ",")
        after = self.code[shut + 1:shut + 8].split()
        if re.fullmatch(r"(?:str|mem)n?cmp", m.group(1)) and (after[:1] in (["=="], ["!="]) or not (
                re.search(r"(?:\breturn|[=?:])$", before) or after[:1] in (["<"], [">"]))):
            return                          # either way round they are equal
        for nth, ((a, b), (c, d)) in enumerate(zip(args, args[1:])):
            if nth == 1 and m.group(1) in SYMMETRIC_BEHIND:
                continue
            one, two = self.text[a:b], self.text[c:d]
            if one != two and {one, two} != EQUAL and not set('{"') & set(one + two):
                now = "%s, %s" % (two, one)
                turned = self.text[m.start():a] + now + self.text[d:shut + 1]
                self.add("swap", m.start(), shut + 1, "(MUTANT ? %s : %s)" % (turned, whole),
                         "%s(.. %s ..)" % (m.group(1) + m.group(2), now))

    def conditions(self):
        code = self.code
        for m in re.finditer(r"\b(if|while|for) \(|\breturn\b", code[:self.end]):
            if m.start() < self.start:
                continue
            if m.group(1):
                span = [m.end(), closing(code, m.end() - 1)]
                if m.group(1) == "for":
                    span = split(code, span[0], span[1], ";")[1]
            else:
                span = m.end(), code.index(";", m.end())
                if not re.search(r"&&|\|\|", code[span[0]:span[1]]) or "?" in code[
                        span[0]:span[1]]:
                    continue
            for a, b in split(code, span[0], span[1], ("&&", "||")):
                if a < b and "=" not in re.sub(r"[=!<>]=", "", code[a:b].split("(")[0]):
                    self.add("negate", a, b, "(!(%s) == MUTANT)" % self.text[a:b],
                             "!(%s)" % self.text[a:b])

    def is_indifferent(self, m):
        """Whether two that are equal make no difference: the lesser or the greater of them is
        taken, or they are known to differ."""
        start = self.code.rfind("\n", 0, m.start()) + 1
        line = " ".join(self.code[start:self.code.find(";", m.end()) + 1].split())
        at = len(" ".join(self.code[start:m.start()].split()))
        one = re.search(r"(?:[=,(?:] |return |\()((?:[^=?:,]|->)+)$", line[:at])
        rest = re.match(r" [<>]=? (.+?) \? (.+?) : ([^?:]+?)(?:[;,)]|$)", line[at:])
        if not one or not rest:
            return False
        a, b, yes, no = one.group(1).strip(), *(part.strip() for part in rest.groups())
        return {a, b} == {yes, no} or {yes, no} == {"1", "-1"}

    def bounds(self):
        turned = {"<": ("MUTANT +", "<="), "<=": ("-MUTANT +", "<"),
                  ">": ("-MUTANT +", ">="), ">=": ("MUTANT +", ">")}
        for m in re.finditer(r" (<=?|>=?) (?=\S)", self.code[:self.end]):
            if self.is_indifferent(m):
                continue
            if m.start() >= self.start:
                more, now = turned[m.group(1)]
                self.add("offby", m.start() + 1, m.end() - 1, "%s %s" % (m.group(1), more), now)
        for m in re.finditer(r" [+-] (1)\b(?!\s*<<|\.|\s*\*)", self.code[:self.end]):
            if m.start() >= self.start:
                self.add("offby", m.start(1), m.end(1), "!MUTANT", "0")

    def errors(self):
        code = self.code
        for m in re.finditer(r"\b(?:rc|bad|why) = (?=[a-z])", code[:self.end]):
            end = code.index(";", m.end())
            call = CALL.match(code, m.end())
            if m.start() >= self.start and call and closing(code, call.end() - 1) == end - 1:
                self.add("drop", m.end(), end, "MUTANT ? 0 : " + self.text[m.end():end], "0")
        for m in re.finditer(r"\breturn (?=shf_fail)", code[:self.end]):
            end = code.index(";", m.end())
            if m.start() >= self.start:
                self.add("drop", m.end(), end, "MUTANT ? 0 : " + self.text[m.end():end], "0")
        for m in re.finditer(r"\b(?:\w+) < 0(?=[ )])", code[:self.end]):
            if m.start() >= self.start and re.search(r"(?:[(]|&& |\|\| )$", code[:m.start()]):
                self.add("drop", m.start(), m.end(), "(%s && !MUTANT)" % m.group(), "false")


def places(file, text):
    return Source(file, text).found
