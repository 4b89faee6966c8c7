"""protos: TFMA's messages without TFMA, whatever is imported when. Each case is its own process."""

import subprocess
import sys
import textwrap

import pytest

CHECK = """
    import pickle, sys
    # 0.52 leaves EvalConfig out of its own top level.
    from tensorflow_model_analysis.proto import config_pb2 as their_config
    from tensorflow_model_analysis.proto import metrics_for_slice_pb2 as theirs
    assert theirs.MetricKey is metrics_for_slice_pb2.MetricKey
    assert their_config is config_pb2
    assert isinstance(their_config.EvalConfig(), config_pb2.EvalConfig)
    spec = config_pb2.ModelSpec(name="a", label_key="b")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert callable(tfma.load_eval_result) and tfma.metrics.ExampleCount().get_config() is not None
"""
OURS = """
    from assay.protos import config_pb2, metrics_for_slice_pb2, validation_result_pb2
"""
THEIRS = """
    import tensorflow_model_analysis as tfma
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loads_no_tensorflow_beam_or_tfma() -> None:
    out = run(
        OURS
        + """
    import sys
    config = config_pb2.EvalConfig(metrics_specs=[{"metrics": [{"class_name": "AUC"}]}])
    assert config_pb2.EvalConfig.FromString(config.SerializeToString()) == config
    spec = config_pb2.SlicingSpec(feature_keys=["a"])
    result = validation_result_pb2.ValidationResult(missing_slices=[spec])
    assert result.missing_slices[0].feature_keys == ["a"]
    heavy = ("tensorflow", "apache_beam", "tensorflow_model_analysis", "numpy")
    print(sorted(m for m in sys.modules if m.split(".")[0] in heavy))
    """
    )
    assert out.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("order", [OURS + THEIRS, THEIRS + OURS], ids=["before TFMA", "after TFMA"])
def test_shares_its_classes_with_tfma(order: str) -> None:
    run(order + CHECK)


def test_without_tfma_says_what_to_install() -> None:
    out = run(
        """
    import importlib.util
    find = importlib.util.find_spec
    tfma = "tensorflow_model_analysis"
    importlib.util.find_spec = lambda name, *a: None if name == tfma else find(name, *a)
    from assay.spec import RequestError
    try:
        import assay.protos
    except RequestError as error:
        print(error)
    """
    )
    assert "not installed" in out and "tfx-assay[tfx]" in out
