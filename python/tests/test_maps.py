# SPDX-License-Identifier: Apache-2.0
"""sheaf.open shows a checkpoint through a map. Prints TAP."""
from __future__ import annotations

import json
import os
import sys
from typing import Any

import tap
from tap import folder, needs, raises

if tap.there("numpy"):
    import numpy as np

    import sheaf

MAP = """sheaf-map 1 apart fused

arg extra = 0
let q = config.q
let k = config.k
for l = config.num_layers

up.{l}.weight [o i] = all.up [l i o]
q.weight [q i], k.weight [k i] = qk.weight [(q + k + zero(extra)) i]
norm.{*} = final.{*}
"""
CONFIG = {"num_layers": 2, "q": 4, "k": 2}


def made(at: str) -> tuple[str, dict[str, Any]]:
    """A run with one step, and what is in its model; the map is written beside it."""
    rng = np.random.default_rng(1)
    model = {"up.%d.weight" % n: rng.standard_normal((5, 3)).astype("f4") for n in range(2)}
    model.update({"q.weight": rng.standard_normal((4, 7)).astype("f4"),
                  "k.weight": rng.standard_normal((2, 7)).astype("f4"),
                  "norm.scale": rng.standard_normal(3).astype("f4")})
    with open(at + "/fused.map", "w", encoding="utf-8") as f:
        f.write(MAP)
    sheaf.save(at + "/run@7", {"model": model},
               files={"config.json": json.dumps(CONFIG).encode()})
    return at + "/run", model


@needs("numpy")
def test_names_and_shapes_of_the_other_side() -> None:
    """Tensors have the names and shapes of the map's right side, and the number of the step"""
    with folder() as at:
        run, model = made(at)
        with sheaf.open(run, map=at + "/fused.map") as f:
            assert sorted(f) == ["all.up", "final.scale", "qk.weight"], list(f)
            assert f.step == 7
            up = np.stack([model["up.%d.weight" % n].T for n in range(2)])
            assert f["all.up"].shape == (2, 3, 5) and np.array_equal(f["all.up"][...], up)
            assert np.array_equal(f["all.up"][1, 0:2, 3:], up[1, 0:2, 3:])
            assert np.array_equal(f["qk.weight"][3:5],
                                  np.concatenate([model["q.weight"], model["k.weight"]])[3:5])
            assert np.array_equal(f["final.scale"][...], model["norm.scale"])


@needs("numpy")
def test_arguments_and_the_way_back() -> None:
    """Arguments pad, and the same map with to= gives the first names again"""
    with folder() as at:
        run, model = made(at)
        padded = sheaf.Map(at + "/fused.map", numbers={"extra": 2})
        with sheaf.open(run, map=padded) as f:
            whole = {k: f[k][...] for k in f}
        assert whole["qk.weight"].shape == (8, 7) and not whole["qk.weight"][6:].any()
        sheaf.save(at + "/fused@1", {"model": whole})
        with open(at + "/config.json", "w", encoding="utf-8") as out:
            json.dump(CONFIG, out)
        back = sheaf.Map(at + "/fused.map", to="apart", numbers={"extra": 2},
                         config=at + "/config.json")
        with sheaf.open(at + "/fused", map=back) as f:
            assert sorted(f) == sorted(model)
            assert all(np.array_equal(f[k][...], model[k]) for k in f)


@needs("numpy")
def test_flaws() -> None:
    """A map that is not there, or does not fit, is one sentence with its file"""
    with folder() as at:
        run, _ = made(at)
        with raises(sheaf.NotFound, "no-such-map"):
            sheaf.open(run, map="no-such-map")
        with open(at + "/other.map", "w", encoding="utf-8") as f:
            f.write("sheaf-map 1 a b\n\nmissing.weight [i o] = it.weight [o i]\n")
        with raises(sheaf.Mismatch, "other.map", "q.weight"):
            sheaf.open(run, map=at + "/other.map")
        with open(at + "/bad.map", "w", encoding="utf-8") as f:
            f.write("sheaf-map 1 a b\n\nx [i] = y [j]\n")
        with raises(sheaf.Invalid, "bad.map"):
            sheaf.open(run, map=at + "/bad.map")


@needs("numpy")
def test_a_map_of_sheaf_by_its_name() -> None:
    """A name is that of a map that comes with sheaf"""
    path = sheaf.Map("qwen2-hf-paddle").path()
    assert os.path.isfile(path) and path.endswith("/qwen2-hf-paddle.map"), path
    assert sheaf.Map("./qwen2-hf-paddle").path() == "./qwen2-hf-paddle"


@needs("numpy")
def test_a_forked_process_reads_through_the_map() -> None:
    """A process that was forked opens the checkpoint and the map again"""
    with folder() as at:
        run, model = made(at)
        with sheaf.open(run, map=at + "/fused.map") as f:
            child = os.fork()
            if child == 0:
                same = np.array_equal(f["final.scale"][...], model["norm.scale"])
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
