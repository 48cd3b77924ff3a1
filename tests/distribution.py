"""Installs the wheel of a folder into an environment of its own, as a user does, and tries it without the repository.

`make dist` builds the source archive, the wheel from that archive, and runs this. Every file that git tracks under flexor/ must
be in the wheel, and what is installed must load robots and artefacts, step, and answer on the command line.
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRIAL = """
import sys
from pathlib import Path
import jax.numpy as jnp
import numpy as np
import flexor as fx

assert Path(fx.__file__).is_relative_to(sys.prefix), fx.__file__
sim = fx.Simulator(fx.load("quadruped"), dt=0.005)
assert jnp.isfinite(sim.rollout(sim.reset(), steps=10).q).all()
nerd = fx.nerd.load("cartpole")
learned = fx.Simulator(nerd.model, nerd.solver(), dt=nerd.frames.dt)
assert jnp.isfinite(learned.rollout(learned.reset(), steps=10).q).all()
assert fx.learn.load("cartpole")(np.zeros(4, np.float32)).shape == (1,)
print(fx.__version__)
"""


def missing(wheel: Path) -> list[str]:
    """Files of the package that git tracks and the wheel lacks."""
    tracked = subprocess.run(["git", "ls-files", "flexor"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with zipfile.ZipFile(wheel) as archive:
        return sorted(set(tracked.split()) - set(archive.namelist()))


def try_out(wheel: Path, folder: Path) -> str:
    """The version that the installed package tells, after it has done some work."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, str(wheel)]
    subprocess.run(install, cwd=folder, check=True)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", TRIAL], cwd=folder, env=alone, check=True, stdout=subprocess.PIPE, text=True)
    told = subprocess.run(
        [python.parent / "flexor", "info", "quadruped"], cwd=folder, env=alone, check=True, stdout=subprocess.PIPE
    )
    assert b"quadruped" in told.stdout
    return done.stdout.strip()


def main(folder: Path) -> None:
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    absent = missing(wheel)
    if absent:
        raise SystemExit(f"{wheel.name} lacks {', '.join(absent)}.")
    with tempfile.TemporaryDirectory() as place:
        version = try_out(wheel, Path(place))
    sys.stdout.write(f"{wheel.name} and {archive.name}: flexor {version} works in an environment of its own\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
