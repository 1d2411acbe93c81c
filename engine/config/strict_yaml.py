"""YAML without its traps, for configurations that may come from elsewhere."""

import re
from typing import Any

import yaml

from data_tools.validation import one_line
from engine.options import UserError

_INT_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# Far beyond any configuration.
_MAX_DEPTH, _MAX_DIGITS = 50, 30


class _StrictLoader(yaml.SafeLoader):
    """YAML without its traps.

    Refuses duplicate keys (YAML would silently use the last one); aliases, which can expand a few lines to gigabytes; deep
    nesting; and numbers beyond 64 bits. Numbers have only one form: ``1:30`` is not 90, and ``010`` is not 8.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, f"aliases are not supported: write the value instead of *{event.anchor}", event.start_mark
            )
        self._depth = getattr(self, "_depth", 0) + 1
        if self._depth > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {_MAX_DEPTH} levels", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(self.construct_scalar(node)) if len(node.value) <= _MAX_DIGITS else 2**64
        if not -(2**63) <= value < 2**63:
            raise yaml.constructor.ConstructorError(None, None, "the number does not fit into 64 bits", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not a string", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_INT_TAG, _FLOAT_TAG}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(_INT_TAG, re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_StrictLoader.add_implicit_resolver(
    _FLOAT_TAG, re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)
_StrictLoader.add_constructor(_INT_TAG, _StrictLoader.construct_yaml_int)


def parse_yaml(text: str, source: str) -> Any:
    """Parses YAML into plain values.

    Args:
        text: the text.
        source: what it was read from, for errors.

    Raises:
        UserError: one line that says where the mistake is.
    """
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 -- a SafeLoader, only stricter
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise UserError(f"{source}: not valid YAML: {one_line(error)}") from None
