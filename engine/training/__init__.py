"""Joins model, objective and data: the trainer, its checkpoints, its figures and where they go."""
