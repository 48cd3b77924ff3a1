"""How the program talks: tables at any width, lines where there is no terminal, Ctrl-C."""

import io
import subprocess
import sys
import threading

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flexor.cli import app as program
from flexor.cli import console

NAMES = ["left_front_knee_flexion_extension_joint", "panda_finger_joint1"]


def printed(width):
    to = Console(file=io.StringIO(), width=width)
    to.print(
        console.table(
            "Title", ["name", ">mass", "where", ">y", "z"], [[n, 1.5, "a long description", 2.0, "end"] for n in NAMES]
        )
    )
    return to.file.getvalue()


@pytest.mark.parametrize("width", [60, 70, 80, 200])
def test_no_cell_is_broken(width):
    text = printed(width)
    parts = text.strip().split("\n\n")
    for name in NAMES:
        assert sum(name in line for line in text.splitlines()) == len(parts)  # once in each part
    assert text.count("a long description") == 2
    assert (len(parts) == 1) is (width == 200 or width == 80)
    assert max(map(len, text.splitlines())) <= width


def test_what_cannot_fit_is_folded_not_cut():
    text = "".join(printed(30).split())
    for name in NAMES:
        assert name[:20] in text
    assert "…" not in text


def test_waiting_is_told_in_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(console, "LINE_EVERY", 0.01)
    monkeypatch.setattr(console, "SHORT", 0.0)
    ticked = threading.Event()
    line = console._Ticker._line
    monkeypatch.setattr(console._Ticker, "_line", lambda self, text: (line(self, text), " 3 of 9" in text and ticked.set()))
    with console.progress("working, hard", 9) as advance:
        advance(3)
        assert ticked.wait(60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "working, hard …"
    assert lines[1].startswith("working … ")
    assert lines[-1].startswith("working: done in")


def test_work_in_a_thread_returns_and_raises():
    assert console.interruptible(lambda: 3) == 3
    with pytest.raises(KeyError, match="x"):
        console.interruptible(lambda: {}["x"])


def test_ctrl_c_is_one_sentence_and_status_130(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("flexor.cli.loading.load", interrupted)
    result = CliRunner().invoke(program.app, ["info", "cube"])
    assert result.exit_code == 130
    assert result.stderr.split("flexor: ")[1].startswith("interrupted")
    assert "Traceback" not in result.stderr


def test_ctrl_c_does_not_wait_for_what_cannot_be_interrupted():
    """The worker below sleeps in C for an hour; the interrupted program ends all the same."""
    code = """
import ctypes, threading, time, _thread
from flexor.cli import app, console
started = threading.Event()
def work():
    started.set()
    ctypes.CDLL(None).sleep(3600)
def certify(self):
    threading.Thread(target=lambda: (started.wait(), _thread.interrupt_main()), daemon=True).start()
    console.interruptible(work)
import flexor.cli.loading
flexor.cli.loading.Robot.load = certify
app.main()
"""
    done = subprocess.run([sys.executable, "-c", code, "info", "cube"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
