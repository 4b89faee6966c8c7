"""One evaluation as a whole: its inputs and outputs, how to run it, and what the config leaves open.

Frozen dataclasses, valid once built; nothing here reads data or imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.spec import RequestError, unknown

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")
RUNNERS = ("loop", "beam")
TPU_ROWS = 1 << 16  # so many rows of eight bits are summed exactly in 24


@dataclass(frozen=True)
class Execution:
    """How to run, never what to compute: no value in the report depends on it.

    `batch_size` is rows per replica and step; the global batch is that times the replicas.
    `logical_devices` splits the CPU (tests, laptops); 0 leaves the devices as they are.
    `state_dir` holds the States of finished shards, for other processes and later runs; "" is the
    folder `state` in the output, where `resume` continues what an earlier run left.
    `lease_seconds`: after so long without a sign of life a process's shard is taken over.
    `beam_options` are those of the `beam` runner.
    """

    strategy: str = "auto"
    logical_devices: int = 0
    batch_size: int = 1024
    steps_per_call: int = 32
    runner: str = "loop"
    beam_options: tuple[str, ...] = ()
    state_dir: str = ""
    resume: bool = False
    lease_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise unknown("strategy", self.strategy, STRATEGIES)
        for name, low in (("logical_devices", 0), ("batch_size", 1), ("steps_per_call", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise RequestError(f"{name} is {value!r}; a whole number of at least {low} is needed")
        if self.runner not in RUNNERS:
            raise unknown("runner", self.runner, RUNNERS)
        if isinstance(self.beam_options, str) or not all(isinstance(o, str) for o in self.beam_options):
            raise RequestError(f"beam_options is {self.beam_options!r}; a list of texts is needed")
        object.__setattr__(self, "beam_options", tuple(self.beam_options))
        if self.beam_options and self.runner != "beam":
            raise RequestError("beam_options are of no use to the loop; set runner to beam")
        if self.strategy == "tpu" and self.batch_size > TPU_ROWS:
            raise RequestError(f"batch_size is {self.batch_size}; strategy tpu takes at most {TPU_ROWS}")
        seconds = self.lease_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise RequestError(f"lease_seconds is {seconds!r}; a number above 0 is needed")


FIRST_MODEL = ("refuse", "bless")
STALE_BASELINE = ("fail", "ignore")
SLICE_FEATURES = ("raw", "transformed")


@dataclass(frozen=True)
class Policy:
    """What to do where a config leaves it open.

    `first_model`: with only change thresholds and no baseline, `refuse` or `bless`.
    `stale_baseline`: a baseline that cannot be run, `fail` (not blessed) or `ignore`.
    `slice_features`: where slice features are looked up first, `raw` or `transformed`.
    """

    first_model: str = "refuse"
    stale_baseline: str = "fail"
    slice_features: str = "raw"

    def __post_init__(self) -> None:
        valid = (FIRST_MODEL, STALE_BASELINE, SLICE_FEATURES)
        for option, known in zip(dataclasses.fields(self), valid, strict=True):
            if getattr(self, option.name) not in known:
                raise unknown(option.name, str(getattr(self, option.name)), known)


@dataclass(frozen=True)
class Request:
    """One evaluation: the same record for the command line, the TFX executor and Python.

    URIs are paths, artifact folders or globs; `eval_config` is tfma.EvalConfig JSON text.
    `evaluation`, `blessing`, `report`, `metrics` and `classification_metrics` are the folders to write;
    `page` is a file for one more copy of report.html, `vertex` one for Vertex AI's import, of
    `vertex_kind` classification or regression; "" is none.
    """

    examples: tuple[str, ...]
    model: str
    eval_config: str
    evaluation: str
    blessing: str
    report: str
    splits: tuple[str, ...] = ("eval",)
    baseline: str = ""
    transform_graph: str = ""
    schema: str = ""
    execution: Execution = field(default_factory=Execution)
    policy: Policy = field(default_factory=Policy)
    metrics: str = ""
    classification_metrics: str = ""
    page: str = ""
    vertex: str = ""
    vertex_kind: str = ""

    def __post_init__(self) -> None:
        if not self.examples:
            raise RequestError("examples is empty; name at least one folder, file or glob")
        if not self.model:
            raise RequestError("model is empty; name a SavedModel folder, a Model artifact or a .keras file")
        if not self.splits:
            raise RequestError("splits is empty; name at least one split")

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders to write."""
        every = (self.evaluation, self.blessing, self.report, self.metrics, self.classification_metrics)
        return tuple(filter(None, every))

    @property
    def single_files(self) -> tuple[str, ...]:
        """The files to write that lie in folders of others."""
        return tuple(filter(None, (self.page, self.vertex)))

    @property
    def state_dir(self) -> str:
        """Where States of finished shards are kept; "" where nothing is written at all."""
        return self.execution.state_dir or (os.path.join(self.report, "state") if self.report else "")

    def to_json(self) -> str:
        """Returns the request as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Request:
        """Returns the request in JSON text.

        Raises:
          RequestError: the text is not JSON, or a field is unknown or missing.
        """
        try:
            record = json.loads(text)
            return Request(
                **{
                    **record,
                    "examples": tuple(record["examples"]),
                    "splits": tuple(record.get("splits", ("eval",))),
                    "execution": options(Execution, record.get("execution", {})),
                    "policy": options(Policy, record.get("policy", {})),
                }
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RequestError(f"the request is not valid: {error}") from error


def options(kind: type, given: Mapping[str, Any]) -> Any:
    """Returns the options dataclass `kind` from a mapping.

    Raises:
      RequestError: a key is no field of `kind`, or a value is out of range.
    """
    known = [f.name for f in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            raise unknown(f"{kind.__name__.lower()} option", name, known)
    return kind(**given)
