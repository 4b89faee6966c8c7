"""The command line: arguments to a request, the outcome to an exit code.

0 evaluated, whatever the verdict; 3 not blessed, with --fail-on-not-blessed; 2 the request is
wrong; 1 the run failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from assay.quiet import stderr_unless_it_fails
from assay.request import (
    FIRST_MODEL,
    RUNNERS,
    SLICE_FEATURES,
    STALE_BASELINE,
    STRATEGIES,
    Execution,
    Policy,
    Request,
)
from assay.spec import DataError, ProcessError, RequestError

if TYPE_CHECKING:
    from assay.evaluation import Outcome

REASONS = 10  # as many as a screen takes; the report holds all
OK, RUN_FAILED, REQUEST_WRONG, NOT_BLESSED = 0, 1, 2, 3


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="assay", description="Evaluates a trained model and says whether it may be promoted."
    )
    commands = root.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "evaluate",
        help="evaluate a model and write its artifacts",
        epilog="With --runner beam, what follows -- are Beam's options.",
    )
    run.add_argument("--request", help=argparse.SUPPRESS)  # a Request as JSON, instead of the rest
    run.add_argument("--examples", nargs="+", metavar="URI", help="artifact folder, folder, file or glob")
    run.add_argument("--model", metavar="URI", help="Model artifact, SavedModel folder or .keras file")
    run.add_argument("--eval-config", metavar="FILE|JSON", help="tfma.EvalConfig as JSON")
    run.add_argument("--output", metavar="DIR", help="where the artifacts go")
    run.add_argument("--split", nargs="+", default=["eval"], metavar="NAME", help="default: eval")
    run.add_argument("--baseline", default="", metavar="URI", help="the model to compare with")
    run.add_argument("--transform-graph", default="", metavar="URI", help="Transform's output")
    run.add_argument("--schema", default="", metavar="URI", help="schema.pbtxt or its folder")
    run.add_argument("--strategy", choices=STRATEGIES, default="auto")
    run.add_argument("--logical-devices", type=int, default=0, metavar="N", help="split the CPU into N")
    run.add_argument(
        "--batch-size", type=int, default=Execution.batch_size, metavar="N", help="rows per replica and step"
    )
    run.add_argument("--runner", choices=RUNNERS, default=Execution.runner, help="default: loop")
    run.add_argument("--state-dir", default="", metavar="DIR", help="finished shards, for other processes")
    run.add_argument("--resume", action="store_true", help="continue what an earlier run left")
    run.add_argument("--first-model", choices=FIRST_MODEL, default=Policy.first_model)
    run.add_argument("--stale-baseline", choices=STALE_BASELINE, default=Policy.stale_baseline)
    run.add_argument("--slice-features", choices=SLICE_FEATURES, default=Policy.slice_features)
    run.add_argument("--fail-on-not-blessed", action="store_true", help="exit 3 unless blessed")
    show = commands.add_parser("show", help="show a finished evaluation as tables")
    show.add_argument("folder", metavar="DIR")
    show.add_argument("--compare", metavar="DIR", help="another evaluation to hold against it")
    return root


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments; what follows `--` are `beam_options`, as they come."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    arguments = parser().parse_args(argv[:cut])
    arguments.beam_options = argv[cut + 1 :]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors are one line on stderr."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    command = _show if arguments.command == "show" else _evaluate
    return guarded(lambda: command(arguments))


def guarded(command: Callable[[], int]) -> int:
    """Runs a command with the log on stderr; returns its exit code, or that of its error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("assay").setLevel(logging.INFO)
    try:
        return command()
    except RequestError as error:
        return _fail(error, REQUEST_WRONG)
    except (DataError, ProcessError) as error:
        return _fail(error, RUN_FAILED)
    except Exception as error:
        logging.getLogger("assay").debug("the run failed", exc_info=True)
        if os.environ.get("ASSAY_TRACEBACK"):
            raise
        return _fail(error, RUN_FAILED)


def _fail(error: Exception, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"assay: error: {text}", file=sys.stderr, flush=True)
    return code


def _evaluate(arguments: argparse.Namespace) -> int:
    request = _request(arguments)
    outcome = evaluate(request)
    if outcome is None:
        return OK  # the chief says what came of it
    print(f"{'BLESSED' if outcome.verdict.blessed else 'NOT_BLESSED'} {request.report}", flush=True)
    return NOT_BLESSED if arguments.fail_on_not_blessed and not outcome.verdict.blessed else OK


def evaluate(request: Request) -> Outcome | None:
    """Runs the request with progress, logs what came of it, and returns it; as `assay.evaluation.run`."""
    from assay.evaluation import run
    from assay.text import count

    _load_tensorflow(request)
    outcome = run(request, progress=True)
    if outcome is None:
        return None
    verdict = outcome.verdict
    log, execution = logging.getLogger("assay"), outcome.report.execution
    log.info(
        "%s, %s%s",
        count(outcome.report.rows, "row"),
        count(len(outcome.report.slices), "slice"),
        # A process that found every shard finished has no speed.
        f", {execution['rows_per_second']:,.0f} rows/s on {count(execution['replicas'], 'replica')}"
        if execution["rows_per_second"]
        else "",
    )
    for note in verdict.notes:
        log.info("note: %s", note)
    for reason in verdict.reasons[:REASONS]:
        log.info("not blessed: %s", reason)
    if len(verdict.reasons) > REASONS:
        rest = count(len(verdict.reasons) - REASONS, "further reason")
        log.info("not blessed: %s; see %s/report.html", rest, request.report.rstrip("/"))
    return outcome


def _load_tensorflow(request: Request) -> None:
    """Loads TensorFlow without its chatter, unless the config is wrong: `run` says so without it."""
    from assay.eval_config import read, to_spec

    try:
        to_spec(read(request.eval_config), has_baseline=bool(request.baseline))
    except RequestError:
        return
    with stderr_unless_it_fails():
        import tensorflow as tf

        tf.config.list_physical_devices()


def _request(arguments: argparse.Namespace) -> Request:
    if arguments.request:
        return Request.from_json(_read(arguments.request, "--request"))
    for name in ("examples", "model", "eval_config", "output"):
        if not getattr(arguments, name):
            raise RequestError(f"--{name.replace('_', '-')} is missing")
    from assay.api import request

    text = arguments.eval_config
    return request(
        examples=arguments.examples,
        model=arguments.model,
        eval_config=text if text.lstrip().startswith("{") else _read(text, "--eval-config"),
        output=arguments.output,
        splits=arguments.split,
        baseline=arguments.baseline,
        transform_graph=arguments.transform_graph,
        schema=arguments.schema,
        execution=Execution(
            strategy=arguments.strategy,
            logical_devices=arguments.logical_devices,
            batch_size=arguments.batch_size,
            runner=arguments.runner,
            beam_options=tuple(arguments.beam_options),
            state_dir=arguments.state_dir,
            resume=arguments.resume,
        ),
        policy=Policy(arguments.first_model, arguments.stale_baseline, arguments.slice_features),
    )


def _read(path: str, flag: str) -> str:
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except OSError as error:
        raise RequestError(f"{flag}: {path} cannot be read: {error.strerror}") from error


def _show(arguments: argparse.Namespace) -> int:
    from assay.show import show

    show(arguments.folder, arguments.compare)
    return OK
