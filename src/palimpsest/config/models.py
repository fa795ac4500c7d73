"""Where the model that a configuration names lies."""

from __future__ import annotations

from importlib.resources import files

from palimpsest.config.schema import ModelConfig

SHIPPED = {"embedded": "base-model", "embedded-tools": "tool-model"}
"""Names of the models inside the package, and their folders."""


def model_path(config: ModelConfig) -> str:
    """Folder or hub id that `config.path` stands for."""
    return named(config.path)


def named(path: str) -> str:
    """Folder or hub id that the name of a model stands for."""
    return str(files("palimpsest").joinpath("assets", SHIPPED[path])) if path in SHIPPED else path
