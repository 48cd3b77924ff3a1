"""Discovery on a double pendulum whose joints rub (Heiden et al. 2021, section IV-C, Figure 10).

The simulator knows no joint friction; the reference has viscous friction, -d qd_i in joint i. Which inputs of a network on the
passive force survive the sparse group lasso? And how many transitions does the hybrid need, beside a network that must
learn the whole of the dynamics?
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Check, Result, at_least, run
from matplotlib.figure import Figure

import flexor as fx
from flexor.viz.weights import draw_input_weights

jax.config.update("jax_enable_x64", True)

DT, DAMPING, NOISE, FASTEST = 0.01, 0.05, 1e-4, 5.0
SIZES = (100, 316, 1000, 3162, 10000)
OWN = {f"joint.passive_force[{j}]": (f"joint.qd[{j}]",) for j in ("shoulder", "elbow")}


def simulator(damping: float) -> fx.Simulator:
    model = fx.replace(fx.load("double_pendulum").astype(jnp.float64), {"*.damping": damping})
    return fx.Simulator(model, fx.RigidSolver(contact=None), dt=DT)


def transitions(seed: int, count: int, noise: float = NOISE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, torques, and the states a step later under friction, measured with noise."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-np.pi, np.pi, (count, 2)), rng.uniform(-FASTEST, FASTEST, (count, 2))], axis=1)
    u = rng.uniform(-1, 1, (count, 2))
    y = np.asarray(after(simulator(DAMPING), x, u))
    return x, u, y + noise * rng.normal(size=y.shape)


def after(sim: fx.Simulator, x: Any, u: Any) -> Any:
    """The states one step after x."""

    def one(x: Any, u: Any) -> Any:
        state = sim.step(sim.reset(x[:2], x[2:]), u)
        return jnp.concatenate([state.q, state.qd])

    return jax.jit(jax.vmap(one))(jnp.asarray(x), jnp.asarray(u))


def logs(x: np.ndarray, u: np.ndarray, y: np.ndarray) -> list[fx.Log]:
    columns = ("q.shoulder", "q.elbow", "qd.shoulder", "qd.elbow")
    return [
        fx.Log(np.array([0, DT]), np.stack([a, b]), columns, c[None], start=(a[:2], a[2:]))
        for a, c, b in zip(x, u, y, strict=True)
    ]


def hybrid_error(count: int, test: Any, steps: int, seed: int) -> float:
    """Test error of the hybrid with networks that read what discovery left them, trained on `count` transitions."""
    inputs = ["joint.qd"]
    scales = {"joint.qd": FASTEST, "joint.passive_force": 0.1}
    blueprint = fx.Blueprint().add(
        "joint.passive_force", inputs=inputs, net=fx.nets.MLP(width=8, depth=1), over=fx.Each(), scales=scales
    )
    x, u, y = transitions(seed, count)
    data = logs(x, u, y)
    noise = np.std(np.asarray(after(simulator(0.0), x, u)) - y, axis=0)  # what the network has to explain
    data = [fx.Log(d.time, d.values, d.columns, d.controls, dict(zip(d.columns, noise, strict=True)), d.start) for d in data]
    search = fx.Adam(steps=steps, rate=1e-2, batch=512)
    fit = fx.identify(
        simulator(0.0).augment(blueprint, key=jax.random.key(seed)), data, ["augment"], search=search, held_out=0.0
    )
    return error_of(after(fit.sim, test[0], test[1]), test[2])


def network_error(count: int, test: Any, steps: int, seed: int) -> float:
    """Test error of a network alone: two layers of 64, from (sin q, cos q, qd, u) to the change of the state."""
    x, u, y = transitions(seed, count)

    def features(x: Any, u: Any) -> Any:
        return jnp.concatenate([jnp.sin(x[:2]), jnp.cos(x[:2]), x[2:] / FASTEST, u])

    size = np.std(y - x, axis=0)
    net = eqx.nn.MLP(8, 4, 64, 2, jax.nn.tanh, key=jax.random.key(seed), dtype=jnp.float64)
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def loss(net: Any, x: Any, u: Any, y: Any) -> Any:
        return jnp.mean((jax.vmap(net)(jax.vmap(features)(x, u)) - (y - x) / size) ** 2)

    @eqx.filter_jit
    def train(net: Any, data: Any) -> Any:
        arrays, fixed = eqx.partition(net, eqx.is_inexact_array)

        def step(carry: Any, key: Any) -> Any:
            arrays, memory = carry
            rows = jax.random.choice(key, count, (min(512, count),), replace=False)
            gradient = jax.grad(lambda a: loss(eqx.combine(a, fixed), *(d[rows] for d in data)))(arrays)
            update, memory = optimiser.update(gradient, memory)
            return (optax.apply_updates(arrays, update), memory), None

        keys = jax.random.split(jax.random.key(seed + 1), steps)
        (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), keys)
        return eqx.combine(arrays, fixed)

    net = train(net, tuple(map(jnp.asarray, (x, u, y))))
    x, u, y = test
    return error_of(x + size * np.asarray(jax.vmap(net)(jax.vmap(features)(jnp.asarray(x), jnp.asarray(u)))), y)


def error_of(predicted: Any, true: Any) -> float:
    """Mean squared error of the state."""
    return float(np.mean((np.asarray(predicted) - true) ** 2))


def measure(options: Any) -> Result:
    quick = options.quick
    seeds = 1 if quick else 10
    right, first = 0, None
    for seed in range(seeds):
        options_of = {"steps": 50, "strengths": (1.0,)} if quick else {"steps": 1000}
        found = fx.discover(simulator(0.0), logs(*transitions(seed, 300)), seed=seed, **options_of).best
        right += found.inputs == OWN
        first = first or found
    assert first is not None
    draw_input_weights(first.before, first.after).savefig(options.out / "input_weights.png", dpi=150)
    test = transitions(10_000, 2000, noise=0.0)
    sizes = SIZES[:1] if quick else SIZES
    nothing = error_of(after(simulator(0.0), test[0], test[1]), test[2])
    rows = []
    for count in sizes:
        hybrid = hybrid_error(count, test, 200 if quick else 2000, seed=1)
        alone = network_error(count, test, 200 if quick else 20_000, seed=1)
        rows.append({"transitions": count, "without a network": nothing, "hybrid": hybrid, "network alone": alone})
    draw(rows).savefig(options.out / "joint_friction.png", dpi=150)
    few, many = rows[0]["hybrid"], rows[-1]["network alone"]
    checks = [
        at_least(f"of {seeds} seeds, those in which exactly the joint's own velocity survives", right, 0.9 * seeds),
        Check(
            f"hybrid with {sizes[0]} transitions against a network with {sizes[-1]}",
            few / many,
            "< 1 of its error",
            few < many,
        ),
    ]
    return Result(
        rows, checks, ["mean squared error of the state a step later, on 2000 unseen transitions", *str(first).split("\n")]
    )


def draw(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    ax = figure.subplots()
    sizes = [r["transitions"] for r in rows]
    for name, style in (("hybrid", "o-"), ("network alone", "s-"), ("without a network", "k--")):
        ax.loglog(sizes, [r[name] for r in rows], style, label=name)
    ax.set(xlabel="training transitions", ylabel="test error (mean square)")
    ax.legend()
    return figure


if __name__ == "__main__":
    run("Which inputs does joint friction need, and how much data does the hybrid?", measure)
