# SPDX-License-Identifier: Apache-2.0
"""Sheaf in other people's trainers: the claims of four programs in one process, which imports
torch and transformers once. Each of them runs by itself, too. Prints TAP.

usage: test_frameworks.py SHEAF, the command
"""
from __future__ import annotations

import sys
from typing import Any

import tap
import test_accelerate
import test_lightning
import test_torchtitan
import test_transformers


def named(module: Any, claim: Any) -> Any:
    """The claim, with the framework in its title."""
    claim.__doc__ = "%s: %s" % (module.__name__[5:], claim.__doc__)
    return claim


if __name__ == "__main__":
    sys.exit(tap.run({"test_%s_%s" % (module.__name__[5:], name[5:]): named(module, claim)
                      for module in (test_transformers, test_accelerate, test_lightning,
                                     test_torchtitan)
                      for name, claim in vars(module).items() if name.startswith("test_")}))
