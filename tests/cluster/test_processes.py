"""Groups of processes: all start again where one died, and end where one failed. `benchmarks/cluster.py` trains with them."""

import sys

import pytest

from flexor.cluster import join, join_as, supervise

DIES = "import os, signal, sys, time; os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1].endswith(',1') else time.sleep(60)"


def group(*codes):
    """A command whose first group runs the first code, and so on; and the groups that were started."""
    started = []

    def command(joined):
        return [sys.executable, "-S", "-c", codes[min(len(started), len(codes) - 1)], joined]

    return command, started


def test_all_start_again_where_one_was_killed():
    command, started = group(
        DIES, "import sys; sys.exit(0 if sys.argv[1].split(',')[1:] in (['2', '0'], ['2', '1']) else 1)"
    )
    assert supervise(command, 2, started=started.append) == 0
    assert len(started) == 2
    assert all(process.returncode is not None for processes in started for process in processes)


def test_restarts_are_bounded_and_errors_are_not_repeated():
    command, started = group(DIES)
    assert supervise(command, 2, restarts=1, started=started.append) == -9
    assert len(started) == 2
    command, started = group("import sys, time; sys.exit(3) if sys.argv[1].endswith(',0') else time.sleep(60)")
    assert supervise(command, 2, started=started.append) == 3
    assert len(started) == 1


@pytest.mark.parametrize("text", ["10.0.0.1,2,0", "10.0.0.1:7000", "10.0.0.1:7000,2,x"])
def test_what_to_join_is_host_port_processes_process(text):
    with pytest.raises(ValueError, match=f"HOST:PORT,PROCESSES,PROCESS.*got '{text}'"):
        join_as(text)
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        join("10.0.0.1:7000", 2, 2)
