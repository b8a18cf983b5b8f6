"""The language as JSON Schema, for completion in editors; from the table that reads files."""

from .language import ROOT, SERVES, VERSION
from .shapes import Json


def json_schema() -> Json:
    """The language as JSON Schema (draft 2020-12), for completion in editors."""
    root = ROOT.json()
    properties = root["properties"]
    if isinstance(properties, dict):
        properties["serves"] = {"description": ROOT.keys["serves"].doc, **SERVES.json()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"fa4gen schedule language, version {VERSION}",
        "if": {"required": ["extends"]},
        "then": {**_patch(root), "required": ["language", "schedule", "extends"]},
        "else": root,
    }


def _patch(schema: Json) -> Json:
    """The same for a file that extends another: nothing is required, and null takes a key away."""
    out: Json = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties") and isinstance(value, dict):
            out[key] = {k: {"anyOf": [_patch(v), {"type": "null"}]} for k, v in value.items()}
        elif key == "anyOf" and isinstance(value, list):
            out[key] = [_patch(v) for v in value]
        elif key not in ("required", "minProperties"):
            out[key] = value
    return out
