#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network in Paddle whose matrices are cut over ranks, and goes on on other ranks.

    python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo paddle_sharded.py \\
        runs/paddle --steps 10
    python -m paddle.distributed.launch --nproc_per_node 4 --backend gloo paddle_sharded.py \\
        runs/paddle --steps 20                              # other pieces for each rank

On GPUs leave --backend gloo out.
"""
import argparse

import numpy as np
import paddle
import paddle.distributed as dist

import sheaf


def build(ranks: int) -> paddle.nn.Layer:
    """Two layers: the columns of the first matrix are cut, and the rows of the second."""
    paddle.seed(0)
    model = paddle.nn.Sequential(paddle.nn.Linear(8, 32), paddle.nn.Tanh(),
                                 paddle.nn.Linear(32, 8, bias_attr=False))
    mesh = dist.ProcessMesh(list(range(ranks)), dim_names=["model"])
    for layer, name, cut in ((model[0], "weight", 1), (model[0], "bias", 0),
                             (model[2], "weight", 0)):
        setattr(layer, name, dist.shard_tensor(getattr(layer, name), mesh, [dist.Shard(cut)]))
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()

    dist.init_parallel_env()
    group = sheaf.group.paddle_distributed()
    model = build(group.ranks)
    optimizer = paddle.optimizer.Momentum(0.2, parameters=model.parameters())
    for p in model.parameters():    # Paddle makes its state at the first step; a load needs it
        optimizer._add_accumulator("velocity", p)

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    try:
        sheaf.load(args.run, state, group=group)
        if group.rank == 0:
            print("goes on after step %d" % state["step"], flush=True)
    except sheaf.NotFound:
        pass
    for step in range(state["step"] + 1, args.steps + 1):
        x = paddle.to_tensor(np.random.default_rng(step).normal(size=(32, 8)).astype("float32"))
        loss = (model(x) - paddle.sin(x)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        value = float(loss)
        if group.rank == 0:
            print("step %d loss %.6f" % (step, value), flush=True)
        if step % args.every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                     "step": step}
            sheaf.save(args.run, state, group=group, step=step, keep_last=2)


if __name__ == "__main__":
    main()
