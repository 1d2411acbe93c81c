"""Only engine/interop/torch_files.py unpickles, with ``weights_only=True``: a file that someone hands over never runs code.

(Ranks and worker processes of one run exchange Python objects, which are pickled; these come from the run itself.)
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("engine", "data_tools") for path in (ROOT / package).rglob("*.py"))
THE_ONE_PLACE = ROOT / "engine" / "interop" / "torch_files.py"

PICKLING_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
# Calls that unpickle, by the end of the called name; DeepSpeed's and PyTorch's loaders among them.
UNPICKLING_CALLS = re.compile(
    r"(\btorch\.load|\bjit\.load|\bload_checkpoint|\bread_pickle|\bUnpickler|\bload_module_state_dict|\bhub\.load\w*|\bdcp\.load)$"
)


def find_unpickling(source: str) -> list[str]:
    """Returns what a file uses that unpickles."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.split(".")[0] in PICKLING_MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if module.split(".")[0] in PICKLING_MODULES else []
                found += [name for alias in names if UNPICKLING_CALLS.search(name := f"{module}.{alias.name}")]
            case ast.Call(func=func, keywords=keywords):
                called, given = ast.unparse(func), {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                is_unsafe_yaml = called == "yaml.load" and not re.search(r"(Strict|Safe)Loader\b", ast.unparse(node))
                if UNPICKLING_CALLS.search(called) or given.get("allow_pickle", "False") != "False" or is_unsafe_yaml:
                    found.append(called)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_unpickles(path: Path) -> None:
    if path == THE_ONE_PLACE:
        assert find_unpickling(path.read_text()) == ["pickle", "torch.load"]
        assert "weights_only=True" in path.read_text()
    else:
        assert find_unpickling(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "engine.load_checkpoint(folder)",
        "pd.read_pickle(path)",
        "yaml.load(text, yaml.Loader)",
        "torch.jit.load(path)",
    ],
)
def test_unpickling_is_found(source: str) -> None:
    assert find_unpickling(source)
