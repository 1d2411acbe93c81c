"""Corpus -> dataset: find the recordings, stage their crops, plan splits and order, write shards; here or on Dask."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["BuildError", "BuildOptions", "BuildSummary", "build_dataset"]

if TYPE_CHECKING:
    from data_tools.build.options import BuildError, BuildOptions
    from data_tools.build.pipeline import build_dataset
    from data_tools.build.summary import BuildSummary
else:
    _MODULES = {"BuildError": "options", "BuildOptions": "options", "BuildSummary": "summary", "build_dataset": "pipeline"}

    def __getattr__(name: str) -> object:
        """Imports a name when it is first used: workers import this package too, but need neither planning nor tables."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
