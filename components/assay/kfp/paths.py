"""Where an artifact of a Kubeflow pipeline lies on this machine.

Runs on the host, on the standard library alone.
"""

from __future__ import annotations

import os

from assay.spec import RequestError

# Where Kubeflow's launcher and Vertex mount buckets and model images.
MOUNTS = {"gs://": "/gcs", "s3://": "/s3", "minio://": "/minio", "oci://": "/oci"}


def local(uri: str) -> str:
    """Returns the path of a URI.

    gs://, s3:// and minio:// become /gcs, /s3 and /minio where their bucket is mounted, oci:// the
    folder `models` of the mounted image; other URIs stay as they are. A gs:// bucket that is not mounted
    stays a URI, which TensorFlow reads and writes itself.

    Raises:
      RequestError: a bucket or an image is not mounted, and there is no other way to it.
    """
    scheme = next((s for s in MOUNTS if uri.startswith(s)), None)
    if scheme is None:
        return uri
    rest = uri[len(scheme) :]
    if scheme == "oci://":
        rest = f"{rest.replace('/', '_')}/models"
    mounted = os.path.join(MOUNTS[scheme], rest.split("/")[0])
    if os.path.isdir(mounted):
        return os.path.join(MOUNTS[scheme], rest)
    if scheme == "gs://":
        return uri
    raise RequestError(
        f"{uri}: {mounted} is not there; Kubeflow's launcher mounts it. Elsewhere give a path or a gs:// URI"
    )
