# SPDX-License-Identifier: Apache-2.0
"""Messages of the library, which name options and functions of C, in the words of Python."""
from __future__ import annotations

import re

# Advice that Python gives in other words.
PHRASES = {
    "set SHEAF_SLICE_OPTIONAL if it may be absent": "load with strict=False",
    "SHEAF_LOAD_ZERO fills absent optimizer state with zeros": "strict=False leaves it as it is",
    "load without SHEAF_LOAD_STRICT, or put it into opts.ignore":
        "load with strict=False, or give ignore=[...] with its name to the Checkpointer",
    "commit or free that save first": "wait for it first: handle.result()",
    "no rank has a slice of it": "belongs to nothing that a rank tracks",
    "opts.progress ended ": "Ctrl-C on a rank, or its progress=, ended "}
# Functions and flags that have another name in Python.
NAMES = {"sheaf_state_new": "State()", "sheaf_run_open": "Run()", "sheaf_save_begin": "begin()",
         "sheaf_checkpoint_open_path": "sheaf.open()", "sheaf_checkpoint_open": "checkpoint()",
         "sheaf_dtype_from_name": "a name such as \"BF16\"",
         "SHEAF_LOAD_LENIENT": "strict=False", "SHEAF_LOAD_DERIVE": "convert=True",
         "opts.timeout_ms": "timeout", "opts.flags": "options", "NULL": "None"}
PHRASE = re.compile("|".join(map(re.escape, PHRASES)))
# A name in a path or in the name of a tensor comes after another character.
NAME = re.compile(r"(?<![^\s('])(?:"
                  r"(?:save_|agent_)?opts\.(?:(?:staging|retention|memory_tier|notify)\.)?(\w+)|"
                  r"sheaf_slice\.(\w+)|"
                  r"SHEAF_(?:RUN|SAVE|LOAD|SLICE)_(\w+)|"
                  r"sheaf_(?:run|state|save|checkpoint|load|agent)_(\w+)|NULL\b)")


def one(found: re.Match[str]) -> str:
    """What Python calls a name of C: an argument or a method."""
    argument, field, flag, function = found.groups()
    if found[0] in NAMES:
        return NAMES[found[0]]
    if flag is not None:
        return flag.lower() + "=True"
    return function + "()" if function is not None else argument or field


def in_python(text: str) -> str:
    """A message with the names that Python has for options, flags and functions."""
    return NAME.sub(one, PHRASE.sub(lambda found: PHRASES[found[0]], text))
