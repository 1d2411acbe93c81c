"""Corpus -> dataset: find the recordings, stage their crops, plan splits and order, write shards; here or on Dask."""

from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.build.summary import BuildSummary

__all__ = ["BuildError", "BuildOptions", "BuildSummary", "build_dataset"]
