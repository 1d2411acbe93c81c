"""Offline tools: from ECG recordings to sharded datasets. NumPy and SciPy only, no torch."""
