"""The OpenAPI description of the API, made from the table of routes."""

from __future__ import annotations

from typing import Any

from staddle import __version__

from .operations import Field, Route, routes


def description() -> dict[str, Any]:
    """Return the description, as data for JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for row in routes().values():
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "staddle",
            "version": __version__,
            "description": "Sandboxes that a server holds for other programs.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "what"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "name of the error's class in staddle.errors, or Python's",
                },
                "what": {"type": "string"},
                "why": {"type": "string"},
                "fix": {"type": "string"},
            },
        }
    },
}


def _operation(row: Route) -> dict[str, Any]:
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in row.segments
        if part[:1] == "{"
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "required": field.required,
            "description": field.text,
            "schema": _schema(field),
        }
        for name, field in row.query.items()
    ]
    is_json = row.returns in ("object", "array")
    answer: dict[str, Any] = {"description": row.text}
    if is_json:
        answer["content"] = {"application/json": {"schema": {"type": row.returns}}}
    elif row.returns != "websocket":
        answer["content"] = {row.returns: {}}
    failure = {
        "description": "An error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    found: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.text,
        "parameters": parameters,
        "responses": {str(row.status): answer, "default": failure},
    }
    if isinstance(row.body, str):
        found["requestBody"] = {"content": {row.body: {}}}
    elif row.body:
        required = [name for name, field in row.body.items() if field.required]
        properties = {name: {**_schema(field), "description": field.text} for name, field in row.body.items()}
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        found["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": schema}},
        }
    return found


def _schema(field: Field) -> dict[str, Any]:
    kinds = field.type.split("|")
    return {"type": kinds[0] if len(kinds) == 1 else kinds}
