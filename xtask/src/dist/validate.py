"""Validates bills of materials against the schema of CycloneDX 1.6. Prints each error, and exits with 1 for any."""

import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

validator = JsonStrictValidator(SchemaVersion.V1_6)
wrong = False
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        error = validator.validate_str(file.read())
    if error is not None:
        wrong = True
        print(f"{path}: {error!r}"[:2000], file=sys.stderr)
sys.exit(wrong)
