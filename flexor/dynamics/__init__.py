"""Rigid-body dynamics of one robot at one instant: pure functions of `Model`, coordinates and velocities."""

from flexor.dynamics.aba import aba
from flexor.dynamics.activation import activation_rate, next_activation
from flexor.dynamics.actuators import actuator_forces, actuator_lengths, actuator_moment
from flexor.dynamics.crba import crba
from flexor.dynamics.energy import (
    centre_of_mass,
    centroidal_momentum,
    centroidal_momentum_matrix,
    kinetic_energy,
    potential_energy,
    total_mass,
)
from flexor.dynamics.fluid import fluid_wrenches
from flexor.dynamics.forces import actuator_force, gravity_compensation, passive_force
from flexor.dynamics.frames import frame_jacobian, frame_pose, frame_velocity, frames
from flexor.dynamics.integrate import difference, displacement_rate, integrate
from flexor.dynamics.jacobians import body_jacobian, point_jacobian
from flexor.dynamics.kinematics import Kinematics, body_poses, body_velocities, forward_kinematics
from flexor.dynamics.random_state import random_state
from flexor.dynamics.regressor import (
    inertial_names,
    inertial_parameters,
    momentum_rate_regressor,
    momentum_regressor,
    torque_regressor,
    with_inertial_parameters,
)
from flexor.dynamics.rnea import bias_force, gravity_force, rnea
from flexor.dynamics.sensors import read_sensors, sensors
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths

__all__ = [
    "Kinematics",
    "aba",
    "activation_rate",
    "actuator_force",
    "actuator_forces",
    "actuator_lengths",
    "actuator_moment",
    "bias_force",
    "body_jacobian",
    "body_poses",
    "body_velocities",
    "centre_of_mass",
    "centroidal_momentum",
    "centroidal_momentum_matrix",
    "crba",
    "difference",
    "displacement_rate",
    "fluid_wrenches",
    "forward_kinematics",
    "frame_jacobian",
    "frame_pose",
    "frame_velocity",
    "frames",
    "gravity_compensation",
    "gravity_force",
    "inertial_names",
    "inertial_parameters",
    "integrate",
    "kinetic_energy",
    "momentum_rate_regressor",
    "momentum_regressor",
    "next_activation",
    "passive_force",
    "point_jacobian",
    "potential_energy",
    "random_state",
    "read_sensors",
    "rnea",
    "sensors",
    "tendon_jacobian",
    "tendon_lengths",
    "torque_regressor",
    "total_mass",
    "with_inertial_parameters",
]
