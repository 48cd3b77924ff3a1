"""Small scenes for contact tests."""

import flexor as fx

BALL = """<mujoco model="ball"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="0.8"/>
  <body name="ball" pos="0 0 0.1"><freejoint name="root"/><geom name="ball" size="0.1" mass="1.3" friction="0.8"/></body>
</worldbody></mujoco>"""

BLOCK = """<mujoco model="block"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="0.3"/>
  <body name="block" pos="0 0 0.1"><freejoint name="root"/>
    <geom name="block" type="box" size="0.2 0.15 0.1" mass="1.5" friction="0.3"/></body>
</worldbody></mujoco>"""

WHEEL = """<mujoco model="wheel"><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>
  <body name="wheel"><joint name="axle" axis="0 0 1" frictionloss="0.2" range="-100 3" limited="true"/>
    <inertial pos="0 0 0" mass="1" diaginertia="0.1 0.1 0.1"/></body>
</worldbody></mujoco>"""


def simulator(text: str, contact: object = None, *, dt: float = 1e-3, **parameters: object) -> fx.Simulator:
    """A simulator of the scene with NCP contact, or the given one, and parameters set by pattern."""
    model = fx.load(text)
    if parameters:
        model = fx.replace(model, parameters)
    return fx.Simulator(model, fx.RigidSolver(fx.NCP() if contact is None else contact), dt=dt)
