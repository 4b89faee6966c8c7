"""Where the examples lie: URIs to files, how they are compressed, and what the records hold.

Runs on the host, before the tf.data pipeline is built; reads a few records, not the data.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import schema_pb2

from assay.spec import DataError, RequestError, unknown

PEEKED = 1000
GZIP_MAGIC = b"\x1f\x8b\x08"
FRAMING = 16  # bytes of a TFRecord besides its data: length, checksum of it, checksum of the data


@dataclass(frozen=True)
class File:
    """One TFRecord file; `compression` is "" or "GZIP", found from its first bytes.

    changed: when it was last written, in nanoseconds.
    """

    uri: str
    compression: str
    size: int
    changed: int = 0


@dataclass(frozen=True)
class FeatureType:
    """A feature's dtype (string, int64 or float32) and, where every row has it, its shape."""

    dtype: tf.DType
    shape: tuple[int, ...] | None = None


def locate(uris: Sequence[str], splits: Sequence[str]) -> tuple[File, ...]:
    """Returns the files of the examples, sorted by URI.

    A URI is an artifact folder with `Split-NAME/` inside, a folder of TFRecord files, a file, or a
    glob; splits matter for the first kind only.

    Raises:
      RequestError: nothing is there, or a split is not.
    """
    found: list[str] = []
    for uri in uris:
        found.extend(_files(uri, splits))
    # One file under two names (a link, a/./b) is read once.
    once = {path if "://" in path else os.path.realpath(path): path for path in sorted(found, reverse=True)}
    return tuple(_file(path) for path in sorted(once.values()))


def _files(uri: str, splits: Sequence[str]) -> Iterable[str]:
    if any(c in uri for c in "*?[") and not tf.io.gfile.exists(uri):
        paths = [p for p in tf.io.gfile.glob(uri) if not tf.io.gfile.isdir(p)]
        if not paths:
            raise RequestError(f"examples: no file matches {uri}")
        return paths
    if not tf.io.gfile.exists(uri):
        raise RequestError(f"examples: {uri} does not exist")
    if not tf.io.gfile.isdir(uri):
        return [uri]
    present = sorted(
        name.rstrip("/")[len("Split-") :] for name in tf.io.gfile.listdir(uri) if name.startswith("Split-")
    )
    if not present:
        return _folder(uri, uri)
    paths = []
    for split in splits:
        if split not in present:
            raise unknown("split", split, present, place=f"examples {uri}")
        paths.extend(_folder(os.path.join(uri, f"Split-{split}"), f"{uri}, split {split!r}"))
    return paths


def _folder(path: str, name: str) -> list[str]:
    entries = [e for e in tf.io.gfile.listdir(path) if not e.startswith((".", "_"))]
    paths = [os.path.join(path, e) for e in entries]
    files = [p for p in paths if not tf.io.gfile.isdir(p)]
    if not files:
        raise RequestError(f"examples: {name} holds no files")
    return files


def _file(path: str) -> File:
    with tf.io.gfile.GFile(path, "rb") as handle:
        head = handle.read(len(GZIP_MAGIC))
    return File(path, "GZIP" if head == GZIP_MAGIC else "", *_size_and_time(path))


def _size_and_time(path: str) -> tuple[int, int]:
    """A file's bytes, and when it was last written, in nanoseconds."""
    found = tf.io.gfile.stat(path)
    # TensorFlow tells the time of local files to the second.
    return found.length, found.mtime_nsec if "://" in path else os.stat(path).st_mtime_ns


@dataclass(frozen=True)
class Records:
    """What the records hold, from the schema and the first of them.

    types: every feature known; seen: those met in the first records, and lengths: how many values
    the first of them held; `mean_bytes`: the records' mean size.
    """

    types: Mapping[str, FeatureType]
    seen: Mapping[str, tf.DType]
    lengths: Mapping[str, int]
    mean_bytes: float


def peek(files: Sequence[File], schema: Mapping[str, FeatureType]) -> Records:
    """Returns what the records hold; a type that the records show wins over the schema's.

    Raises:
      DataError: there is no record at all, or the first ones cannot be read.
    """
    seen: dict[str, tf.DType] = {}
    lengths: dict[str, int] = {}
    sizes: list[int] = []
    for file in files:
        asked = PEEKED - len(sizes)
        records = tf.data.TFRecordDataset(file.uri, file.compression or None).take(asked)
        before = len(sizes)
        try:
            for number, record in enumerate(records.as_numpy_iterator()):
                sizes.append(len(record))
                for name, (dtype, length) in _kinds(record, file.uri, number).items():
                    seen.setdefault(name, dtype)
                    lengths.setdefault(name, length)
        except tf.errors.OpError as error:
            raise unreadable(file, error) from error
        if len(sizes) - before < asked:
            check_whole(file, sum(sizes[before:]) + FRAMING * (len(sizes) - before))
        if len(sizes) >= PEEKED:
            break
    if not sizes:
        where = ", ".join(f.uri for f in files[:3]) + (" …" if len(files) > 3 else "")
        raise DataError(f"no examples: {len(files)} file(s) and not one record in {where}")
    types = dict(schema)
    for name, dtype in seen.items():
        if name not in types or types[name].dtype != dtype:
            types[name] = FeatureType(dtype)
    return Records(types, seen, lengths, sum(sizes) / len(sizes))


def unreadable(file: File, error: Exception) -> DataError:
    """Returns the error for a file that is no intact TFRecord."""
    how = "gzip" if file.compression else "no"
    return DataError(f"{file.uri} cannot be read as a TFRecord file ({how} compression): {reason(error)}")


def reason(error: Exception) -> str:
    """Returns the first line of an error that says what went wrong, without TensorFlow's op names."""
    text = str(getattr(error, "message", error))
    lines = [_NOISE.sub("", line).strip() for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith(_PREAMBLE)), type(error).__name__)


_NOISE = re.compile(r"\{\{.*?\}\}|\[Op:.*|Name: <unknown>, |, Index: \d+")
_PREAMBLE = ("Graph execution error", "Detected at node", "<stack traces", "error(s) found", 'File "')


def check_whole(file: File, size: int) -> None:
    """Checks that the records read, of so many bytes with their framing, are all that the file holds.

    TensorFlow takes a file that is cut short within a record's header, or within gzip's data, for
    one that ends there.

    Raises:
      DataError: they are not.
    """
    if file.compression:
        # Gzip files may be joined; only the last one's length stands at the end.
        whole = unpacked_size(file) == size % 2**32 or _unpacked(file) == size
    else:
        whole = file.size == size
    if not whole:
        raise DataError(
            f"{file.uri}: {size:,} bytes of records were read, which is not what it holds: it is cut short "
            "or damaged, or its records were not read once each"
        )


def check_unchanged(file: File) -> None:
    """Checks that a file was not written while it was read.

    Raises:
      DataError: it was, or it is gone.
    """
    try:
        now = _size_and_time(file.uri)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"{file.uri} cannot be read any more: {reason(error)}") from error
    if now != (file.size, file.changed):
        raise DataError(f"{file.uri} was written while it was read; evaluate again once it stays as it is")


def unpacked_size(file: File) -> int:
    """Returns the size of a gzip file's content modulo 2**32, which stands in its last four bytes."""
    with tf.io.gfile.GFile(file.uri, "rb") as handle:
        handle.seek(max(file.size - 4, 0))
        return int.from_bytes(handle.read(4), "little")


def _unpacked(file: File) -> int:
    """The size of a gzip file's content, by unpacking it; -1 where that fails."""
    size = 0
    try:
        with tf.io.gfile.GFile(file.uri, "rb") as raw, gzip.GzipFile(fileobj=raw) as handle:
            while chunk := handle.read(1 << 20):
                size += len(chunk)
    except (OSError, EOFError, zlib.error):
        return -1
    return size


def _kinds(record: bytes, uri: str, number: int) -> dict[str, tuple[tf.DType, int]]:
    try:
        example = tf.train.Example.FromString(record)
    except DecodeError as error:
        raise DataError(f"{uri}: record {number} is not a tf.Example") from error
    dtypes = {"bytes_list": tf.string, "int64_list": tf.int64, "float_list": tf.float32}
    kinds = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind and getattr(feature, kind).value:
            kinds[name] = dtypes[kind], len(getattr(feature, kind).value)
    return kinds


def read_schema(uri: str) -> dict[str, FeatureType]:
    """Returns the feature types in a schema: a schema.pbtxt, or the folder of a Schema artifact.

    Raises:
      RequestError: there is none, or it is not a tensorflow.metadata.v0.Schema.
    """
    path = uri
    if tf.io.gfile.exists(uri) and tf.io.gfile.isdir(uri):
        path = os.path.join(uri, "schema.pbtxt")
    if not tf.io.gfile.exists(path):
        raise RequestError(f"schema: {path} does not exist; name a schema.pbtxt or its folder")
    with tf.io.gfile.GFile(path, "r") as handle:
        try:
            schema = text_format.Parse(handle.read(), schema_pb2.Schema())
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise RequestError(f"schema: {path} is not a schema in text form: {error}") from error
    dtypes = {schema_pb2.BYTES: tf.string, schema_pb2.INT: tf.int64, schema_pb2.FLOAT: tf.float32}
    types = {}
    for feature in schema.feature:
        if feature.type in dtypes:
            sizes = tuple(d.size for d in feature.shape.dim) if feature.HasField("shape") else None
            types[feature.name] = FeatureType(dtypes[feature.type], sizes)
    return types
