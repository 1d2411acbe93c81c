"""Joins model, objective and data: the trainer, its checkpoints, its metrics and where they go."""
