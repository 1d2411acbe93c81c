"""A cohort of simulated patients, written as real WFDB files in the layout of PhysioNet 2021.

heart.py      the heart vector: waves, anatomy, conduction
rhythms.py    times of beats: sinus rhythm, atrial fibrillation, premature beats
patients.py   patients: conditions, age, sex, and the plan of each recording
signal.py     the signal of a recording: beats, breathing, noise, 12 leads in uV
wfdb_files.py the `.mat` and `.hea` of a recording
cohort.py     the cohort, written by any number of processes
"""

from data_tools.synthetic.cohort import CohortSummary, write_cohort

__all__ = ["CohortSummary", "write_cohort"]
