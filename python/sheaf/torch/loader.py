# SPDX-License-Identifier: Apache-2.0
"""The position in the data of loaders that cannot tell it themselves."""
from __future__ import annotations

from typing import Any, Generic, Iterable, Iterator, Mapping, Optional, Sized, TypeVar

import torch

from . import rng

Batch = TypeVar("Batch")


def generators(loader: Any) -> dict[str, torch.Generator]:
    """The random streams that a loader of torch and its sampler have of their own."""
    found = {"loader": getattr(loader, "generator", None),
             "sampler": getattr(getattr(loader, "sampler", None), "generator", None)}
    return {name: g for name, g in found.items() if isinstance(g, torch.Generator)}


class CountedLoader(Generic[Batch]):
    """A loader whose position is how many batches of the epoch were taken.

        loader = sheaf.torch.CountedLoader(DataLoader(...))
        ckpt.track(model, optimizer, loader=loader)

    After a load the next iteration takes as many batches from the loader and drops them, with the
    random streams as they were when the epoch began, so that a shuffling sampler gives the same
    order, and so with a generator that the loader or its sampler has. Then it gives the streams
    back the state that the load had given them. A loader with a state_dict of its own, such as
    torchdata's StatefulDataLoader, needs none of this.

    consumed  batches of this epoch that were taken
    epoch     how many epochs have ended
    """

    def __init__(self, loader: Iterable[Batch]) -> None:
        self.loader = loader
        self.own = generators(loader)
        self.saved: dict[str, Any] = {}                 # its generators, when it was saved
        self.consumed = 0
        self.epoch = 0
        self.start: Optional[dict[str, Any]] = None     # the random streams as the epoch began
        self.skip = 0

    def __len__(self) -> int:
        if isinstance(self.loader, Sized):
            return len(self.loader)
        raise TypeError("a %s has no length" % type(self.loader).__name__)

    def __iter__(self) -> Iterator[Batch]:
        skip, self.skip = self.skip, 0
        if skip and self.start is not None:
            now = rng.read({})
            rng.write(self.start, self.own)
            batches = iter(self.loader)
            for _ in range(skip):
                next(batches)
            rng.write({**now, "tracked": self.saved}, self.own)
        else:
            self.start = rng.read(self.own)
            self.consumed = 0
            batches = iter(self.loader)
        for batch in batches:
            self.consumed += 1
            yield batch
        self.consumed, self.start = 0, None
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The position: what a load gives back."""
        saved = self.saved if self.skip else rng.read(self.own).get("tracked", {})
        start = self.start and dict(self.start, saved=saved)
        return {"consumed": self.consumed, "epoch": self.epoch, "start": start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a position: the next iteration begins behind it."""
        self.consumed, self.epoch = int(state["consumed"]), int(state["epoch"])
        self.start, self.skip = state["start"], self.consumed
        self.saved = (self.start or {}).get("saved", {})
