"""Writes promtool's input files from a rendered chart's PrometheusRule and a Grafana dashboard.

chart/alerts.rs runs this script. Arguments: a manifest, a dashboard, the tests of the alerts, an output folder. It
writes `rules.yaml` (the rules unchanged), `dashboard.yaml` (each expression of the dashboard as a rule),
`tested.yaml` (the rules with only the summary of their annotations) and `tests.yaml`. It fails unless each alert has
a test in which it fires and one in which it does not.
"""

import json
import pathlib
import sys

import yaml

manifest, dashboard, tests, into = map(pathlib.Path, sys.argv[1:])
documents = filter(None, yaml.safe_load_all(manifest.read_text()))
rules = next(it["spec"] for it in documents if it["kind"] == "PrometheusRule")
(into / "rules.yaml").write_text(json.dumps(rules))

panels = json.loads(dashboard.read_text())["panels"]
queries = []
for panel in panels:
    for target in panel.get("targets", []):
        query = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "6h")
        name = f"dashboard:panel_{panel['id']}_{target['refId']}"
        queries.append({"record": name, "expr": query})
(into / "dashboard.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))

alerts = [rule for group in rules["groups"] for rule in group["rules"]]
for rule in alerts:
    rule["annotations"] = {"summary": rule["annotations"]["summary"]}
(into / "tested.yaml").write_text(json.dumps(rules))
test_file = yaml.safe_load(tests.read_text())
# The test file uses the short key `at` for what promtool calls `alert_rule_test`.
for test in test_file["tests"]:
    test["alert_rule_test"] = test.pop("at")
(into / "tests.yaml").write_text(json.dumps({"rule_files": ["tested.yaml"], **test_file}))

seen = {rule["alert"]: set() for rule in alerts}
for test in test_file["tests"]:
    for expected in test["alert_rule_test"]:
        seen[expected["alertname"]].add(bool(expected.get("exp_alerts")))
for alert, outcomes in seen.items():
    if outcomes != {True, False}:
        sys.exit(f"{alert} is never seen to {'fire' if True not in outcomes else 'stay silent'}")
