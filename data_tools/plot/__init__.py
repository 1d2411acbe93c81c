"""Plots of crops on ECG paper."""
