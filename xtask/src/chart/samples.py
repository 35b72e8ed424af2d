"""Writes what DPF would hand to the chart: of each sample that has values for it, those and what DPF adds, as JSON.

Arguments: a folder of samples, and one for the files of values. The peer of chart/mod.rs, for PyPI's parser of YAML.
"""

import json
import pathlib
import sys

import yaml

samples, into = map(pathlib.Path, sys.argv[1:])
for file in sorted(samples.glob("*.yaml")):
    for document in filter(None, yaml.safe_load_all(file.read_text())):
        spec = document["spec"]
        if document["kind"] == "DPUServiceConfiguration":
            spec = spec["serviceConfiguration"]
        if "helmChart" not in spec:
            continue
        values = dict(spec["helmChart"].get("values", {}))
        handed = ("serviceID", "serviceDaemonSet")
        values.update({key: spec[key] for key in handed if key in spec})
        (into / f"{file.stem}.json").write_text(json.dumps(values))
