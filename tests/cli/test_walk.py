"""`flexor walk`: what it writes and prints, and its sentences."""

from tests.cli.test_cli import flexor, sentence


def test_a_walk_is_written_and_told(tmp_path):
    done = flexor("walk", "quadruped", "--command", "0.3", "0", "0", "--seconds", "1", "--html", str(tmp_path / "walk.html"))
    assert "trot for 1 s" in done.stdout
    assert "forwards, m/s" in done.stdout
    assert "fell" not in done.stdout
    assert (tmp_path / "walk.html").stat().st_size > 10_000


def test_robots_and_commands_that_do_not_fit_are_sentences():
    assert "cannot follow the command [9.0, 0.0, 0.0]" in sentence("walk", "quadruped", "--command", "9", "0", "0")
    assert "for the bundled quadruped at a trot" in sentence("walk", "quadruped", "--gait", "pace", "--forces", "network")
    assert "has no feet" in sentence("walk", "ant")
