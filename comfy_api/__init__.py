"""The node programming interface (spec node-api.md): `latest` and its fixed versions."""
