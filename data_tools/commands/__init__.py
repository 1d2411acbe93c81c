"""The commands of ``ecg-data``.

Each command imports what it needs when it runs, so that the command line starts quickly.
"""
