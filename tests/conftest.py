"""Four logical CPU devices for the whole session, before TensorFlow starts; the table of the drivers."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


def pytest_terminal_summary(terminalreporter, config):
    """Prints the lines that tests have left under the name `table`."""
    lines = getattr(config, "table", [])
    if lines:
        terminalreporter.write_sep("=", "the same rows, however the work was spread")
        terminalreporter.write_line("\n".join(lines))
