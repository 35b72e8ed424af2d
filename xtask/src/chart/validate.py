"""Validates rendered manifests against the schemas of Kubernetes and of custom resources.

chart/mod.rs runs this script. Arguments: a Kubernetes version, a folder of schemas of custom resources, and a folder of
manifests, each RELEASE.NAME.yaml. Object names must contain RELEASE, unless it is `-`. The output has the format of
Rust's test programs.
"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

version, schemas, manifests = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
custom = {}
for file in sorted(schemas.glob("*.json")):
    schema = json.loads(file.read_text())
    for kind, spec in schema["kinds"].items():
        custom[schema["apiVersion"], kind] = {"definitions": schema["definitions"], **spec}


def wrong(document, release):
    kind = document.get("apiVersion"), document.get("kind")
    name = document.get("metadata", {}).get("name", "")
    where = f"{kind[1]} {name}"
    if release != "-" and release not in name:
        yield f"{where}: its name does not contain the release name, which DPF requires"
    if kind in custom:
        errors = jsonschema.Draft7Validator(custom[kind]).iter_errors(document.get("spec"))
        for error in errors:
            yield f"{where}: spec/{'/'.join(map(str, error.absolute_path))}: {error.message}"
        return
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{where}: {'/'.join(map(str, error.absolute_path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        yield f"{where}: {error.message}"


failed = passed = 0
for file in sorted(manifests.glob("*.yaml")):
    release, case, _ = file.name.split(".", 2)
    documents = [it for it in yaml.safe_load_all(file.read_text()) if it]
    identities = [(it.get("kind"), it["metadata"]["name"]) for it in documents]
    problems = [problem for it in documents for problem in wrong(it, release)]
    problems += [f"{it} is there twice" for it in set(identities) if identities.count(it) > 1]
    problems += [] if documents else ["nothing was rendered"]
    for problem in problems:
        print(f"{case}: {problem}")
    print(f"test schema::{case} ... {'FAILED' if problems else 'ok'}")
    failed, passed = failed + bool(problems), passed + (not problems)
print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {failed} failed; 0 ignored")
sys.exit(bool(failed))
