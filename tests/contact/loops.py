"""Mechanisms with closed loops."""

# A crank of 0.2 m that turns fully, a coupler of 0.4035 m and a rocker of 0.4 m on pivots 0.5 m apart, in the x-z plane. The loop
# is closed by a point in space: its row across the plane is one that nothing moves.
FOUR_BAR = """<mujoco model="four_bar"><compiler angle="radian"/><option gravity="0 0 -9.81"/><worldbody>
  <body name="crank"><joint name="crank" axis="0 -1 0" damping="0.1"/>
    <geom type="capsule" size="0.01" fromto="0 0 0 0 0 0.2" mass="0.3" contype="0"/>
    <body name="coupler" pos="0 0 0.2"><joint name="coupler" axis="0 -1 0"/>
      <geom type="capsule" size="0.01" fromto="0 0 0 0.363192 0 0.175877" mass="0.4" contype="0"/></body></body>
  <body name="rocker" pos="0.5 0 0"><joint name="rocker" axis="0 -1 0" damping="0.1"/>
    <geom type="capsule" size="0.01" fromto="0 0 0 -0.136808 0 0.375877" mass="0.3" contype="0"/></body></worldbody>
  <equality><connect name="pin" body1="coupler" body2="rocker" anchor="0.363192 0 0.175877"/></equality>
  <actuator><motor name="drive" joint="crank"/></actuator></mujoco>"""

# A leg as Cassie's: a knee with springs in shin and heel, a rod from the thigh to the heel spring (two points in space), and a
# foot moved by a crank and a rod.
LEG = """<mujoco model="leg"><compiler angle="radian"/><worldbody>
  <body name="thigh" pos="0 0 1"><joint name="hip" axis="0 -1 0" damping="0.5"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0.1 0 -0.35" mass="3" contype="0"/>
    <body name="rod" pos="0 0.03 -0.05"><joint name="rod" type="ball" damping="0.01" armature="0.001"/>
      <geom type="capsule" size="0.008" fromto="0 0 0 -0.22 0 -0.45" mass="0.15" contype="0"/></body>
    <body name="shin" pos="0.1 0 -0.35"><joint name="knee" axis="0 -1 0" damping="0.5"/>
      <joint name="shin_spring" axis="0 -1 0" stiffness="800" damping="1" armature="0.01"/>
      <geom type="capsule" size="0.025" fromto="0 0 0 -0.25 0 -0.2" mass="1" contype="0"/>
      <body name="tarsus" pos="-0.25 0 -0.2"><joint name="tarsus" axis="0 -1 0" damping="0.2"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.25 0 -0.3" mass="0.8" contype="0"/>
        <body name="heel"><joint name="heel_spring" axis="0 -1 0" stiffness="600" damping="1" armature="0.01"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 -0.07 0.03 0.05" mass="0.1" contype="0"/></body>
        <body name="lever" pos="0.02 0 -0.04"><joint name="ankle" axis="0 -1 0" damping="0.2"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 -0.05 0 -0.02" mass="0.1" contype="0"/>
          <body name="plantar" pos="-0.05 0 -0.02"><joint name="plantar" axis="0 -1 0"/>
            <geom type="capsule" size="0.006" fromto="0 0 0 0.23 0 -0.26" mass="0.1" contype="0"/></body></body>
        <body name="foot" pos="0.25 0 -0.3"><joint name="foot" axis="0 -1 0" damping="0.05"/>
          <geom type="capsule" size="0.015" fromto="-0.05 0 -0.02 0.1 0 0" mass="0.2" contype="0"/></body></body></body></body>
  </worldbody><equality><connect name="achilles" body1="rod" body2="heel" anchor="-0.22 0 -0.45"/>
  <connect name="sole" body1="plantar" body2="foot" anchor="0.23 0 -0.26"/></equality>
  <actuator><motor name="hip" joint="hip" gear="20"/><motor name="knee" joint="knee" gear="20"/>
  <motor name="ankle" joint="ankle" gear="2"/></actuator></mujoco>"""
