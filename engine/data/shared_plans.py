"""The plans of a dataset, whose table one rank of each machine reads."""

from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import PlanRows, plan_splits, plans_info, read_plan
from engine.data.shared_arrays import Arrays, share_arrays

_VERSION = 1  # of what is read from the tables


def read_shared_plan(dataset: Dataset, name: str) -> PlanRows:
    """Does the same as :func:`data_tools.shards.plans.read_plan`."""
    splits = plan_splits(dataset, name)  # raises the error for an unknown plan

    def make() -> Arrays:
        rows = read_plan(dataset, name)
        return {"codes": rows.codes} | ({} if rows.segments is None else {"segments": rows.segments})

    key = ["plan", _VERSION, name, plans_info(dataset).model_dump(mode="json")]
    arrays = share_arrays(key, dataset.num_crops, make)
    return PlanRows(f"{dataset.location}: plan '{name}'", splits, arrays["codes"], arrays.get("segments"))
