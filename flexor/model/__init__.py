"""Robots as data: `Model`, `State`, `Control`, parameters by name, loading and saving."""
