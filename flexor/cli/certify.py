"""`flexor certify FILE`: are the derivatives of this robot right?"""

from typing import Annotated, Any

import typer
from rich.markup import escape

from flexor.cli import console
from flexor.cli.loading import Robot, size, takes_robot, use_float64

COLUMNS = ("derivative with respect to", ">value", ">reference", ">error", ">tolerance", "")
FIELDS = ("what", "value", "reference", "error", "tolerance", "holds")


@takes_robot
def certify(
    robot: Robot,
    everything: Annotated[bool, typer.Option("--all", help="Show also derivatives that are zero in their mode.")] = False,
) -> None:
    """Compare derivatives with finite differences and closed forms in float64; exit status 1 if one is wrong."""
    use_float64()
    from flexor.certify import certify as run

    model = robot.load()
    text = f"certifying {model.topology.name}, {size(model)}: gradients are compiled for each contact model, some minutes"
    with console.spinner(text):
        certificate = console.interruptible(lambda: run(model))
    out = console.out()
    out.print(f"[bold]Certificate of {escape(model.topology.name)}[/]\n")
    for (contact, mode), rows in tables(certificate, everything).items():
        out.print(console.table(f"{contact}, {mode}", COLUMNS, rows), "")
    for remark in certificate.remarks:
        out.print(f"note: {remark}", markup=False, soft_wrap=True)
    out.print(verdict(certificate))
    if not certificate.ok:
        raise typer.Exit(1)


def tables(certificate: Any, everything: bool = False) -> dict[tuple[str, str], list[list[Any]]]:
    """Rows of the tables, by contact model and mode; without `everything` only those that have an influence, or are
    wrong."""
    found: dict[tuple[str, str], list[list[Any]]] = {}
    for row in certificate.rows:
        if everything or row.influence or not row.holds:
            found.setdefault((row.contact, row.mode), []).append([getattr(row, field) for field in FIELDS])
    return found


def verdict(certificate: Any) -> str:
    """One line on all rows, in rich's markup."""
    off, count = len(certificate.failures), sum(row.influence for row in certificate.rows)
    silent = len(certificate.rows) - count
    if off:
        return f"[bold red]{off} of {len(certificate.rows)} derivatives are off[/]"
    if not certificate.ok:
        return "[bold red]no derivative has any influence, so nothing was certified[/]"
    return f"[bold green]all {count} derivatives hold[/]" + (
        f", and {silent} more are zero as they should be" if silent else ""
    )
