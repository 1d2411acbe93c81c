"""A cohort of simulated patients, written as real WFDB files in the layout of PhysioNet 2021.

heart.py      the three-dimensional heart vector: waves, anatomy, conduction, projection to the leads
rhythms.py    when the heart beats: sinus rhythm, atrial fibrillation, premature beats
patients.py   who is in the cohort: conditions, age, sex, and the plan of each recording
signal.py     one recording: beats, breathing, noise, 12 leads in microvolt
wfdb_files.py the `.mat` and `.hea` of one recording
cohort.py     the whole cohort, on any number of processes
"""

from data_tools.synthetic.cohort import CohortSummary, write_cohort

__all__ = ["CohortSummary", "write_cohort"]
