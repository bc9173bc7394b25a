# SPDX-License-Identifier: Apache-2.0
"""Plants flaws in modules of the package: a test must find each of them."""
from __future__ import annotations

import sys
import types
from typing import Any


def flawed(module: Any, check: str) -> Any:
    """A copy of a module with a check that finds nothing."""
    nothing = "True" if check.startswith(("same(", "all(")) or "==" in check or ".hold" in check \
        else "False"
    with open(module.__file__, encoding="utf-8") as f:
        source = f.read()
    assert check in source, "%s has no %s" % (module.__name__, check)
    made: Any = types.ModuleType(module.__name__ + "_flawed")
    made.__package__, made.__file__ = module.__package__, module.__file__
    sys.modules[made.__name__] = made           # dataclasses look for it there
    exec(compile(source.replace(check, nothing), made.__name__, "exec"), made.__dict__)
    return made
