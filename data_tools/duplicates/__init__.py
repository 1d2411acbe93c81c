"""Crops that occur more than once, within a dataset and across datasets.

hashes.py        hashes of the signals of a dataset, by which a build leaves out what another dataset contains
fingerprints.py  fingerprints that shifted and rescaled copies share
comparison.py    the similarity of two crops, whatever their shift and scale
search.py        finds exact and near duplicates
"""
