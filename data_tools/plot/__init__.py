"""Drawings: ECG paper, and a crop on it."""
