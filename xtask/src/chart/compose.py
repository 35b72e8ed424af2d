"""Prints a YAML file as JSON.

chart/compose.rs runs this script to parse compose.yaml, because xtask has no YAML parser.
"""

import json
import sys

import yaml

json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)
