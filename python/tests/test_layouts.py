# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen2 that was trained in one layout goes on in every other one, bit for bit."""
from __future__ import annotations

import sys
from typing import Any, Optional

import ranks
import tap
from tap import folder, needs

STEPS = 6
SAVED = 3


def adam(m: Any) -> list[Any]:
    import torch
    return [torch.optim.AdamW(m.parameters(), lr=1e-2, amsgrad=True)]


def trained(rank: int, path: str, layout: str, tied: bool, store: Optional[str]
            ) -> tuple[list[float], dict[str, str]]:
    """Trains and saves; the losses of all steps, and the digests at the save."""
    import torch
    import sheaf
    import small_model
    m = small_model.model(layout, tied)
    optimizers = adam(m)
    kind = getattr(torch, store) if store else None
    with sheaf.Checkpointer(path, store_dtype=kind, timeout=30) as ckpt:
        ckpt.track(m, *optimizers)
        assert ckpt.load() is None
        losses = [small_model.train(m, optimizers, step) for step in range(SAVED)]
        with torch.no_grad():           # FSDP2 leaves gathered weights in the model
            m(input_ids=torch.arange(8).reshape(1, 8))
        ckpt.save(SAVED, metrics={"loss": losses[-1]})
        then = small_model.digests(m, optimizers)
        losses += [small_model.train(m, optimizers, step) for step in range(SAVED, STEPS)]
    return losses, then


def resumed(rank: int, path: str, layout: str, tied: bool, store: Optional[str]
            ) -> tuple[list[float], dict[str, str]]:
    """Loads and goes on: the losses of the other steps, and the digests after the load."""
    import torch
    import sheaf
    import small_model
    m = small_model.model(layout, tied, seed=7)
    optimizers = adam(m)
    kind = getattr(torch, store) if store else None
    with sheaf.Checkpointer(path, store_dtype=kind, readonly=True, timeout=30) as ckpt:
        ckpt.track(m, *optimizers)
        start = ckpt.load()
        assert start is not None and start.step == SAVED and "loss" in start.metrics
    now = small_model.digests(m, optimizers)
    return [small_model.train(m, optimizers, step) for step in range(SAVED, STEPS)], now


def opened(rank: int, path: str) -> tuple[list[str], int]:
    """Opens the checkpoint with transformers: what it reports, and how many tensors are equal."""
    import json
    import os
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    folder = os.path.join(path, "checkpoint-%d" % SAVED)
    m, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        files = set(json.load(f)["weight_map"].values())
    equal = 0
    now = m.state_dict()
    for file in files:
        for name, t in load_file(os.path.join(folder, file)).items():
            assert t.dtype == now[name].dtype == torch.bfloat16, (name, t.dtype)
            equal += torch.equal(t, now[name])
    return [k for k, v in told.items() if v], equal


def goes_on(layouts: list[str], saver: str, tied: bool = False,
            store: Optional[str] = None) -> None:
    with folder() as at:
        path = at + "/run"
        losses, then = ranks.first(ranks.results(4, trained, path, saver, tied, store))
        assert len(then) > 100 or tied and len(then) > 90, len(then)
        for layout in layouts:
            n = 1 if layout == "one" else 4
            after, now = ranks.first(ranks.results(n, resumed, path, layout, tied, store))
            different = [k for k in then if now.get(k) != then[k]]
            assert not different and now.keys() == then.keys(), (layout, different[:5])
            if layout == saver:
                assert after == losses[SAVED:], (layout, after, losses)
            assert all(abs(a - b) < 1e-4 for a, b in zip(after, losses[SAVED:])), (layout, after)
        if store:
            odd, equal = ranks.results(1, opened, path)[0]
            assert not odd and equal == 27 - int(tied), (odd, equal)


@needs("torch", "transformers")
def test_two_by_two_goes_on_everywhere() -> None:
    """FSDP2 x TP saved: one process, FSDP 4, TP 4 and 2x2 go on with the same bits and losses."""
    goes_on(["one", "fsdp", "tp", "2x2"], "2x2")


@needs("torch", "transformers")
def test_masters_beside_bf16() -> None:
    """With store_dtype the F32 masters come back exactly, and transformers opens the BF16 model."""
    goes_on(["hsdp", "one"], "hsdp", tied=True, store="bfloat16")


if __name__ == "__main__":
    # Imported once, before ranks are forked.
    if tap.there("torch", "transformers"):
        import small_model
        import sheaf.torch
        from transformers import AutoModelForCausalLM
        small_model.torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
