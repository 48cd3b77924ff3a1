"""The one table of solvers by name."""

import equinox as eqx
import pytest

import flexor as fx
from flexor.cli.simulate import ContactName, IntegratorName
from flexor.contact.contact import AbstractContact
from flexor.contact.friction import AbstractFriction
from flexor.solvers.integrators import AbstractIntegrator
from flexor.solvers.table import CONTACTS, FRICTIONS, INTEGRATORS, SOLVERS


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("rigid", fx.RigidSolver()),
        ("ncp", fx.RigidSolver(fx.NCP())),
        ("none", fx.RigidSolver(contact=None)),
        ("mujoco", fx.MujocoSolver()),
        ({"name": "mujoco", "integrator": "rk4"}, fx.MujocoSolver("RK4")),
        ({"name": "mujoco", "substeps": 4}, fx.MujocoSolver(substeps=4)),
        ({"name": "ncp", "iterations": 9, "warm_start": False}, fx.RigidSolver(fx.NCP(iterations=9, warm_start=False))),
        ({"name": "penalty", "integrator": "rk4"}, fx.RigidSolver(fx.Penalty(), fx.RK4())),
        ({"name": "penalty", "friction": "hollars"}, fx.RigidSolver(fx.Penalty(fx.Hollars()))),
        (
            {"name": "mixed", "soft": "g~*", "penalty": {"friction": {"name": "andersson", "velocity": 0.2}}, "substeps": 4},
            fx.Substeps(fx.RigidSolver(fx.Mixed(penalty=fx.Penalty(fx.Andersson(velocity=0.2)), soft="g~*")), 4),
        ),
    ],
)
def test_names_and_options(given, wanted):
    assert eqx.tree_equal(fx.solver(given), wanted) is True


def test_options_as_keywords_go_before_those_of_the_table():
    assert eqx.tree_equal(fx.solver({"name": "penalty", "exponent": 2.0}, exponent=1.0), fx.solver("penalty", exponent=1.0))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("glue", "there is no solver 'glue'; there are rigid, ncp, penalty, mixed, none, mujoco"),
        ({"iterations": 3}, "there is no solver None; there are rigid, ncp"),
        ({"name": "ncp", "exponent": 2}, "the solver 'ncp' has no option 'exponent'; it has iterations, most, newton_steps"),
        ({"name": "mujoco", "iterations": 2}, "the solver 'mujoco' has no option 'iterations'; it has integrator, substeps"),
        ({"name": "ncp", "integrator": "heun"}, "there is no integrator 'heun'; there are euler, implicit, rk4"),
        (
            {"name": "mujoco", "integrator": "heun"},
            "integrator of mujoco 'heun'; there are euler, implicit, implicitfast, rk4",
        ),
        (
            {"name": "penalty", "friction": "wet"},
            "there is no friction law 'wet'; there are andersson, brown_mcphee, hollars",
        ),
        (
            {"name": "penalty", "friction": {"name": "hollars", "speed": 1}},
            "Hollars has no option 'speed'; it has static_ratio",
        ),
        ({"name": "ncp", "substeps": 0}, "`substeps` must be a positive number of steps, got 0"),
        ({"name": "mujoco", "substeps": 0}, "`substeps` must be a positive number of steps, got 0"),
    ],
)
def test_unknown_names_and_options_are_answered_with_what_there_is(given, text):
    with pytest.raises(ValueError) as error:
        fx.solver(given)
    assert text in str(error.value)


def test_the_table_is_complete_and_the_command_line_offers_it():
    """Whoever adds a contact model, an integrator or a friction law gives it a name here."""
    for kind, table in ((AbstractContact, CONTACTS), (AbstractFriction, FRICTIONS), (AbstractIntegrator, INTEGRATORS)):
        assert set(_concrete(kind)) == set(table.values())
    assert [str(name) for name in ContactName] == list(CONTACTS)
    assert [str(name) for name in IntegratorName] == list(INTEGRATORS)
    for name in SOLVERS:
        assert isinstance(fx.solver(name), fx.AbstractSolver)


def _concrete(kind):
    own = [c for c in kind.__subclasses__() if c.__module__.startswith("flexor.")]
    return [c for c in own if not c.__name__.startswith("Abstract")] + [d for c in own for d in _concrete(c)]
