"""Starts processes that have already imported PyTorch, DeepSpeed and the engine, which takes longer than most tests."""

import functools
import multiprocessing.forkserver
import os
from multiprocessing.context import ForkServerContext

_PRELOAD = ["deepspeed.runtime.zero.muon.muon_optimizer", "torch._dynamo", "engine.tasks", "engine.training.script"]
# Read when the modules are imported. One thread per process: the ranks of a test share the cores.
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@functools.cache
def forkserver() -> ForkServerContext:
    """Returns the context that starts processes. They are forked from a server without threads or state of any test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context
