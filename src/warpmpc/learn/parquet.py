"""One shard as a Parquet file, which pandas, polars, DuckDB and loaders of training data read.

A column holds one number per pair: `x_<state>`, `u_<input>`, `rollout`, `step` and, with
derivatives, `du_<input>_dx_<state>`.  Columns are not compressed, so a file is mapped into memory
and a column is read without the others.  The bytes follow from the pairs and the version of
pyarrow, which is in the manifest.
"""

from __future__ import annotations

import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.learn.errors import DataError

Names = dict[str, list[str]]
ROW_GROUP = 2**18  # pairs that a reader of a file needs in memory at least


def arrow() -> Any:
    """The module pyarrow with its submodule for Parquet."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SettingsError(
            "Data sets are Parquet files, which need pyarrow: pip install 'warpmpc[learn]', or pip "
            "install pyarrow."
        ) from error
    return pyarrow


def record_type(n_x: int, n_u: int, *, derivatives: bool) -> np.dtype[Any]:
    """One pair: state, label, the rollout that it comes from, the step; maybe du/dx."""
    fields: list[Any] = [
        ("x", np.float32, (n_x,)),
        ("u", np.float32, (n_u,)),
        ("rollout", np.int64),
        ("step", np.int32),
    ]
    if derivatives:
        fields.append(("du_dx", np.float32, (n_u, n_x)))
    return np.dtype(fields)


def columns(names: Names, *, derivatives: bool) -> dict[str, list[str]]:
    """Columns of each field of a record, in the order of its entries.

    Args:
        names: Names of the "state" and of the "input".
        derivatives: Whether a record has du/dx.
    """
    found = {
        "x": [f"x_{name}" for name in names["state"]],
        "u": [f"u_{name}" for name in names["input"]],
        "rollout": ["rollout"],
        "step": ["step"],
    }
    if derivatives:
        pairs = product(names["input"], names["state"])
        found["du_dx"] = [f"du_{one}_dx_{other}" for one, other in pairs]
    return found


def encode(records: np.ndarray, names: Names) -> bytes:
    """Records as the content of a Parquet file."""
    pa = arrow()
    given = columns(names, derivatives="du_dx" in (records.dtype.names or ()))
    fields, arrays = [], []
    for field, labels in given.items():
        values = records[field].reshape(len(records), len(labels))
        for i, label in enumerate(labels):
            arrays.append(pa.array(np.ascontiguousarray(values[:, i])))
            fields.append(pa.field(label, arrays[-1].type, nullable=False))
    buffer = io.BytesIO()
    # Everything that decides about the bytes is fixed here, whatever the defaults of pyarrow are.
    pa.parquet.write_table(
        pa.table(arrays, schema=pa.schema(fields)),
        buffer,
        version="2.6",
        data_page_version="1.0",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        row_group_size=ROW_GROUP,
    )
    return buffer.getvalue()


class ShardFile:
    """Pairs of one Parquet file, mapped into memory: a field is read when it is asked for."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Reads the length alone.

        Args:
            path: The file.
            manifest: How the data set was made that it belongs to.
        """
        names, derivatives = manifest["names"], manifest["derivatives"]
        self._path, self._columns = path, columns(names, derivatives=derivatives)
        self.dtype = record_type(manifest["n_x"], manifest["n_u"], derivatives=derivatives)
        self.round: int = manifest["settings"]["round"]
        self._length: int = self._table([]).num_rows

    def __len__(self) -> int:
        """Number of pairs."""
        return self._length

    def __getitem__(self, field: str) -> np.ndarray:
        """One field of all pairs, such as "x" ``[pairs, n_x]``."""
        found = np.empty((len(self), len(self._columns[field])), self.dtype[field].base)
        for i, column in enumerate(self._table(self._columns[field]).columns):
            found[:, i] = column.to_numpy()
        return found.reshape(len(self), *self.dtype[field].shape)

    def read(self) -> np.ndarray:
        """All pairs as records in memory."""
        records = np.empty(len(self), self.dtype)
        for field in self._columns:
            records[field] = self[field]
        return records

    def _table(self, columns: list[str]) -> Any:
        """Some columns of the file."""
        pa = arrow()
        try:
            with pa.parquet.ParquetFile(self._path, memory_map=True) as file:
                return file.read(columns)
        except (OSError, ValueError) as error:  # what pyarrow raises is one of these
            raise DataError(f"{self._path} cannot be read: {error}") from error
