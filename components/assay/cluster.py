"""Which of several processes this one is, from TF_CONFIG or Vertex AI's CLUSTER_SPEC, and what it did.

Runs on the host, before TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.spec import RequestError

# Vertex sets both; its own names all pools, TF_CONFIG only those that TensorFlow has names for.
VARIABLES = ("CLUSTER_SPEC", "TF_CONFIG")
CHIEFS = ("chief", "master", "workerpool0")
WORKERS = ("worker", "workerpool1", "workerpool2", "workerpool3")


@dataclass(frozen=True)
class Task:
    """One process of a cluster.

    workers: how many processes evaluate; is_chief: whether this one merges and writes, None where
    nobody is named and the first to come does; name: for the log.
    """

    workers: int = 1
    is_chief: bool | None = None
    name: str = ""


@dataclass
class Part:
    """What this process does in an evaluation, written down as it goes on.

    writes: whether what lies in the output is its own; shards: how many there are, found: how many of
    them were finished when it came; seconds and rows: of those that it evaluated.
    """

    writes: bool = True
    shards: int = 1
    found: int = 0
    seconds: float = 0.0
    rows: int = 0

    def add(self, seconds: float, rows: int) -> None:
        """Adds what this process evaluated in so many seconds."""
        self.seconds += seconds
        self.rows += rows


def task(environ: Mapping[str, str]) -> Task:
    """Returns this process's task; Task() where the environment names no cluster.

    Raises:
      RequestError: the variable is not what TensorFlow or Vertex would write.
    """
    for variable in VARIABLES:
        if environ.get(variable):
            return _parse(variable, environ[variable])
    return Task()


def _parse(variable: str, text: str) -> Task:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"{variable} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise RequestError(f"{variable} is not a JSON object")
    cluster, own = record.get("cluster") or {}, record.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(own, dict):
        raise RequestError(f"{variable}: cluster and task have to be JSON objects")
    for name, tasks in cluster.items():
        if not isinstance(tasks, list):
            raise RequestError(f"{variable}: cluster {name!r} is {tasks!r}; a list of addresses is needed")
    sizes = {kind: len(cluster[kind]) for kind in (*CHIEFS, *WORKERS) if cluster.get(kind)}
    kind, index = str(own.get("type", "")), _index(variable, own)
    if kind == "evaluator" or (sum(sizes.values()) <= 1 and kind in ("", *sizes)):
        return Task()  # TensorFlow's evaluator stands beside its cluster
    if kind not in sizes:
        known = ", ".join(sizes) or "none there"
        raise RequestError(
            f"{variable}: task type {kind!r} has no part in an evaluation; valid in this cluster: {known}"
        )
    if index >= sizes[kind]:
        raise RequestError(
            f"{variable}: task {kind} {index} is not in the cluster, which has {sizes[kind]} of that type"
        )
    chief = next((name for name in CHIEFS if name in sizes), WORKERS[0])
    return Task(sum(sizes.values()), kind == chief and index == 0, f"{kind} {index}")


def _index(variable: str, own: Mapping[str, Any]) -> int:
    given = own.get("index", 0)
    # Some launchers write it as a text.
    index = int(given) if str(given).isdigit() and not isinstance(given, bool) else -1
    if index < 0:
        raise RequestError(f"{variable}: task index {own.get('index')!r} is not a whole number")
    return index
