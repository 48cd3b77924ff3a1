"""The suite's own checker of shapes sees what annotations promise, and leaves alone what they do not speak of."""

import jaxtyping
import numpy as np
import pytest

from flexor.dynamics.frames import frame_pose
from flexor.robots import load
from flexor.simd.program import Program


def test_shapes_that_annotations_forbid_are_errors():
    model = load("cartpole")
    with pytest.raises(jaxtyping.TypeCheckError, match="q"):
        frame_pose(model, np.zeros((2, 2)), "cart")


def test_functions_without_arrays_are_as_they_were_written():
    assert not hasattr(Program.node, "__wrapped__")
    assert hasattr(frame_pose, "__wrapped__")
