# SPDX-License-Identifier: Apache-2.0
"""The position in the data, for loaders that do not record it themselves."""
from __future__ import annotations

from typing import Any, Generic, Iterable, Iterator, Mapping, Optional, Sized, TypeVar

import torch

from . import rng

Batch = TypeVar("Batch")


def generators(loader: Any) -> dict[str, torch.Generator]:
    """The random number generators that a loader of torch and its sampler own."""
    found = {"loader": getattr(loader, "generator", None),
             "sampler": getattr(getattr(loader, "sampler", None), "generator", None)}
    return {name: g for name, g in found.items() if isinstance(g, torch.Generator)}


class CountedLoader(Generic[Batch]):
    """A loader whose position is the number of batches that were taken in the epoch.

        loader = sheaf.torch.CountedLoader(DataLoader(...))
        ckpt.track(model, optimizer, loader=loader)

    After a load the next iteration skips that many batches. For this the random streams, including
    a generator of the loader or its sampler, first get the state that they had when the epoch
    began, so that a shuffling sampler gives the same order. Then they get the state that the load
    had restored. A loader with a state_dict of its own, such as torchdata's StatefulDataLoader,
    needs none of this.

    consumed  number of batches that were taken in this epoch
    epoch     number of epochs that have ended
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
        """The position, for load_state_dict."""
        saved = self.saved if self.skip else rng.read(self.own).get("tracked", {})
        start = self.start and dict(self.start, saved=saved)
        return {"consumed": self.consumed, "epoch": self.epoch, "start": start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the position: the next iteration begins there."""
        self.consumed, self.epoch = int(state["consumed"]), int(state["epoch"])
        self.start, self.skip = state["start"], self.consumed
        self.saved = (self.start or {}).get("saved", {})
