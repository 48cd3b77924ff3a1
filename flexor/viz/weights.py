"""Input weights of networks before and after discovery, as in Figure 10 of Heiden et al. 2021."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from flexor.viz.plots import styled

Weights = Mapping[str, Mapping[str, np.ndarray]]


def draw_input_weights(before: Weights, after: Weights) -> Figure:
    """One panel for each network and each of the two times: hidden units by inputs, white where a weight is exactly zero."""
    with styled():
        figure = Figure(figsize=(3.2 * len(before) + 1, 5.6), layout="constrained")
        axes = figure.subplots(2, len(before), squeeze=False)
    for row, (title, weights) in enumerate((("before", before), ("after", after))):
        for column, (network, named) in enumerate(weights.items()):
            ax = axes[row, column]
            table = np.concatenate(list(named.values()), axis=1)
            size = np.abs(table).max() or 1.0
            shown = np.ma.masked_where(table == 0, table)
            ax.imshow(shown, cmap="RdBu_r", vmin=-size, vmax=size, aspect="auto", interpolation="nearest")
            edges = np.cumsum([0] + [w.shape[1] for w in named.values()])
            ax.set_xticks(
                (edges[:-1] + edges[1:] - 1) / 2, [n.removeprefix("joint.") for n in named], rotation=45, ha="right"
            )
            for edge in edges[1:-1]:
                ax.axvline(edge - 0.5, color="0.7", linewidth=0.8)
            ax.grid(False)
            ax.set_title(f"{network.removeprefix('joint.')}, {title}", fontsize=9)
            ax.set_ylabel("hidden unit" if column == 0 else "")
    return figure
