"""The dataset format: manifest, tables and tar shards, each writer beside its reader."""
