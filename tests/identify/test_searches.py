"""Searches, on curves: Levenberg-Marquardt against SciPy, elimination against the dense solve, local against global."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares

import flexor as fx
from flexor.identify.identify import _polish, run_search
from flexor.identify.levenberg import FAR, LADDER, _candidate, _step, begin, iterate, proposals, schur, settle, solve
from flexor.identify.problem import Normal
from tests.identify.curves import Curve, decay, moved_wave, wave

TIME = np.linspace(0, 4, 41)
DECAY = {"a": (1.0, None), "b": (0.3, (0.01, 5.0)), "c": (0.0, None)}
TRUTH = {"a": 2.0, "b": 1.3, "c": 0.5}


def run(problem, search, seed=0, **others):
    state, history, outcome = run_search(problem, search, seed, others.get("checkpoint"), others.get("progress"))
    return search.best(problem, state)[0], history, outcome


@pytest.fixture(scope="module")
def decaying():
    return Curve(decay, DECAY, TRUTH, time=TIME)


def test_levenberg_marquardt_finds_the_minimum_of_scipy(decaying):
    z, history, outcome = run(decaying, fx.LevenbergMarquardt())
    d = jnp.zeros((1, 0))
    residuals = jax.jit(lambda z: decaying.residuals_of(z, d))
    peer = least_squares(
        lambda z: np.asarray(residuals(z)), decaying.start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    # both end where the cost, about 20 here, changes by a part in 1e8: z is known to the root of that, in deviations of 1e-2
    np.testing.assert_allclose(z, peer.x, atol=1e-5)
    assert history[-1] == pytest.approx(peer.cost, rel=1e-7)
    assert outcome.ok
    assert "converged after" in outcome.message


@pytest.mark.parametrize("starts", [False, True], ids=["given starts", "starts to estimate"])
def test_steps_by_numpy_are_those_that_jax_traces(decaying, starts):
    """A single search leaves them to numpy, a population to JAX: one text, two libraries."""
    moved = 0.1 * np.random.default_rng(1).normal(size=(4, 2))
    wave = {"w": (2.0, None), "v": (0.5, None)}, {"w": 2.5, "v": 0.7}
    problem = Curve(moved_wave, *wave, time=TIME, runs=4, starts=moved, held_out=[False] * 4) if starts else decaying
    point = jax.jit(lambda point: iterate(problem, point))(jax.device_put(begin(problem, problem.start)))
    made = proposals(problem, point, LADDER)
    forms = np.repeat([1.0, 0.0], len(LADDER))
    z, d = jax.jit(jax.vmap(lambda form, l: _candidate(problem, point, form, l)))(forms, made.damping)
    assert all(isinstance(x, np.ndarray) for x in made)
    assert d.size == (len(forms) * 8 if starts else 0)
    # systems of a condition of some thousands, solved up to five times
    np.testing.assert_allclose(made.z, z, rtol=1e-11)
    np.testing.assert_allclose(made.d, d, rtol=1e-11, atol=1e-13)


def test_a_system_without_solution_gives_no_number_rather_than_an_error():
    assert np.isnan(_step(np.full((2, 2), np.nan), np.ones(2))).all()


def test_with_starts_to_estimate_it_finds_the_minimum_of_scipy():
    moved = 0.1 * np.random.default_rng(1).normal(size=(4, 2))
    start = {"w": (2.0, None), "v": (0.5, None)}
    problem = Curve(
        moved_wave, start, {"w": 2.5, "v": 0.7}, time=TIME, runs=4, starts=moved, held_out=[False, False, True, False]
    )
    search = fx.LevenbergMarquardt(tolerance=1e-12)
    state, _, outcome = run_search(problem, search, 0, None, None)
    z, d, cost = search.best(problem, state)
    trains = np.array([0, 1, 3])

    @jax.jit
    def residuals(x):
        return problem.residuals_of(x[:2], jnp.zeros((4, 2)).at[trains].set(x[2:].reshape(3, 2)))

    peer = least_squares(
        lambda x: np.asarray(residuals(x)), np.concatenate([problem.start, np.zeros(6)]), xtol=1e-15, ftol=1e-15
    )
    assert outcome.ok
    # v and the moved velocities are told apart by the weak pull alone, so the cost and w are compared, not v
    assert float(cost) == pytest.approx(peer.cost, rel=1e-6)
    assert float(z[0]) == pytest.approx(peer.x[0], abs=1e-6)
    # the held-out run has a start of its own, found from its own data, and no say in w
    assert not np.asarray(d)[2].any()
    late = np.asarray(problem.residuals(z, jax.jit(lambda z, d: settle(problem, z, d))(z, d), problem.segments))[2]
    assert np.sqrt(np.mean(late**2)) < 1.5


def test_elimination_is_the_dense_solve():
    rng = np.random.default_rng(0)
    s, p, k, n = 5, 4, 3, 30
    Jz, Jd, r = rng.normal(size=(s, n, p)), rng.normal(size=(s, n, k)), rng.normal(size=(s, n))
    A, g = np.einsum("snp,snq->pq", Jz, Jz), np.einsum("snp,sn->p", Jz, r)
    B, C, h = np.einsum("snp,snk->spk", Jz, Jd), np.einsum("snk,snl->skl", Jd, Jd), np.einsum("snk,sn->sk", Jd, r)
    normal = Normal(*(jnp.asarray(x) for x in (0.0, r, A, g, B, C, h)))
    J = np.zeros((s * n, p + s * k))
    for i in range(s):
        rows = slice(i * n, (i + 1) * n)
        J[rows, :p], J[rows, p + i * k : p + (i + 1) * k] = Jz[i], Jd[i]
    H = J.T @ J
    for damping in (0.0, 0.1):
        step = -np.linalg.solve(H + damping * np.diag(np.diag(H)), J.T @ r.ravel())
        dz, dd = jax.jit(solve)(normal, jnp.asarray(damping))
        np.testing.assert_allclose(np.concatenate([dz, dd.ravel()]), step, rtol=1e-9, atol=1e-12)
    S, _ = jax.jit(schur)(normal, jnp.linalg.inv(normal.C), normal.A)
    np.testing.assert_allclose(np.linalg.inv(S), np.linalg.inv(H)[:p, :p], rtol=1e-9)


def test_a_damping_that_starts_at_zero_finds_its_way():
    """From zero the chart is flat: whole Gauss-Newton steps would throw the number out of the world and call that converged."""
    problem = Curve(
        lambda x, d, t: x["a"] * jnp.exp(-x["j.damping"] * t), {"a": (0.2, None), "j.damping": (0.0, None)},
        {"a": 2.0, "j.damping": 0.8}, time=TIME,
    )  # fmt: skip
    z, _, outcome = run(problem, fx.LevenbergMarquardt())
    assert float(problem.coordinates.values(z)["j.damping"]) == pytest.approx(0.8, abs=0.03)
    assert outcome.ok


def test_no_step_goes_beyond_the_charts():
    problem = Curve(decay, {"a": (1.0, None), "b": (0.3, (0.01, 0.5)), "c": (0.0, None)}, TRUTH, time=TIME)
    z, _, _ = run(problem, fx.LevenbergMarquardt())  # the truth, 1.3, lies beyond the bound
    assert 0.49 < float(problem.coordinates.values(z)["b"]) <= 0.5
    assert abs(float(z[1])) <= FAR


def test_an_infinite_start_is_said():
    problem = Curve(lambda x, d, t: jnp.log(-x["a"]) * t, {"a": (1.0, None)}, {"a": -2.0}, time=TIME)
    _, _, outcome = run(problem, fx.LevenbergMarquardt())
    assert not outcome.ok
    assert "the simulation diverges at the initial parameters" in outcome.message


def test_too_few_iterations_are_said(decaying):
    _, history, outcome = run(decaying, fx.LevenbergMarquardt(iterations=2))
    assert (outcome.done, outcome.ok, len(history)) == (True, False, 2)
    assert outcome.message == "stopped after 2 iterations without converging"


@pytest.fixture(scope="module")
def waves():
    return Curve(wave, {"w": (2.0, (1.0, 20.0))}, {"w": 11.0}, time=TIME)


def frequency(problem, z):
    return float(problem.coordinates.values(z)["w"])


def test_basin_hopping_escapes_where_a_local_search_is_stuck(waves):
    stuck, _, _ = run(waves, fx.LevenbergMarquardt())
    found, history, outcome = run(waves, fx.BasinHopping(starts=32, rounds=6))
    assert abs(frequency(waves, stuck) - 11.0) > 1.0
    assert frequency(waves, found) == pytest.approx(11.0, abs=0.02)
    assert outcome.message.startswith("the errors are down to the noise after")
    assert history == sorted(history, reverse=True)


def test_only_where_the_noise_is_known_can_it_be_met(waves):
    """Weighted by the data's own spread every curve looks good enough; that must not end the search."""
    unknown = Curve(wave, {"w": (2.0, (1.0, 20.0))}, {"w": 11.0}, time=TIME, noise_known=False)
    good = _population(waves)._replace(cost=jnp.asarray(0.5 * waves.count), rounds=jnp.asarray(1))
    assert fx.BasinHopping().outcome(waves, good).done
    assert not fx.BasinHopping().outcome(unknown, good).done


def test_polish_ends_at_the_minimum(waves):
    z = jnp.asarray(waves.coordinates.charts[0].start * 0 + np.log(10.0 / 9.0))  # w = 11, nearly
    polished, _, outcome = _polish(
        waves, z, waves.no_start(waves.segments), fx.BasinHopping().outcome(waves, _population(waves))
    )
    assert "polished in" in outcome.message
    assert frequency(waves, polished) == pytest.approx(11.0, abs=0.01)


def _population(problem):
    return fx.BasinHopping().init(problem, jnp.asarray(problem.start), jax.random.key_data(jax.random.key(0)))


def test_pagmo_finds_the_global_minimum(waves):
    pytest.importorskip("pygmo", reason="pygmo is not installed")
    found, history, outcome = run(waves, fx.Pagmo(algorithm="pso_gen", population=32, generations=15, rounds=3))
    assert frequency(waves, found) == pytest.approx(11.0, abs=0.1)
    assert len(history) == 3
    assert outcome.message == "the best of 32 members after 45 generations of pso_gen"


def test_pagmo_knows_its_algorithms(waves):
    pytest.importorskip("pygmo", reason="pygmo is not installed")
    with pytest.raises(ValueError, match="pygmo has no algorithm 'magic'"):
        run(waves, fx.Pagmo(algorithm="magic"))


@pytest.mark.parametrize("search", [fx.LBFGS(iterations=200), fx.Adam(steps=600, rate=0.05)], ids=["L-BFGS", "Adam"])
def test_first_order_searches_come_near_the_minimum(decaying, search):
    best = run(decaying, fx.LevenbergMarquardt())[1][-1]
    _, history, outcome = run(decaying, search)
    assert outcome.ok
    # the mean square of the errors of a perfect fit is one; a tenth more is a tenth of a deviation in the parameters
    assert history[-1] < 1.1 * best + 0.05 * decaying.count


def test_batches_of_segments():
    problem = Curve(decay, DECAY, TRUTH, time=TIME, runs=6)
    _, history, _ = run(problem, fx.Adam(steps=300, rate=0.05, batch=2))
    assert history[-1] < 0.05 * history[0]


def test_lbfgs_without_proximal_steps_refuses_to_pretend(decaying):
    with pytest.raises(ValueError, match="L-BFGS has no proximal step"):
        run(decaying, fx.LBFGS(penalty=fx.SparseGroupLasso(kappa=0.1)))


@pytest.mark.parametrize(
    "search",
    [fx.Adam(steps=200, block=50), fx.Pagmo(rounds=4)],
    ids=lambda s: type(s).__name__,
)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(search, tmp_path):
    if isinstance(search, fx.Pagmo):
        pytest.importorskip("pygmo", reason="pygmo is not installed")
    problem = Curve(decay, DECAY, TRUTH, time=TIME, sigma=0.3)

    def kill(done, total, cost):
        if done == 2:
            raise KeyboardInterrupt

    whole = run(problem, search)
    kept = tmp_path / "kept.npz"
    with pytest.raises(KeyboardInterrupt):
        run(problem, search, checkpoint=kept, progress=kill)
    resumed = run(problem, search, checkpoint=kept)
    np.testing.assert_array_equal(whole[0], resumed[0])
    assert whole[1:] == resumed[1:]
    assert [p.name for p in tmp_path.iterdir()] == ["kept.npz"]


def test_foreign_and_broken_checkpoints(decaying, waves, tmp_path):
    kept = tmp_path / "kept.npz"
    run(decaying, fx.LevenbergMarquardt(iterations=2), checkpoint=kept)
    for problem, search in ((waves, fx.LevenbergMarquardt(iterations=2)), (decaying, fx.LevenbergMarquardt(iterations=3))):
        with pytest.raises(ValueError, match=r"'.*kept\.npz' belongs to another run; remove it, or choose another place"):
            run(problem, search, checkpoint=kept)
    kept.write_bytes(kept.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"the checkpoint '.*kept\.npz' cannot be read .*; remove it to start again"):
        run(decaying, fx.LevenbergMarquardt(iterations=2), checkpoint=kept)
    with pytest.raises(FileNotFoundError, match=r"the folder '.*none' does not exist"):
        run(decaying, fx.LevenbergMarquardt(), checkpoint=tmp_path / "none" / "kept.npz")


def test_a_step_that_does_not_help_is_not_taken(decaying):
    """The point stays, bit for bit, when damping is so small that the step overshoots."""
    step = jax.jit(lambda p: iterate(decaying, p))
    first = step(begin(decaying, jnp.asarray(decaying.start)))
    costs = [float(first.normal.cost)]
    for _ in range(8):
        first = step(first)
        costs.append(float(first.normal.cost))
    assert costs == sorted(costs, reverse=True)


def test_pieces_of_a_population_have_the_bits_of_the_whole(monkeypatch, tmp_path):
    from flexor.cluster import Local
    from flexor.identify import search as module

    monkeypatch.setattr(module, "TOGETHER", 3)
    problem = Curve(wave, {"w": (0.5, (0.1, 6.0))}, {"w": 3.3}, time=TIME)
    hopping = fx.BasinHopping(starts=8, rounds=2, enough=0.0)
    whole, one, _ = run_search(problem, hopping, 0, None, None)
    pieces, two, _ = run_search(problem, hopping, 0, tmp_path / "checkpoint.npz", None, Local())
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one == two
    assert not (tmp_path / "checkpoint.npz.pieces").exists()


def test_only_populations_can_be_shared_out():
    from flexor.cluster import Local

    sim = fx.Simulator(fx.load("pendulum"), dt=0.01)
    log = fx.Log.of(sim.rollout(sim.reset(np.array([0.5])), steps=4))
    with pytest.raises(ValueError, match="LevenbergMarquardt has no population that an executor could share out"):
        fx.identify(sim, [log], ["*.mass"], search=fx.LevenbergMarquardt(), executor=Local(), check_units=False)


def test_a_problem_travels_as_what_it_is_made_of():
    import pickle

    from flexor.identify.problem import Problem, observe_columns
    from flexor.identify.segments import cut
    from flexor.model.charts import coordinates

    sim = fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None), dt=0.01)
    log = fx.Log.of(sim.rollout(sim.reset(np.array([0.5])), steps=9))
    place = coordinates(sim.model, ["*.mass", "*.damping"], bounds={"*.mass": (0.1, 5.0)})
    segments, _ = cut(sim, [log], fx.Shooting(horizon=0.03), np.ones((1, len(log.columns))))
    look, apart = observe_columns(sim.model, log.columns), np.arange(segments.number) == 1
    problem = Problem(
        sim, place, segments, look, None, held_out=apart, networks=False, free_start=True, prior=np.ones(place.size),
        noise_known=False,
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(problem))
    assert again.key() == problem.key()
    for a, b in zip(jax.tree.leaves(again.data), jax.tree.leaves(problem.data), strict=True):
        np.testing.assert_array_equal(a, b)
