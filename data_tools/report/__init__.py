"""``ecg-data report``: a self-contained HTML page about a dataset, without scripts.

page.py      the page
contents.py  what the dataset contains: counts, distributions, labels
sample.py    evenly spaced crops of the dataset
measures.py  distributions of quality measures
quality.py   quality and verdicts
rejected.py  what was rejected and why, with examples on ECG paper
drawing.py   histograms, and crops on ECG paper
"""

from data_tools.report.page import make_report

__all__ = ["make_report"]
