"""Many recipes, or one from many seeds: data sets sampled, and a network trained for each, by an executor."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from flexor.cluster import AbstractExecutor, Arrays, Local, Work, results
from flexor.files import digest, write_whole
from flexor.nerd.artefact import Nerd, load
from flexor.nerd.data import model_hash
from flexor.nerd.recipe import Recipe

Progress = Callable[[str, int, int], None]


def with_seeds(recipes: Mapping[str, Recipe], seeds: Sequence[int]) -> dict[str, Recipe]:
    """Each recipe once for each seed of the training, named `NAME-seed3`: trained alone, they are an ensemble."""
    return {
        f"{name}-seed{seed}": dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, seed=seed))
        for name, recipe in recipes.items()
        for seed in seeds
    }


def sweep(
    recipes: Mapping[str, Recipe],
    out: str | os.PathLike[str],
    *,
    executor: AbstractExecutor = Local(),
    progress: Progress | None = None,
) -> dict[str, Nerd]:
    """A learned solver for each recipe, to the bits of `Recipe.sample` and `Recipe.train`, as `out/NAME.safetensors`.

    First the data sets, each sampled by all of the executor; recipes that sample the same share one, and those that draw fresh
    data have none. Then the networks, a task
    each; their checkpoints are in `out/NAME`. All machines must share the folder. The same call after an interruption goes on.
    `progress` gets what is done ("sampling NAME", "training"), how much, and of how much.
    """
    if not recipes:
        raise ValueError("there are no recipes.")
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tell = progress or (lambda text, done, total: None)
    data = {name: folder / f"data-{_sampled(recipe)}.h5" for name, recipe in recipes.items() if not recipe.fresh}
    for name in data:
        if not data[name].is_file():
            recipes[name].sample(data[name], executor=executor, progress=partial(tell, f"sampling {name}"))
    work, found = Work(_trainer, (dict(recipes), {name: str(path) for name, path in data.items()}, str(folder))), {}
    for name, arrays in results(executor, work, {n: n for n in recipes}, progress=partial(tell, "training")):
        write_whole({folder / file: content.tobytes() for file, content in arrays.items()})
        found[name] = load(folder / f"{name}.safetensors")
    return found


def _sampled(recipe: Recipe) -> str:
    """What a recipe samples: a digest of all of it but its network and training."""
    others = ("network", "sizes", "training", "base", "reach", "fresh")
    table = {key: value for key, value in recipe.table().items() if key not in others}
    return digest(json.dumps([table, model_hash(recipe.model())], sort_keys=True, default=str).encode())[:12]


def _trainer(recipes: Mapping[str, Recipe], data: Mapping[str, str], folder: str) -> Callable[[str], Arrays]:
    """A function from the name of a recipe to the contents of the files of its network."""

    def train(name: str) -> Arrays:
        nerd = recipes[name].train(data.get(name), Path(folder) / name)
        file = nerd.save(Path(folder) / name / f"{name}.safetensors")
        return {f.name: np.frombuffer(f.read_bytes(), np.uint8) for f in (file, file.with_suffix(".json"))}

    return train
