"""Which process this is, from TF_CONFIG and CLUSTER_SPEC as TensorFlow and Vertex AI write them."""

from __future__ import annotations

import json

import processes
import pytest

from assay.cluster import Task, task
from assay.spec import RequestError


def tf_config(cluster, kind, index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_without_a_cluster_nobody_is_named():
    assert task({}) == Task(1, None, "")
    assert task({"TF_CONFIG": ""}) == Task(1, None, "")


@pytest.mark.parametrize("make", [processes.tf_config, processes.cluster_spec])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_first_is_the_chief(make, index):
    found = task(make(3, index))
    assert found.workers == 3 and found.is_chief is (index == 0)


@pytest.mark.parametrize(
    "cluster,kind,index,chief",
    [
        ({"worker": ["a", "b"]}, "worker", 0, True),
        ({"worker": ["a", "b"]}, "worker", 1, False),
        ({"master": ["a"], "worker": ["b"]}, "master", 0, True),
        ({"master": ["a"], "worker": ["b"]}, "worker", 0, False),
        ({"chief": ["a"], "worker": ["b"], "ps": ["c"]}, "worker", 0, False),
    ],
)
def test_without_a_chief_worker_0_is_it(cluster, kind, index, chief):
    assert task(tf_config(cluster, kind, index)) == Task(2, chief, f"{kind} {index}")


@pytest.mark.parametrize(
    "cluster,kind",
    [({"chief": ["a"], "worker": ["b"]}, "evaluator"), ({"worker": ["a"]}, "worker"), ({}, "")],
)
def test_an_evaluator_or_a_cluster_of_one_is_alone(cluster, kind):
    assert task(tf_config(cluster, kind)) == Task()


def test_vertex_names_all_pools_and_wins():
    both = {**processes.cluster_spec(2, 1), **processes.tf_config(3, 0)}
    assert task(both) == Task(2, False, "workerpool1 0")


@pytest.mark.parametrize(
    "environ,message",
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG is not a JSON object"),
        ({"CLUSTER_SPEC": '{"cluster": []  , "task": 1}'}, "CLUSTER_SPEC: cluster and task have to be"),
        (
            tf_config({"chief": ["a"], "worker": ["b"], "ps": ["c"]}, "ps"),
            "task type 'ps' has no part in an evaluation; valid in this cluster: chief, worker",
        ),
        (tf_config({"worker": ["a", "b"]}, "worker", 2), "task worker 2 is not in the cluster, which has 2"),
        (
            tf_config({"worker": 3}, "worker"),
            "cluster 'worker' is 3; a list of addresses is needed",
        ),
        (
            tf_config({"worker": ["a", "b"]}, ["worker"]),
            "has no part in an evaluation; valid",
        ),
        (tf_config({"worker": ["a", "b"]}, "worker", 1.7), "task index 1.7 is not a whole number"),
        (tf_config({"worker": ["a", "b"]}, "worker", True), "task index True is not a whole number"),
        (tf_config({"worker": ["a", "b"]}, "worker", "x"), "task index 'x' is not a whole number"),
        (tf_config({"worker": ["a", "b"]}, "worker", -1), "task index -1 is not a whole number"),
    ],
)
def test_what_no_launcher_would_write_is_refused(environ, message):
    with pytest.raises(RequestError, match=message):
        task(environ)
