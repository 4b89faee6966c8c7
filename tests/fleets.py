"""Beam runners of the tests: two processes of the DirectRunner, and a Dask cluster of two."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

MULTI = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@contextlib.contextmanager
def dask_cluster() -> Iterator[str]:
    """Yields the address of a cluster of two worker processes."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


def dask_options(address: str) -> tuple[str, ...]:
    """Returns Beam's options for a Dask cluster; newer ones pack 128 elements for one worker by default."""
    import apache_beam

    newer = tuple(map(int, apache_beam.__version__.split(".")[:2])) >= (2, 62)
    size = ("--dask_partition_size=1",) if newer else ()
    return (
        "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
        f"--dask_client_address={address}",
        *size,
    )
