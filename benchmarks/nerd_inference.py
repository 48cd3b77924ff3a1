"""Steps per second of a learned solver: a cached window against a PyTorch model of the same size that recomputes its window in
every step, as the research code does; beside the analytic solver and MuJoCo.

Ours are whole steps: contact detection, input, network, state. PyTorch's are the network alone on a given window, which is in its
favour. PyTorch (torch==2.13.0) is a peer and no dependency: without it the comparison is left out, and the check does not hold.

The cartpole also runs inside Newton (extra `newton`), beside Newton's own Featherstone solver on the CPU with the substeps of the
ground truth. Quick runs leave that out: its first step compiles for half a minute.
"""

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-nerd-inference-"))

import jax
import mujoco
import numpy as np
from _form import Check, Result, at_least, at_most, run
from mujoco import rollout

import flexor as fx
from flexor.nerd import Nerd, Recipe, Sizes
from flexor.solvers.mujoco import mujoco_model

REPEATS = 3
INSIDE = ("learned inside Newton, steps/s", "Newton's Featherstone, steps/s")


def best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def starts(recipe: Recipe, model: fx.Model, batch: int) -> tuple[Any, Any]:
    """Random states of the recipe."""
    return jax.jit(jax.vmap(lambda k: recipe.ranges.draw(model, k)))(jax.random.split(jax.random.key(0), batch))


def rolled(sim: fx.Simulator, q: Any, qd: Any, steps: int) -> float:
    """Robot steps per second of batched rollouts."""
    last = jax.jit(jax.vmap(lambda q, qd: sim.rollout(sim.reset(q, qd), steps=steps).q[-1]))
    return len(q) * steps / best(lambda: last(q, qd).block_until_ready())


def by_mujoco(model: fx.Model, q: np.ndarray, qd: np.ndarray, steps: int, dt: float, substeps: int) -> float:
    """Robot steps per second of MuJoCo's C code on all cores, with as many substeps."""
    m = mujoco_model(model)
    m.opt.timestep, m.opt.integrator = dt / substeps, mujoco.mjtIntegrator.mjINT_EULER
    start = np.concatenate([np.zeros((len(q), 1)), q, qd], axis=1)
    threads = os.cpu_count() or 1
    datas = [mujoco.MjData(m) for _ in range(threads)]
    control = np.zeros((len(q), steps * substeps, m.nu))
    with rollout.Rollout(nthread=threads) as pool:
        return len(q) * steps / best(lambda: pool.rollout(m, datas, start, control))


def by_torch(sizes: Sizes, n_in: int, n_out: int, batch: int, steps: int) -> float:
    """Robot steps per second of the network alone in PyTorch, the whole window of every robot in every step."""
    import torch
    from torch import nn

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(sizes.width, bias=False), nn.LayerNorm(sizes.width, bias=False)
            self.qkv, self.out = (nn.Linear(sizes.width, k * sizes.width, bias=False) for k in (3, 1))
            self.up = nn.Linear(sizes.width, 4 * sizes.width, bias=False)
            self.down = nn.Linear(4 * sizes.width, sizes.width, bias=False)

        def forward(self, x: Any) -> Any:
            b, t, w = x.shape
            q, k, v = (
                z.view(b, t, sizes.heads, w // sizes.heads).transpose(1, 2) for z in self.qkv(self.first(x)).split(w, dim=2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
            return x + self.down(nn.functional.gelu(self.up(self.second(x)), approximate="tanh"))

    layers = [Block() for _ in range(sizes.layers)]
    head = [nn.Linear(sizes.width, sizes.head_width), nn.GELU(), nn.Linear(sizes.head_width, n_out)]
    net = nn.Sequential(nn.Linear(n_in, sizes.width, bias=False), *layers, nn.LayerNorm(sizes.width, bias=False)).eval()
    last = nn.Sequential(*head).eval()
    window = torch.randn(batch, sizes.history, n_in)

    def work() -> None:
        with torch.inference_mode():
            for _ in range(steps):
                last(net(window)[:, -1])

    return batch * steps / best(work)


def in_newton(nerd: Nerd, q: np.ndarray, qd: np.ndarray, steps: int, substeps: int) -> tuple[float, float, float]:
    """World steps per second inside Newton on the CPU: by the learned solver, and by Newton's Featherstone solver in so many
    substeps; and how far the learned one ends from flexor's own rollouts."""
    import newton
    import warp

    from flexor.plugins.newton import FlexorSolver

    warp.config.quiet = True  # type: ignore[attr-defined]
    one, many = newton.ModelBuilder(), newton.ModelBuilder()
    one.add_mjcf(fx.robots.find(nerd.model.topology.name).read_text(encoding="utf-8"))
    many.replicate(one, len(q))
    model = many.finalize(device="cpu")
    ours = FlexorSolver(model, nerd.solver(), robot=nerd.model)
    control, ends = model.control(), []

    def moved(solver: Any, substeps: int) -> None:
        state, other = model.state(), model.state()
        joint_q, joint_qd = state.joint_q.numpy(), state.joint_qd.numpy()
        ours.layout.to_newton(q, qd, joint_q, joint_qd)
        state.joint_q.assign(joint_q)
        state.joint_qd.assign(joint_qd)
        newton.eval_fk(model, state.joint_q, state.joint_qd, state)
        for _ in range(steps * substeps):
            solver.step(state, other, control, None, nerd.dt / substeps)
            state, other = other, state
        ends.append(ours.layout.from_newton(state.joint_q.numpy(), state.joint_qd.numpy())[0])

    learned = len(q) * steps / best(lambda: moved(ours, 1))
    end, sim = ends[-1], nerd.simulator()
    own = jax.jit(jax.vmap(lambda q, qd: sim.rollout(sim.reset(q, qd), steps=steps).q[-1]))(q, qd)
    theirs = newton.solvers.SolverFeatherstone(model)
    return learned, len(q) * steps / best(lambda: moved(theirs, substeps)), float(np.abs(end - np.asarray(own)).max())


def cached_apart(nerd: Nerd) -> float:
    """Largest difference of a prediction from a cached window and from the whole window, over the largest prediction."""
    net = jax.tree.map(lambda w: w[0] if isinstance(w, jax.Array) else w, nerd.network)
    x = net.norms.x_mean + net.norms.x_std * jax.random.normal(jax.random.key(1), (25, len(nerd.frames.labels)))
    whole = jax.jit(lambda x: net.sequence(x))(x)
    _, steps = jax.lax.scan(lambda cache, row: net.step(row, cache)[::-1], net.begin(), x)
    return float(np.abs(steps - whole).max() / np.abs(whole).max())


def measure(quick: bool) -> Result:
    torch = importlib.util.find_spec("torch") is not None
    newton = importlib.util.find_spec("newton") is not None and not quick
    rows, checks = [], list[Check]()
    for name in ("cartpole",) if quick else ("cartpole", "ant"):
        nerd: Nerd = fx.nerd.load(name)
        recipe, true = Recipe.of(nerd.card["recipe"]), nerd.true_simulator()
        apart = cached_apart(nerd)
        checks.append(at_most(f"{name}: cached window against whole window", apart, 1e-4))
        for batch in (64,) if quick else (64, 1024):
            steps = 10 if quick else 50
            q, qd = starts(recipe, nerd.model, batch)
            row: dict[str, Any] = {"robot": name, "batch": batch, "learned, steps/s": rolled(nerd.simulator(), q, qd, steps)}
            if torch:
                sizes = nerd.network.sizes
                assert isinstance(sizes, Sizes)
                row["PyTorch, steps/s"] = by_torch(
                    sizes, len(nerd.frames.labels), nerd.frames.outputs, batch, min(steps, 10)
                )
                ratio = row["learned, steps/s"] / row["PyTorch, steps/s"]
                row["learned over PyTorch"] = round(ratio, 2)
                checks.append(at_least(f"{name}, {batch} robots: learned over PyTorch", ratio, 3, timed=True))
            row["analytic, steps/s"] = rolled(true, q, qd, steps)
            row["MuJoCo, steps/s"] = by_mujoco(nerd.model, np.asarray(q), np.asarray(qd), steps, recipe.dt, recipe.substeps)
            row |= dict.fromkeys(INSIDE, "-")
            if newton and name == "cartpole":
                *rates, apart = in_newton(nerd, np.asarray(q), np.asarray(qd), steps, recipe.substeps)
                row |= dict(zip(INSIDE, rates, strict=True))
                checks.append(
                    at_most(f"{name}, {batch} worlds inside Newton: apart from flexor's own rollouts", apart, 1e-3)
                )
            rows.append({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()})
    remarks = ["Analytic and MuJoCo take the ground truth's substeps within each step."]
    if not newton:
        remarks.append("Nothing was run inside Newton: this is a quick run, or Newton is not installed.")
    if not torch:
        remarks.append("PyTorch is not installed (pip install torch==2.13.0): no comparison was made.")
        checks.extend([] if quick else [Check("learned over PyTorch", "not measured", ">= 3", False)])
    return Result(rows, checks, remarks)


if __name__ == "__main__":
    run("Is a learned step with its cached window faster than one that recomputes the window?", measure)
