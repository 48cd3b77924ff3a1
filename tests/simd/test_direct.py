"""Programs over NumPy memory, without JAX: what keeps them alive."""

import gc

import numpy as np
import pytest

import flexor as fx


@pytest.mark.parametrize("threads", [1, 2])
def test_what_runs_a_program_keeps_it_alive(threads):
    """Code and memory are freed with the last way to call them, not with the object that made them."""
    program = fx.simd.Direct(lambda x: (2 * x,), np.zeros(3, np.float32), feeds=(0,), size=64, threads=threads)
    run, (x,), (y,) = program.run, program.inputs, program.outputs
    x[:] = 1.0
    del program
    gc.collect()
    for k in range(1, 4):
        run()
        np.testing.assert_array_equal(y, 2.0**k)
