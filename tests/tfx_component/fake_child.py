"""Stands in for `python -m assay evaluate`: does what the environment variable FAKE says."""

import json
import os
import sys
import time
from pathlib import Path

METRICS = {"rows": 200, "auc": 0.75}
CLASSIFICATION = {
    "confidenceMetrics": [{"confidenceThreshold": 1.0, "recall": 0.0, "falsePositiveRate": 0.0}],
    "confusionMatrix": {"annotationSpecs": [{"displayName": "no"}], "rows": [{"row": [200.0]}]},
}


def main() -> int:
    assert sys.argv[1] == "--request"
    file = Path(sys.argv[2])
    request = json.loads(file.read_text())
    how = os.environ.get("FAKE", "blessed")
    for name in ("evaluation", "blessing", "report"):
        Path(request[name]).mkdir(parents=True, exist_ok=True)
    seen = {"request": request, "environment": dict(os.environ), "argv": sys.argv}
    if "FAKE_SEEN" in os.environ:
        Path(os.environ["FAKE_SEEN"]).write_text(json.dumps({**seen, "pid": os.getpid()}))
    print("on stdout", flush=True)
    print("on stderr: \u00fc", file=sys.stderr, flush=True)
    if how == "wrong":
        print("assay: error: no such signature 'x'", file=sys.stderr)
        return 2
    Path(request["evaluation"], "metrics-00000-of-00001.tfrecord").write_bytes(b"")
    if how == "failed":
        print("assay: error: file 7 is corrupt", file=sys.stderr)
        return 1
    if how == "silent":
        return 1
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "hang":
        time.sleep(100)
    blessed = how == "blessed"
    record = {"verdict": {"blessed": blessed, "reasons": [] if blessed else ["AUC is 0.5", "bad"]}}
    Path(request["report"], "report.json").write_text(json.dumps(record))
    Path(request["report"], "report.html").write_text("<p>report</p>")
    for name, shown in (("metrics", METRICS), ("classification_metrics", {"metadata": CLASSIFICATION})):
        if request[name]:
            Path(request[name]).mkdir(parents=True, exist_ok=True)
            Path(request[name], f"{name}.json").write_text(json.dumps(shown))
    if how == "no verdict":
        return 0
    marker = "BLESSED" if blessed or how == "liar" else "NOT_BLESSED"
    Path(request["blessing"], marker).write_bytes(b"")
    return 0


if __name__ == "__main__":
    sys.exit(main())
