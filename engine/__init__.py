"""Training: models, objectives, loaders and the DeepSpeed trainer."""
