"""``ecg-data report``: one HTML page about a dataset, without scripts and without anything loaded from elsewhere.

page.py      the page
contents.py  what the dataset contains: counts, distributions, labels
sample.py    crops read from all over the dataset
measures.py  distributions of quality measures
quality.py   quality and verdicts
rejected.py  what was rejected and why, with examples on ECG paper
drawing.py   histograms, and crops on ECG paper
"""

from data_tools.report.page import make_report

__all__ = ["make_report"]
