"""Names that one pack uses, where that pack is widely used: that they are there and do what the pack needs."""

from __future__ import annotations

import uuid


def test_modules_taken_from_the_server():
    """Video Helper Suite queues its own prompt again under an id from `server.uuid`."""
    import server

    assert uuid.UUID(str(server.uuid.uuid4())).version == 4
    assert server.web.json_response({}).status == 200
