"""`flexor demo`: robots beside MuJoCo, an identification, an arm that adapts, learned physics, a robot that learns, certified
gradients, one page."""

import time
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.certify import verdict
from flexor.cli.loading import use_float64


def demo(
    report: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs, and no certificate.")] = False,
) -> None:
    """Simulate robots beside MuJoCo, identify one from a recording, teach one, certify gradients; report.html in two minutes."""
    use_float64()
    from flexor.cli.demo_learned import chapter as learned_chapter
    from flexor.cli.demo_page import page
    from flexor.cli.demo_pendulum import chapter
    from flexor.cli.demo_pick_up import chapter as pick_up_chapter
    from flexor.cli.demo_runs import drop, fall_checks, rest_checks, swing, swing_checks
    from flexor.cli.demo_swing_up import chapter as swing_up_chapter
    from flexor.cli.demo_walk import chapter as walk_chapter
    from flexor.robots.load import load

    if not report.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{report}': the folder '{report.parent}' does not exist.")
    start = time.perf_counter()
    # the certificate has a process of its own: it compiles on one core while the robots move on the other
    with get_context("spawn").Pool(1) as pool, console.spinner("loading robots") as tell:
        promise = None if quick else pool.apply_async(certify_cube)
        swings = swing(load("double_pendulum"), 0.5 if quick else 3.0, tell)
        dropped = drop(load("quadruped"), 0.6 if quick else 2.0, tell)
        identified = chapter(quick, tell)
        picked_up = pick_up_chapter(quick, tell)
        learned = learned_chapter(quick, tell)
        swing_up = swing_up_chapter(quick, tell)
        walks = walk_chapter(quick, tell)
        checks = [*swing_checks(swings), *fall_checks(dropped), *(() if quick else rest_checks(dropped))]
        if promise is not None:
            tell("certifying the gradients of the cube")
        certificate = None if promise is None else promise.get(timeout=1800)
        tell("writing the page")
        taken = time.perf_counter() - start
        page(swings, dropped.runs, checks, identified, picked_up, learned, swing_up, walks, certificate, taken).save(report)
    _print(checks, identified, picked_up, learned, swing_up, walks, certificate, report, time.perf_counter() - start)
    if not all(c.holds for c in checks) or (certificate is not None and not certificate.ok):
        raise typer.Exit(1)


def certify_cube() -> Any:
    """The certificate of the cube, in double precision."""
    use_float64()
    from flexor.certify import certify
    from flexor.robots.load import load

    return certify(load("cube"))


def _print(
    checks: Any,
    identified: Any,
    picked_up: Any,
    learned: Any,
    swing_up: Any,
    walks: Any,
    certificate: Any,
    report: Path,
    seconds: float,
) -> None:
    from flexor.cli.demo_pick_up import HAND

    out = console.out()
    rows = [[c.what, c.value, c.target, c.holds] for c in checks]
    out.print(console.table("Agreement with MuJoCo", ["difference", ">value", ">at most", ""], rows), "")
    after = identified.horizon
    rows = [[label, float(error[-1])] for label, error in identified.errors.items()]
    title = f"Double pendulum from {'a real' if identified.real else 'a synthetic'} recording: unseen motion"
    out.print(console.table(title, ["simulator", f">median error after {after:.2g} s (rad)"], rows), "")
    for event in picked_up.events:
        out.print(f"An arm picks up {picked_up.mass - HAND:.1f} kg at {picked_up.taken:.2f} s: {event}", "")
    q = [run.trajectory.q for run in learned]
    off = [float(abs(q[1][-1, i] - q[0][-1, i])) for i in (0, 1)]
    after = float(learned[0].trajectory.time[-1])
    out.print(
        f"Cartpole under its learned solver: after {after:.2g} s the cart is {off[0]:.2g} m and the pole {off[1]:.2g} rad off",
        "",
    )
    reached, steps = swing_up.curve[1][-1], swing_up.history[-1]["steps"]
    out.print(
        f"Cartpole that learns: return {reached:.0f} after {steps / 1e6:.2g} million steps, {swing_up.seconds:.0f} s", ""
    )
    times = ", ".join(f"{r.label} {x:.0f} µs" for r, x in zip(walks.runs, walks.planning, strict=True))
    out.print(f"Quadruped that walks, time of a control that plans: {times}", "")
    if certificate is not None:
        out.print(f"Gradients against finite differences and closed forms: {verdict(certificate)}", "")
    out.print(f"[bold]Report[/] (open it in a browser): {report.resolve()}", soft_wrap=True)
    out.print(f"took {seconds:.0f} s", "")
    out.print("[bold]Next[/]  flexor info quadruped")
    out.print("      flexor simulate quadruped --keyframe stand --html quadruped.html")
    out.print("      flexor simulate YOUR_ROBOT.urdf --floating --ground")
    out.print("      flexor certify cube")
    out.print("      flexor identify YOUR_CONFIG.toml   (docs/identify.md)")
    out.print("      flexor nerd evaluate cartpole      (docs/nerd.md)")
    out.print("      flexor play cartpole --html cartpole.html   (docs/learning.md)")
