"""A robot with everything that makes dynamics hard, for all tests of this folder and of the solvers."""

NASTY = """<mujoco model="nasty"><compiler angle="radian"/><option gravity="0.5 -0.3 -9.81" timestep="0.002"/>
<default><geom contype="0" conaffinity="0"/></default><worldbody>
<body name="post" pos="0.3 0.1 0.2" euler="0.2 0.1 -0.4"><inertial pos="0 0 0.1" mass="3" diaginertia="0.1 0.1 0.1"/>
  <body name="arm" pos="0.1 0.2 0.3" euler="0.1 0.2 0.3">
    <joint name="a1" axis="1 1 0" pos="0.1 0 0.2" ref="0.3" springref="0.4" stiffness="3" damping="0.2" armature="0.05"/>
    <joint name="a2" type="slide" axis="0 1 2" ref="-0.2" springref="0.1" stiffness="20" damping="1.5"/>
    <joint name="a3" axis="0 0 1" pos="-0.1 0.3 0" armature="0.02"/>
    <inertial pos="0.1 0 0.05" quat="0.9 0.1 0.3 0.2" mass="2" diaginertia="0.1 0.2 0.25"/>
    <body name="plate" pos="0 0 0.2" euler="0.5 0 0.1">
      <inertial pos="0.2 0.1 0" quat="0.5 0.5 0.1 0" mass="0.5" diaginertia="0.01 0.02 0.025"/>
      <body name="wrist" pos="0 0.3 0"><joint name="w" type="ball" pos="0.02 0.03 0.1" damping="0.3" armature="0.01"
        stiffness="0.7"/>
        <inertial pos="0.05 0 0.2" mass="0.7" fullinertia="0.02 0.03 0.04 0.002 0.001 -0.003"/></body>
      <body name="finger" pos="0.3 0 0" euler="0 1 0"><joint name="f" type="slide" axis="1 0 0" damping="0.4"/>
        <inertial pos="0 0 0.1" mass="0.3" diaginertia="0.002 0.003 0.004"/></body>
    </body></body></body>
<body name="drone" pos="1 2 3" quat="0.8 0.1 0.5 0.3"><freejoint name="free"/>
  <inertial pos="0.1 0.2 0.05" quat="0.7 0.3 0.1 0.2" mass="1.5" diaginertia="0.05 0.06 0.08"/>
  <body name="tray" pos="0 0 0.2"><inertial pos="0 0 0" mass="0.2" diaginertia="0.001 0.001 0.001"/>
    <body name="tail" pos="0 0.3 0"><joint name="t" axis="1 0 0" ref="0.5" damping="0.1"/>
      <inertial pos="0 0.1 0" mass="0.2" diaginertia="0.004 0.001 0.004"/></body></body></body>
<body name="cart" pos="0 -1 0"><joint name="c" type="slide" axis="1 0 0"/>
  <inertial pos="0 0 0" mass="1" diaginertia="0.1 0.1 0.1"/></body>
</worldbody>
<actuator><motor name="m1" joint="a1" gear="3" ctrlrange="-1 1"/><position name="m2" joint="a2" kp="40" kv="3" gear="2"/>
  <velocity name="m3" joint="t" kv="0.5" forcerange="-0.2 0.3"/><motor name="m4" joint="f" ctrlrange="-2 2"/></actuator>
</mujoco>"""
"""Several joints on one body, a ball off its body's origin, a free and two fixed bases, welded bodies between joints, turned
inertial frames, armature, springs with reference and rest coordinates, and gravity along no axis."""
