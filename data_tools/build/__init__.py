"""Corpus -> dataset: find the recordings, stage their crops, plan splits and order, write shards; here or on Dask.

Nothing is imported here: worker processes need neither planning nor tables.
"""
