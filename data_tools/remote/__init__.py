"""Datasets in object storage: read through a bounded cache on this machine, and uploaded.

A dataset in a bucket has a folder in the cache with its small files (manifest and tables), so that everything but the shards
is read as in any dataset. Shards are fetched in pieces of a few megabytes, when the sample order needs them: it takes blocks of
256 crops from many shards at a time, so fetching whole shards of 2,000 crops would take eight times the bytes.
"""
