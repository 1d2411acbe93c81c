"""The commands of ``ecg-data``.

Each imports what it needs when it runs, so that the command line responds at once.
"""
