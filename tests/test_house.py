"""The order of the house: imports go only downwards, files and functions stay short, `import flexor` stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "flexor"
# Lowest first. `certify` uses solvers and is used by nothing below the command line.
ORDER = (
    *(
        "simd",
        "files",
        "cluster",
        "spatial",
        "taps",
        "model",
        "robots",
        "dynamics",
        "contact",
        "augment",
        "solvers",
        "certify",
        "identify",
    ),
    *("nerd", "ode", "adapt", "control", "envs", "learn", "plugins", "viz", "gym", "cli"),
)
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
HEAVY = (
    "mujoco",
    "scipy",
    "llvmlite",
    "matplotlib",
    "typer",
    "rich",
    "h5py",
    "trimesh",
    "collada",
    "PIL",
    "gymnasium",
    "pinocchio",
    "optax",
    "safetensors",
    "ray",
    "flexor.adapt",
    "flexor.certify",
    "flexor.cluster",
    "flexor.envs",
    "flexor.learn",
    "flexor.identify",
    "flexor.nerd",
    "flexor.ode",
    "diffrax",
    "flexor.viz",
    "flexor.cli",
)


def part(module: str) -> str:
    """The folder or file of a module directly under flexor; empty for flexor itself."""
    return (module.split(".") + [""])[1]


def imports(path: Path) -> set[str]:
    """Modules of flexor that a file imports, at its top or inside functions, `from flexor import x` resolved to flexor.x."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute in flexor"
            found |= {f"{node.module}.{a.name}" for a in node.names} if node.module == "flexor" else {node.module}
    return {m for m in found if m.split(".")[0] == "flexor"}


def test_every_folder_has_its_place():
    parts = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} - {"__init__", "__main__"}
    assert parts <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    rank = ORDER.index(own)
    upwards = sorted(m for m in imports(path) if part(m) not in ORDER or ORDER.index(part(m)) > rank)
    assert not upwards, f"{own} may not import {upwards}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > LONGEST_FUNCTION}
    assert not long


CONTRACTS = {"AbstractSolver": ("solvers",), "AbstractContact": (), "AbstractIntegrator": ()}
"""Contracts, and the packages in which code may ask which of its classes an object is of."""


def subclasses(contract: str) -> set[str]:
    """Names of the classes under a contract."""
    bases = {}
    for path in FILES:
        for node in (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ClassDef)):
            bases[node.name] = {ast.unparse(b).split(".")[-1] for b in node.bases}
    found = {contract}
    while more := {name for name, its in bases.items() if its & found} - found:
        found |= more
    return found - {contract}  # whether something is a solver at all may be asked: it may be a name instead


def asked_for(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names of classes by which code branches: in `isinstance`, `issubclass`, comparisons of `type(x)`, patterns."""
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        for part in (x for a in asked for x in ast.walk(a)):
            if isinstance(part, ast.Name | ast.Attribute):
                yield node.lineno, part.id if isinstance(part, ast.Name) else part.attr


@pytest.mark.parametrize("contract", CONTRACTS)
def test_nothing_asks_which_solver_contact_model_or_integrator_it_holds(contract):
    names = subclasses(contract)
    assert len(names) > 3
    found = [
        f"{path.relative_to(PACKAGE)}:{line} asks for {name}"
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] not in CONTRACTS[contract]
        for line, name in asked_for(ast.parse(path.read_text(encoding="utf-8")))
        if name in names
    ]
    assert not found


def test_questions_for_a_class_are_found():
    code = "isinstance(s, fx.NCP | Mixed)\nif type(s) is Penalty: pass\nmatch s:\n    case RK4(): pass\nNCP(iterations=3)"
    assert sorted(asked_for(ast.parse(code)))[1:] == [
        (1, "NCP"),
        (1, "fx"),
        (2, "Penalty"),
        (2, "s"),
        (2, "type"),
        (4, "RK4"),
    ]


def test_the_library_does_not_print():
    for path in FILES:
        calls = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
        names = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
        assert not names & {"print", "exit", "quit"}, path


@pytest.mark.parametrize("folder", ["flexor", "tests", "benchmarks", "experiments"])
def test_lint_finds_undefined_names(folder):
    code = '''
from jaxtyping import Array, Float


def twice(q: Float[Array, " nq"], M: Float[Array, "nv nv"]) -> Float[Array, " nq"]:
    """A name that nobody defined."""
    return twise(q)
'''
    options = ["--output-format", "concise", "--stdin-filename", f"{folder}/planted.py", "-"]
    command = [sys.executable, "-m", "ruff", "check", *options]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    found = [line for line in done.stdout.splitlines() if "planted.py" in line]
    assert len(found) == 1, done.stdout + done.stderr
    assert "F821 Undefined name `twise`" in found[0]


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_import_is_light_and_leaves_jax_alone():
    code = (
        "import sys, jax; before = dict(jax.config.values)\n"
        "import flexor\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], before == dict(jax.config.values))"
    )
    assert run(code) == "[] True"


def run(code: str) -> str:
    """What a new Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_on_demand_are_listed_and_found():
    """`dir`, `from flexor import name` and an error's sentence, before anything has been used."""
    assert run("import flexor as fx; print(set(fx.__all__) <= set(dir(fx)))") == "True"
    assert run("from flexor import *; print(Log.__module__, identify.__module__, nerd.__name__)") == (
        "flexor.identify.log flexor.identify.identify flexor.nerd"
    )
    assert run("from flexor import Certificate; import pickle; print(pickle.loads(pickle.dumps(Certificate)).__name__)") == (
        "Certificate"
    )
    sentence = "module 'flexor' has no attribute 'identity'"
    assert run(f"import flexor\ntry: flexor.identity\nexcept AttributeError as e: print(str(e) == {sentence!r})") == "True"


def test_functions_keep_their_names_where_folders_share_them():
    """Python binds an imported submodule in its package; `flexor.identify` must remain the function."""
    rooms = sorted({p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} - {"__init__", "__main__"})
    lines = [*(f"import flexor.{room}" for room in rooms), "import flexor as fx, types"]
    lines += ["print(*sorted(n for n in fx.__all__ if isinstance(getattr(fx, n), types.ModuleType)))"]
    modules = "adapt cluster contact control dynamics envs learn nerd nets ode plugins simd spatial viz"
    assert run("\n".join(lines)) == modules
