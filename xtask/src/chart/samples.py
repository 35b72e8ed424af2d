"""Writes what DPF would hand to the chart: of each sample that has values for it, those and what DPF adds, as JSON.

Arguments: a folder of samples, and one for the files of values. The peer of chart/mod.rs, for PyPI's parser of YAML.
"""

import json
import pathlib
import sys

import yaml

samples, into = map(pathlib.Path, sys.argv[1:])


def exposed(metadata, ports):
    """What it says of the ports that it forwards, and the labels by which it finds the Service that has them."""
    prefix = "dpu.nvidia.com/dpuservice-"
    labels = {prefix + key: metadata[key] for key in ("name", "namespace")}
    return {"ports": {port["name"]: True for port in ports["ports"]}, "labels": labels}


for file in sorted(samples.glob("*.yaml")):
    for document in filter(None, yaml.safe_load_all(file.read_text())):
        spec = document["spec"]
        if document["kind"] == "DPUServiceConfiguration":
            spec = spec["serviceConfiguration"]
        if "helmChart" not in spec:
            continue
        values = dict(spec["helmChart"].get("values", {}))
        daemon_set = dict(spec.get("serviceDaemonSet", {}))
        labels = {"svc.dpu.nvidia.com/service": spec.get("serviceID", "made-by-dpf")}
        values["serviceDaemonSet"] = {**daemon_set, "labels": {**daemon_set.get("labels", {}), **labels}}
        if "configPorts" in spec:
            values["exposedPorts"] = exposed(document["metadata"], spec["configPorts"])
        (into / f"{file.stem}.json").write_text(json.dumps(values))
