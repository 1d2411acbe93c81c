"""Datasets in object storage: read through a bounded cache on this machine, and uploaded.

A dataset in a bucket has a folder in the cache with its small files (manifest and tables), so that everything but the shards
is read like that of any dataset. Shards are fetched in pieces of some megabytes, as the sample order needs them: it touches
blocks of 256 crops of many shards at a time, so whole shards of 2,000 crops would be eight times the bytes.
"""
