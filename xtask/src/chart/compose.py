"""Prints a YAML file as JSON. The peer of chart/compose.rs, for PyPI's parser of YAML."""

import json
import sys

import yaml

json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)
