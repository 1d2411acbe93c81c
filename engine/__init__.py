"""Training: models, objectives, loaders and the DeepSpeed trainer."""

import engine.launcher  # noqa: F401 -- records the launcher before anything that takes time
