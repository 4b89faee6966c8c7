"""One process's part of an evaluation: from a request to the function that turns shards into States.

The same in the command line's process, in each of several workers, and in a Beam worker. Runs on the
host; starts TensorFlow.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import tensorflow as tf

from assay import examples, inputs, loop, model, transform
from assay.explain import explain
from assay.plan import plan as make_plan
from assay.question import Question, ask
from assay.request import Request
from assay.shards import Shard
from assay.spec import EvaluationSpec, ModelSpec, ProcessError, RequestError, SlicingSpec
from assay.state import State
from assay.step import contributions, layout, rehearse

log = logging.getLogger("assay")

Progress = Callable[[int, float], None]


class Engine:
    """What this process has loaded, and `evaluate`.

    files, records: the input; models: candidate first, without a baseline that is stale, and why it is;
    question, plan, leaves: what is summed, and from where; batch_size: rows per replica and step, smaller
    than asked once a device was out of memory, which `notes` tell.
    """

    def __init__(self, request: Request, spec: EvaluationSpec, question: Question) -> None:
        """Loads models and tables and looks at the first records.

        Raises:
          RequestError: paths, signatures, shapes or features are wrong.
          DataError: the first records cannot be read.
        """
        execution = request.execution
        loop.set_up(execution)
        self.files = examples.locate(request.examples, request.splits)
        schema = examples.read_schema(request.schema) if request.schema else {}
        self.records = examples.peek(self.files, schema)
        graph = transform.load(request.transform_graph) if request.transform_graph else None
        if execution.strategy == "tpu":
            _refuse_strings(request, question.models)
        self.distribution = loop.strategy(execution)
        self.models, self.stale = self._load(request, spec, question, graph)
        if self.stale:
            log.warning("the baseline cannot be evaluated: %s", self.stale)
            question = ask(spec, [m.spec for m in self.models])
        self.question = question
        self.plan = make_plan(self.records, graph, self.models, spec.slices, request.policy)
        # Overall is always counted, for the examples' total; it is shown where it is asked for.
        self._slices = (SlicingSpec(), *(s for s in spec.slices if s.features))
        self._sums = [
            dataclasses.replace(s, whole=not s.weighted and self.plan.whole[s.model]) for s in question.sums
        ]
        self.leaves = layout(self._sums, question.weighted)
        self._execution = execution
        self.batch_size = execution.batch_size
        self.notes: list[str] = []
        self._fold: loop.Fold | None = None

    @property
    def replicas(self) -> int:
        """How many replicas share a global batch."""
        return int(self.distribution.num_replicas_in_sync)

    @property
    def device(self) -> str:
        """The kind of device that predicts: CPU, GPU or TPU."""
        kind = tf.DeviceSpec.from_string(self.distribution.extended.worker_devices[0]).device_type
        return str(kind)

    def evaluate(self, shard: Shard, progress: Progress | None = None) -> State:
        """Returns the State of a shard's rows.

        Where a device is out of memory the shard is tried again, from its first row, with half the
        per-replica batch; what the failed try had added up is gone with its variables.

        Raises:
          DataError: the rows cannot be evaluated, by any process.
          ProcessError: this one cannot, as its memory or storage is.
        """
        while True:
            if self._fold is None:
                self._fold = self._build()
            try:
                return self._fold(shard.ranges, progress)
            except tf.errors.ResourceExhaustedError as error:
                self._halve(error)
            except (tf.errors.OpError, UnicodeDecodeError) as error:  # the latter hides an OpError's message
                read = [self.files[r.file] for r in shard.ranges]
                raise explain(error, read, self.plan, self.models) from error

    def _build(self) -> loop.Fold:
        on_tpu = self._execution.strategy == "tpu"
        pipeline = inputs.pipeline(
            self.files,
            self.plan,
            self._slices,
            batch_size=self.batch_size,
            replicas=self.replicas,
            static=on_tpu,
        )

        def step(batch: inputs.Batch, replica: int) -> loop.Contributions:
            return contributions(
                batch, self.models, self.plan.feeds, self._sums, self.question.weighted, replica
            )

        return loop.build(
            pipeline,
            self.models,
            step,
            self.leaves,
            self.distribution,
            self._execution.steps_per_call,
            dense=on_tpu,
        )

    def _halve(self, error: tf.errors.ResourceExhaustedError) -> None:
        self._fold = None  # and with it everything that lies on the devices but the models
        had = inputs.physical(self.batch_size)
        if had <= inputs.ROWS_MULTIPLE:
            raise ProcessError(
                f"out of memory with {had} rows per replica, the smallest batch: {examples.reason(error)}"
            ) from error
        self.batch_size = min(self.batch_size, had) // 2
        self.notes.append(f"out of memory: the per-replica batch was halved to {self.batch_size}")
        log.warning("%s", self.notes[-1])

    def _load(
        self, request: Request, spec: EvaluationSpec, question: Question, graph: transform.Transform | None
    ) -> tuple[list[model.Model], str]:
        """The loaded models, candidate first, and why the baseline cannot be evaluated, if so."""
        loaded: list[model.Model] = []
        for place, wanted in enumerate(question.models):
            role, given = ("baseline", request.baseline) if wanted.is_baseline else ("model", request.model)
            uri = model.resolve(given, role)
            try:
                one = loop.load(uri, wanted, self.distribution)
                plan = make_plan(self.records, graph, [one], spec.slices, request.policy)
                rehearse(one, plan, [s for s in question.sums if s.model == place])
            except Exception as error:
                if not wanted.is_baseline:
                    raise
                return loaded, str(error).split("\n")[0]
            loaded.append(one)
        return loaded, ""


def _refuse_strings(request: Request, models: Sequence[ModelSpec]) -> None:
    """A TPU has no strings: says so before one is looked for, and what to do instead."""
    for wanted in models:
        uri = model.resolve(request.baseline if wanted.is_baseline else request.model)
        one = model.load(uri, wanted)
        texts = sorted(name for name, spec in one.inputs.items() if spec.dtype == tf.string)
        if texts:
            raise RequestError(
                f"model {uri}: signature {one.signature!r} takes strings ({', '.join(texts)}), which a TPU "
                "does not have; set signature_name to one that takes numbers, with transform_graph for "
                "those that Transform makes of strings: records are parsed and transformed on the host"
            )
