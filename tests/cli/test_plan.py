"""`flexor plan`: what it writes and prints, and its sentences."""

from tests.cli.test_cli import flexor, sentence


def test_a_robot_is_brought_to_a_pose(tmp_path):
    done = flexor("plan", "double_pendulum", "--goal", "0.5,0.2", "--seconds", "0.4", "--substeps", "1",
                  "--html", str(tmp_path / "plan.html"))  # fmt: skip
    assert "converged" in done.stdout
    assert "off" not in done.stdout
    assert (tmp_path / "plan.html").stat().st_size > 10_000


def test_what_is_no_exercise_and_no_pose_are_sentences():
    assert "'quadruped' is no exercise (cartpole, acrobot" in sentence("plan", "quadruped")
    assert "--start goes with --goal" in sentence("plan", "cartpole", "--start", "hanging")
    assert "--effort goes with --goal" in sentence("plan", "cartpole", "--effort", "1")
    assert "--set goes with --goal" in sentence("plan", "cartpole", "--set", "*.mass=1")
    assert "neither a keyframe of 'cartpole' (it has upright, hanging)" in sentence("plan", "cartpole", "--goal", "up")
    assert "has 2 coordinates, got 3" in sentence("plan", "cartpole", "--goal", "1,2,3")
