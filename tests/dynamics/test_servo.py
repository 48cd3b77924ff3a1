"""The position servo: its law point by point, and the speed that its motor settles at."""

import jax
import jax.numpy as jnp
import numpy as np

from flexor.dynamics.servo import PositionServo

SERVO = PositionServo(gain=0.16, kick=3e-4, limit=0.9, slew=5.0, stall=0.9, back=1.2)


def test_inner_goal_moves_at_the_slew_rate_and_arrives():
    inner, path = jnp.zeros(()), []
    for _ in range(60):
        inner = SERVO.follow(inner, jnp.asarray(-1.0), 0.005)
        path.append(float(inner))
    expected = -np.minimum(5.0 * 0.005 * np.arange(1, 61), 1.0)
    np.testing.assert_allclose(path, expected, atol=1e-12)  # sums of 60 equal steps


def test_duty_is_odd_proportional_and_limited():
    errors = jnp.linspace(-0.5, 0.5, 101)
    duty = jax.vmap(lambda e: SERVO.duty(e, 32.0))(errors)
    np.testing.assert_allclose(duty, -duty[::-1], atol=1e-12)
    assert float(jnp.abs(duty).max()) == 0.9
    # at an error of 0.1 rad, many corners away, the sign is 1
    np.testing.assert_allclose(SERVO.duty(jnp.asarray(0.1), 8.0), 8 * 0.16 * (0.1 + 3e-4), rtol=1e-12)


def test_motor_settles_where_back_emf_cancels_the_supply():
    qd, dt, inertia = jnp.zeros(()), 0.01, 0.05
    for _ in range(1000):  # 10 s are 240 time constants inertia / back
        qd = qd + dt / inertia * SERVO.torque(jnp.asarray(0.5), qd, supply=12.0)
    np.testing.assert_allclose(qd, 0.9 * 12 * 0.5 / 1.2, rtol=1e-12)
    assert float(SERVO.torque(jnp.asarray(0.5), qd, supply=12.0, powered=0.0)) == 0.0
