"""Writes the Helm values that DPF passes to the chart: the values of each sample, and those that DPF adds, as JSON.

chart/mod.rs runs this script, because xtask has no YAML parser. Arguments: a folder of DPF samples, an output folder.
"""

import json
import pathlib
import sys

import yaml

samples, into = map(pathlib.Path, sys.argv[1:])


def exposed(metadata, ports):
    """Values that DPF adds for forwarded ports, and the labels by which it finds their Service."""
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
