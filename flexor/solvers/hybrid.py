"""`HybridSolver`: any solver with networks among its quantities."""

from jaxtyping import Array, Float

from flexor.augment import Augmentation
from flexor.model.model import Control, Model, State
from flexor.solvers.solver import AbstractSolver, AbstractWrapper
from flexor.taps import listen


class HybridSolver(AbstractWrapper):
    """The step of `base` with an augmentation among its quantities. The weights are leaves, beside those of the model."""

    augmentation: Augmentation

    def simplified(self) -> AbstractSolver:
        base, augmentation = self.base.simplified(), self.augmentation.simplified()
        return HybridSolver(base, augmentation) if augmentation.entries else base

    def check(self, model: Model, dt: float | None) -> None:
        self.base.check(model, dt)
        self.augmentation.check(model)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        with listen(self.augmentation.handler(model)):
            return self.base.step(model, state, control, dt)


def find_augmentation(solver: AbstractSolver) -> Augmentation | None:
    """The networks among a solver's quantities, however deep it wraps them (the outermost, if several); None without."""
    while isinstance(solver, AbstractWrapper):
        if isinstance(solver, HybridSolver):
            return solver.augmentation
        solver = solver.base
    return None
