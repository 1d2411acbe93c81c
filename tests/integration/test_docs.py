"""The documentation, built as `make docs` does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<code>train.batch_size</code>" in (tmp_path / "configuration.html").read_text()
    # Links between folders of the repository lead to the pages of the site.
    text = (tmp_path / "fidelity.html").read_text()
    assert 'href="index.html#objectives-and-presets"' in text
    assert 'href="benchmarks/index.html#presets"' in text
