"""Lists every message that a user may see, for proofreading: `make messages`.

    python tests/list_messages.py [FILE_OR_FOLDER ...]

One line per message: file:line, kind and text, with placeholders in braces. Kinds:

    error      message of an exception or of argparse's error()
    warning    warnings.warn() and notify()
    help       command-line help
    option     description of a configuration key
    output     print() and writes to stdout or stderr
    text       any other string of two or more words: table headers, reasons, report lines
"""

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("engine", "data_tools", "benchmarks")
_HELP_KEYWORDS = {"help", "description", "epilog", "example"}
_LETTER = re.compile("[A-Za-z]")
_SQL = re.compile("(CREATE|INSERT|PRAGMA|SELECT) ")
_TWO_WORDS = re.compile(r"[A-Za-z]{2,},? +[A-Za-z]{2,}")


class Message(NamedTuple):
    """A message in the source code."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.kind}: {self.text}"


def find_messages(path: Path) -> list[Message]:
    """Returns the messages of a Python file in the order of their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [Message(path, node.lineno, kind, text) for node, kind, text in [*_visit(tree, "text"), *_docstrings(tree)]]
    return sorted(found, key=lambda message: message.line)


def _visit(node: ast.AST, kind: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yields strings with their kind, which follows from the innermost call or ``raise`` around them."""
    if isinstance(node, ast.expr) and (text := _text(node)) is not None:
        is_message = _TWO_WORDS.search(text) and not _SQL.match(text) if kind == "text" else _LETTER.search(text)
        if is_message:
            yield node, kind, " ".join(text.split())
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Raise):
        kind = "error"
    if isinstance(node, ast.Call):
        yield from _visit_call(node, kind)
        return
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, "text" if isinstance(child, ast.stmt) else kind)


def _visit_call(node: ast.Call, kind: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    name = ast.unparse(node.func)
    inner = _call_kind(name) or ("error" if kind == "error" and not isinstance(node.func, ast.Attribute) else "text")
    if not isinstance(node.func, ast.Name):
        yield from _visit(node.func, kind)
    for argument in node.args:
        yield from _visit(argument, inner)
    for keyword in node.keywords:
        yield from _visit(keyword.value, "help" if keyword.arg in _HELP_KEYWORDS else inner if inner != "help" else "text")


def _call_kind(name: str) -> str | None:
    function = name.rpartition(".")[2]
    if function.endswith(("Error", "SystemExit")) or name.endswith("parser.error") or function == "fail":
        return "error"
    if name == "warnings.warn" or function == "notify":
        return "warning"
    return "output" if function == "print" or name.endswith(("stdout.write", "stderr.write")) else None


def _text(node: ast.expr) -> str | None:
    """Returns a string expression with placeholders in braces; ``None`` for other expressions."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        if left is not None or right is not None:
            return (left or f"{{{ast.unparse(node.left)}}}") + (right or f"{{{ast.unparse(node.right)}}}")
    return None


def _placeholder(node: ast.expr) -> str:
    return f"{{{ast.unparse(node.value)}}}" if isinstance(node, ast.FormattedValue) else ""


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yields docstrings that users see: the module's as help, and those of options in --print-config."""
    if any(isinstance(node, ast.Name) and node.id == "__doc__" for node in ast.walk(tree)):
        yield tree.body[0], "help", " ".join((ast.get_docstring(tree) or "").split())
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for field, docstring in zip(owner.body, owner.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(docstring, ast.Expr)
                and isinstance(docstring.value, ast.Constant)
            ):
                text = " ".join(str(docstring.value.value).split())
                yield docstring, "option", f"{ast.unparse(field.target)}: {text}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / name for name in FOLDERS], metavar="FILE_OR_FOLDER")
    for path in parser.parse_args(arguments).paths:
        for file in sorted(path.resolve().rglob("*.py")) if path.is_dir() else [path.resolve()]:
            for message in find_messages(file):
                print(message)


if __name__ == "__main__":
    main()
