#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network in JAX, cut over a mesh of devices, and goes on on any other mesh.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8      # eight devices of one CPU
    python jax_sharded.py runs/jax --mesh 4,2 --steps 40
    python jax_sharded.py runs/jax --mesh 2,4 --steps 80           # another mesh goes on
    python jax_sharded.py runs/jax --mesh 1,1 --steps 120          # and so does one device

It needs optax.
"""
import argparse
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import sheaf


class Train(NamedTuple):
    params: Any
    opt: Any
    key: jax.Array
    step: int


def build(mesh: Mesh, tx: optax.GradientTransformation) -> Train:
    """The state before the first step: matrices are cut over both axes, and Adam's moments too."""
    def cut(x: jax.Array, *spec: Any) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    first, second, key = jax.random.split(jax.random.key(0), 3)
    params = {"in": cut(jax.random.normal(first, (16, 64)) / 4, "data", "model"),
              "bias": cut(jnp.zeros(64), "model"),
              "out": cut(jax.random.normal(second, (64, 16)) / 8, "model", "data")}
    return Train(params, tx.init(params), key, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--mesh", default="4,2")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=20)
    args = parser.parse_args()

    shape = tuple(int(n) for n in args.mesh.split(","))
    devices = jax.devices()[:shape[0] * shape[1]]
    mesh = Mesh(np.array(devices).reshape(shape), ("data", "model"))
    tx = optax.adamw(1e-2)

    @jax.jit
    def update(params: Any, opt: Any, key: jax.Array) -> Any:
        x = jax.random.normal(key, (32, 16))

        def loss_of(p: Any) -> jax.Array:
            return jnp.mean((jnp.tanh(x @ p["in"] + p["bias"]) @ p["out"] - jnp.sin(x)) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        changes, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, changes), opt, loss

    state = build(mesh, tx)
    try:
        state = sheaf.load(args.run, state)
        print("goes on after step %d" % state.step, flush=True)
    except sheaf.NotFound:
        pass
    for step in range(state.step + 1, args.steps + 1):
        key, now = jax.random.split(state.key)
        params, opt, loss = update(state.params, state.opt, now)
        state = Train(params, opt, key, step)
        print("step %d loss %.5f" % (step, loss), flush=True)
        if step % args.every == 0:
            sheaf.save(args.run, state, step=step, keep_last=2)


if __name__ == "__main__":
    main()
