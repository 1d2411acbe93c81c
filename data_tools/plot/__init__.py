"""Drawings: ECG paper, a crop on it, and the gallery of augmentations."""
