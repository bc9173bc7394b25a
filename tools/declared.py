# SPDX-License-Identifier: Apache-2.0
"""What the public headers declare, and the comment of each declaration.

read(PATHS) parses the part of C that the headers use: constants (macros and enumerators), structs,
functions, and typedefs. A declaration in any other form is an error, so nothing is left out.

A type is a dictionary as in sheaf_abi.json: "kind" says what it is, "c" how C spells it. The
comments of a declaration are the one that ends on the line before it and the one that starts
behind it on its last line. Declarations of one kind that follow each other without an empty line
or another comment share the comment before the first of them.
"""
import re

TOKEN = re.compile(r"""
    (?P<comment>/\*.*?\*/) | (?P<space>[ \t]+|\\\n) | (?P<line>\n) | (?P<string>"(?:\\.|[^"\\])*") |
    (?P<word>[A-Za-z_]\w*) | (?P<number>\.?[0-9][\w.]*) | (?P<mark>\.\.\.|<<|>>|[^\s\w])
    """, re.X | re.S)
# The bodies of these conditionals concern compilers, not readers.
SKIPPED = re.compile(r"#\s*if(?:def\s+(?:__cplusplus|__GNUC__)|\s+defined\(__)")
SPECIFIERS = {"void", "char", "short", "int", "long", "float", "double", "signed", "unsigned",
              "_Bool", "bool"}


class Unreadable(Exception):
    """A declaration in a form that this reader does not know."""


class Comment:
    """A comment: where it stands and what it says, without the stars."""

    def __init__(self, text, start, first_line, last_line):
        self.start, self.end = start, start + len(text)
        self.first_line, self.last_line = first_line, last_line
        lines = [re.sub(r"^\s*\* ?", "", line) for line in text[2:-2].split("\n")[1:]]
        self.text = "\n".join([text[2:].split("\n")[0].removesuffix("*/")] + lines).strip()
        self.text = "\n".join(line.rstrip() for line in self.text.split("\n"))


class Token:
    def __init__(self, kind, text, start, line):
        self.kind, self.text, self.start, self.line = kind, text, start, line
        self.end = start + len(text)


def scan(text):
    """The tokens of a header without comments and skipped conditionals, its macros as single
    tokens of kind "define", and its comments."""
    tokens, comments, line, at, skip = [], [], 1, 0, 0
    while at < len(text):
        m = TOKEN.match(text, at)
        kind, word = m.lastgroup, m.group()
        if word == "#":
            end = directive_end(text, at)
            words = re.sub(r"/\*.*?(\*/|$)", " ", text[at:end].replace("\\\n", " "),
                           flags=re.S).strip()
            if SKIPPED.match(words) or skip and words.startswith("#if"):
                skip += 1
            elif skip:
                skip -= words.startswith("#endif")
            elif words.startswith("#define"):
                value = text[at:end].split("/*")[0].rstrip()
                tokens.append(Token("define", value, at, line))
                end = at + len(value)
            elif not re.match(r"#\s*(include|ifndef|endif|ifdef|else|undef|pragma)", words):
                raise Unreadable("line %d: %s" % (line, words))
            else:
                end = at + len(text[at:end].split("/*")[0].rstrip())
            line += text.count("\n", at, end)
            at = end
            continue
        if kind == "comment":
            last = line + word.count("\n")
            comments += [] if skip else [Comment(word, at, line, last)]
        elif kind not in ("space", "line") and not skip:
            tokens.append(Token(kind, word, at, line))
        line += word.count("\n")
        at = m.end()
    return tokens, comments


def directive_end(text, at):
    """Where the line of a directive ends: a comment in it may go on for lines."""
    while True:
        m = re.compile(r"/\*.*?\*/|\\\n|\n|.", re.S).match(text, at)
        if not m or m.group() == "\n":
            return at
        at = m.end()


def spell(kind, name=""):
    """How C declares `name` with this type, or writes the type alone."""
    if kind["kind"] == "pointer":
        inner = ("*const " if kind.get("const") else "*") + name
        if kind["to"]["kind"] in ("function", "array"):
            inner = "(%s)" % inner
        return spell(kind["to"], inner).rstrip()
    if kind["kind"] == "array":
        return spell(kind["of"], "%s[%s]" % (name, kind["length"]))
    if kind["kind"] == "function":
        inner = ", ".join(spell(p["type"], p["name"]) for p in kind["parameters"]) or "void"
        return spell(kind["returns"], "%s(%s)" % (name, inner))
    words = ["const"] * kind.get("const", False) + [kind["kind"]] * (kind["kind"] in (
        "struct", "enum")) + [kind["name"]] + [name] * bool(name)
    return " ".join(words)


class Reader:
    """Declarations of one header, in its order."""

    def __init__(self, path, header):
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.header = header
        try:
            self.tokens, self.comments = scan(self.text)
        except Unreadable as why:
            raise Unreadable("%s: %s" % (header, why)) from None
        self.at = 0
        self.found = []

    def fail(self, token):
        raise Unreadable("%s:%d: a declaration of unknown form at '%s'" % (
            self.header, token.line, token.text))

    def peek(self):
        if self.at == len(self.tokens):
            self.fail(self.tokens[-1])
        return self.tokens[self.at]

    def take(self, want=None):
        token = self.peek()
        if want is not None and token.text != want:
            self.fail(token)
        self.at += 1
        return token

    def have(self, text):
        if self.at < len(self.tokens) and self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def specifiers(self):
        """const struct sheaf_run, unsigned long, uint64_t: all that precedes the declarator."""
        const, words = False, []
        while True:
            token = self.peek()
            if token.text in ("struct", "enum"):
                kind = self.take().text
                made = {"kind": kind, "name": self.take().text}
                words = None
            elif token.text == "const":
                const |= bool(self.take())
                continue
            elif words is not None and (token.text in SPECIFIERS or
                                        not words and token.kind == "word"):
                words.append(self.take().text)
                continue
            if words:
                made = {"kind": "void" if words == ["void"] else "base", "name": " ".join(words)}
            elif words is not None:
                self.fail(token)
            if self.have("const"):
                const = True
            return dict(made, const=True) if const else made

    def declarator(self, base):
        """(name or "", type) of what follows the specifiers: pointers, arrays, functions."""
        while self.have("*"):
            base = {"kind": "pointer", "to": base}
            if self.have("const"):
                base["const"] = True
        inner = None
        if self.peek().text == "(" and self.tokens[self.at + 1].text == "*":
            self.take()
            inner, self.at = self.at, self.after_paren()
            name = ""
        else:
            name = self.take().text if self.peek().kind == "word" else ""
        base = self.suffixes(base)
        if inner is not None:
            after, self.at = self.at, inner
            name, base = self.declarator(base)
            self.take(")")
            self.at = after
        return name, base

    def after_paren(self):
        depth, at = 1, self.at
        while depth:
            depth += {"(": 1, ")": -1}.get(self.tokens[at].text, 0)
            at += 1
        return at

    def suffixes(self, base):
        if self.have("("):
            return {"kind": "function", "returns": base, "parameters": self.parameters()}
        if self.have("["):
            length = ""
            while self.peek().text != "]":
                length += self.take().text
            self.take()
            return {"kind": "array", "of": self.suffixes(base), "length": length}
        return base

    def parameters(self):
        if [t.text for t in self.tokens[self.at:self.at + 2]] == ["void", ")"]:
            self.at += 2
            return []
        made = []
        while True:
            name, kind = self.declarator(self.specifiers())
            made.append({"name": name, "type": kind})
            if not self.have(","):
                self.take(")")
                return made

    def add(self, what, name, first, last, **more):
        """One declaration, from its first token to its last."""
        made = dict(what=what, name=name, header=self.header, line=first.line,
                    last_line=last.line, start=first.start, end=last.end, **more)
        self.found.append(made)
        return made

    def define(self):
        token = self.take()
        m = re.match(r"#\s*define\s+(\w+)", token.text)
        name, value = m.group(1), token.text[m.end(1):].strip()
        if token.text[m.end(1):].startswith("("):
            self.fail(token)            # a macro with parameters is of no use to a binding
        if value and name.startswith("SHEAF_"):
            self.add("constant", name, token, token, value=value, enum=None)

    def enum(self, first):
        name = self.take().text
        self.take("{")
        members = []
        whole = self.add("enum", name, first, first, members=members)
        while not self.have("}"):
            token = self.take()
            value, last = None, token
            if self.have("="):
                value = []
                while self.peek().text not in (",", "}"):
                    value.append(self.take().text)
                    last = self.tokens[self.at - 1]
                value = "".join(value)
            if self.have(","):
                last = self.tokens[self.at - 1]
            members.append(self.add("constant", token.text, token, last, value=value, enum=name))
        whole["last_line"], whole["end"] = self.peek().line, self.take(";").end

    def struct(self, first):
        name = self.take().text
        if self.peek().text == ";":
            self.add("struct", name, first, self.take(), fields=None)
            return
        self.take("{")
        fields = []
        whole = self.add("struct", name, first, first, fields=fields)
        while not self.have("}"):
            start = self.peek()
            base = self.specifiers()
            made = []
            while True:
                made.append(self.declarator(base))
                if not self.have(","):
                    break
            last = self.take(";")
            fields += [self.add("field", n, start, last, type=t, struct=name) for n, t in made]
        whole["last_line"], whole["end"] = self.peek().line, self.take(";").end

    def defined_next(self):
        """Is this `struct NAME {` or `struct NAME;`, not the type of a function?"""
        return self.tokens[self.at + 2].text in ("{", ";")

    def read(self):
        while self.at < len(self.tokens):
            first = self.peek()
            if first.kind == "define":
                self.define()
            elif first.text in ("struct", "enum") and self.defined_next():
                self.take()
                (self.struct if first.text == "struct" else self.enum)(first)
            else:
                typedef = self.have("typedef")
                name, kind = self.declarator(self.specifiers())
                if not name or not typedef and kind["kind"] != "function":
                    self.fail(first)
                self.add("typedef" if typedef else "function", name, first, self.take(";"),
                         type=kind)
        self.attach()
        return self.found

    def attach(self):
        """Give each declaration its comments: "text" is what they say, "" where there is none.
        What no declaration takes is said of the header: `about`."""
        before = {c.last_line: c for c in self.comments if self.alone(c)}
        behind = {c.first_line: c for c in self.comments if not self.alone(c)}
        shared, taken = {}, set()       # shared: by what ends on which line, of its block
        for d in self.found:
            own, trailing = before.get(d["line"] - 1), behind.get(d["last_line"])
            if d["what"] in ("struct", "enum") and d["last_line"] != d["line"]:
                trailing = behind.get(d["line"])    # behind its opening brace
            elif trailing and trailing.start < d["end"]:
                trailing = None
            said = [c for c in (own, trailing) if c]
            taken.update(said)
            first = [own] if own else shared.get((d["what"], d["line"] - 1), [])
            d["text"] = "\n\n".join(c.text for c in said or first)
            d["shared"] = bool(first) and not said
            if d["what"] in ("function", "constant", "typedef") and not d.get("enum"):
                last = max([d["last_line"]] + [c.last_line for c in said])
                shared[d["what"], last] = first
        self.about = "\n\n".join(c.text for c in self.comments
                                 if c not in taken and "SPDX-License-Identifier" not in c.text)

    def alone(self, comment):
        """Is nothing before the comment on its line?"""
        start = self.text.rfind("\n", 0, comment.start) + 1
        return not self.text[start:comment.start].strip()


def read(paths):
    """[Reader, ...] of the headers at these paths, all of them read."""
    readers = []
    for path in paths:
        readers.append(Reader(path, path.rsplit("/", 1)[-1]))
        readers[-1].read()
    return readers
