"""Which geoms may touch, against what MuJoCo's own collision detection lets through."""

import mujoco
import numpy as np
import pytest

from flexor.model.load import load


def random_tree(rng: np.random.Generator) -> str:
    """Spheres that all overlap, on a random tree of moving and welded bodies, with random collision bits and exclusions."""
    parents = [-1] + [int(rng.integers(-1, i)) for i in range(1, 9)]
    children = {p: [i for i, q in enumerate(parents) if q == p] for p in range(-1, 9)}

    def body(i: int) -> str:
        moving = '<joint type="slide" axis="1 0 0"/>' if rng.random() < 0.6 else ""
        bits = f'contype="{rng.integers(0, 4)}" conaffinity="{rng.integers(0, 4)}" priority="{rng.integers(0, 2)}"'
        shape = f'friction="{rng.random()}" condim="{rng.choice([1, 3])}"'
        geom = f'<geom name="g{i}" size="1" pos="{0.01 * i} 0 0" {bits} {shape}/>'
        return f'<body name="b{i}">{moving}{geom}{"".join(map(body, children[i]))}</body>'

    bodies = "".join(map(body, children[-1]))
    exclude = '<exclude body1="b0" body2="b5"/><exclude body1="b3" body2="b8"/>'
    pair = '<pair geom1="g2" geom2="g7" friction="0.3 0.3 0 0 0" condim="3"/>' if rng.random() < 0.5 else ""
    flags = "" if rng.random() < 0.7 else '<option><flag filterparent="disable"/></option>'
    world = '<geom name="w" size="1" pos="0.2 0 0"/>'
    return f"<mujoco>{flags}<worldbody>{world}{bodies}</worldbody><contact>{exclude}{pair}</contact></mujoco>"


@pytest.mark.parametrize("seed", range(20))
def test_pairs_friction_and_condim_are_mujocos(seed):
    text = random_tree(np.random.default_rng(seed))
    m = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(m)
    mujoco.mj_forward(m, data)
    expected = {frozenset((m.geom(c.geom1).name, m.geom(c.geom2).name)): (c.friction[0], c.dim) for c in data.contact}
    model = load(text)
    t = model.topology
    found = {}
    for pair, mu in zip(t.pairs, np.asarray(model.pairs.friction), strict=True):
        found[frozenset(pair.name.split("~"))] = (
            max(mu, 1e-5),
            pair.condim,
        )  # 1e-5: MuJoCo's least friction
    static = {g.name for g in t.geoms if m.body_weldid[g.body] == 0}
    expected = {names: value for names, value in expected.items() if not names <= static}
    assert found == pytest.approx(expected) if not expected else set(found) == set(expected)
    for names, (mu, dim) in expected.items():
        assert found[names] == (pytest.approx(mu), dim)


def test_pairs_stand_in_the_order_of_shapes():
    text = """<mujoco><worldbody><body name="a"><freejoint/><geom name="box" type="box" size="1 1 1"/></body>
    <body name="b"><freejoint/><geom name="ball" size="1"/></body><geom name="floor" type="plane" size="1 1 1"/>
    <geom name="wall" type="plane" size="1 1 1"/></worldbody></mujoco>"""
    names = [p.name for p in load(text).topology.pairs]
    assert sorted(names) == ["ball~box", "floor~ball", "floor~box", "wall~ball", "wall~box"]
    assert [p.name for p in load(text, self_collision=False).topology.pairs] == [n for n in names if n != "ball~box"]
