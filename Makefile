python := .venv/bin/python

.PHONY: setup demo test lint bench mutants accelerator container-test clean

setup:
	@requirements/setup

# Two runs of the taxi pipeline: a good model is promoted, a worse one is not.
demo: setup
	@$(python) -m pipelines.taxi_demo run --root build/demo

test: setup
	@$(python) -m pytest -q

lint: setup
	@$(python) -m ruff check .
	@$(python) -m mypy

bench: setup
	@$(python) tests/benchmarks/throughput.py
	@$(python) tests/benchmarks/workers.py

# What needs a GPU.
accelerator: setup
	@PYTHONPATH=components:tests $(python) tests/accelerator/check.py

# Faults put in on purpose: each has to fail three tests at least.
mutants: setup
	@$(python) tests/mutants.py

# The image, built where it is missing, and the whole test suite inside it.
container-test:
	@container/test whole

clean:
	rm -rf .venv .venv-tools build dist components/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
