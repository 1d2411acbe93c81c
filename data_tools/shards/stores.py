"""The table of stores: the formats of shards by name."""

from data_tools.shards.manifest import Encoding
from data_tools.shards.store import ShardStore
from data_tools.shards.tar_store import TarStore
from data_tools.shards.zarr_store import ZarrStore

STORES: dict[Encoding, type[ShardStore]] = {"tar": TarStore, "zarr": ZarrStore}
