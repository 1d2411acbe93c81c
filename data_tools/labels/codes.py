"""Labels from codes, such as the SNOMED CT codes in samples.parquet.

Legend: N samples, C classes.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_tools.labels.definition import LabelDefinition, Labels


@dataclass(frozen=True)
class CodeLabeler:
    """Labels from the codes in a dataset.

    A crop without codes has no label, because nobody may have examined it. A crop whose codes belong to no class has a label:
    no class is true. Only codes of the same kind count: SNOMED CT codes are numbers, unlike the labels of other corpora.

    Attributes:
        definition: multilabel, with codes.
    """

    definition: LabelDefinition

    def label(self, samples: pa.Table) -> Labels:
        """See :class:`data_tools.labels.definition.Labeler`."""
        return encode_codes(self.definition, samples["labels"])


def encode_codes(definition: LabelDefinition, codes: pa.ChunkedArray) -> Labels:
    """Returns the labels of samples, given their codes.

    Args:
        definition: multilabel, with codes.
        codes: lists of strings, [N]; codes that the definition does not have are ignored.
    """
    assert definition.kind == "multilabel", definition.kind
    assert definition.codes is not None
    lists = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    flat = pc.list_flatten(lists)
    known = [(code, number) for number, class_codes in enumerate(definition.codes) for code in class_codes]
    class_of = np.array([number for _, number in known] + [-1])
    places = pc.index_in(flat, value_set=pa.array([code for code, _ in known], pa.string()))
    numbers: NDArray[np.int64] = class_of[pc.fill_null(places, len(known)).to_numpy(zero_copy_only=False)]
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    values = np.zeros((len(lists), len(definition.classes)), dtype=np.float32)
    values[rows[numbers >= 0], numbers[numbers >= 0]] = 1
    has_numbers = all(code.isdecimal() for code, _ in known)
    is_same_kind = pc.utf8_is_digit(flat).to_numpy(zero_copy_only=False) == has_numbers
    return Labels(definition, values, np.bincount(rows[is_same_kind], minlength=len(lists)) > 0)
