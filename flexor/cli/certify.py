"""`flexor certify FILE`: are the derivatives of this robot right?"""

from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.loading import File, Floating, Ground, Ignore, load_robot, use_float64

COLUMNS = ("contact", "mode", "derivative to", ">value", ">reference", ">error", ">tolerance", "")
FIELDS = ("contact", "mode", "what", "value", "reference", "error", "tolerance", "holds")


def certify(
    file: File,
    floating: Floating = False,
    ground: Ground = False,
    ignore: Ignore = None,
    everything: Annotated[bool, typer.Option("--all", help="Show also derivatives that are zero in their mode.")] = False,
) -> None:
    """Compare derivatives with finite differences and closed forms in float64; exit status 1 when one is off."""
    use_float64()
    from flexor.certify import certify as run

    model = load_robot(file, floating, ground, ignore)
    with console.spinner(f"certifying the derivatives of {model.topology.name}, one compilation for each contact model"):
        certificate = run(model)
    out = console.out()
    out.print(console.table(f"Certificate of {model.topology.name}", COLUMNS, table_rows(certificate, everything)), "")
    for remark in certificate.remarks:
        out.print(f"note: {remark}", markup=False)
    out.print(verdict(certificate))
    if not certificate.ok:
        raise typer.Exit(1)


def table_rows(certificate: Any, everything: bool = False) -> list[list[Any]]:
    """The rows of a certificate; without `everything` only those that have an influence, or are off."""
    shown = [row for row in certificate.rows if everything or row.influence or not row.holds]
    return [[getattr(row, field) for field in FIELDS] for row in shown]


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
