"""Hosts for tests of runs on several machines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A network namespace with an address of its own.

    Attributes:
        name: of the namespace.
        address: its IPv4 address.
        interface: its network interface.
    """

    name: str
    address: str
    interface: str

    @property
    def prefix(self) -> list[str]:
        """Words before a command that runs it on this host."""
        return ["ip", "netns", "exec", self.name]
