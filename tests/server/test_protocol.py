"""JSON and frames on the wire (spec: websocket.md)."""

import io
import json
import math

import pytest
from PIL import Image

import protocol


def test_numbers_that_json_lacks_become_null():
    data = {"nan": math.nan, "inf": [math.inf, -math.inf], "big": 2**70, "surrogate": "\ud800", 5: 1.5}
    parsed = json.loads(protocol.to_json(data))
    assert parsed == {"nan": None, "inf": [None, None], "big": 2**70, "surrogate": "\ud800", "5": 1.5}


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, {"x": [object()]}])
def test_what_json_cannot_express_is_refused(value):
    with pytest.raises(protocol.UnsendableError):
        protocol.to_json(value)


def test_cycles_are_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(protocol.UnsendableError):
        protocol.to_json(loop)


def test_parsing_is_lenient_and_exact():
    got = protocol.from_json(b'\xef\xbb\xbf{"seed": 18446744073709551617, "x": NaN, "y": "\\ud800"}')
    assert got["seed"] == 2**64 + 1 and math.isnan(got["x"]) and got["y"] == "\ud800"


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("core", [b"1", b"[]", b'"\\ud800"', b"9" * 30])
def test_what_is_parsed_can_be_written_again_however_deep_it_is(opening, closing, core):
    accepted = refused = 0
    for times in (1, 100, 119, 239, 240, 260, 500, 1000, 50_000):
        try:
            value = protocol.from_json(opening * times + core + closing * times)
        except protocol.InvalidJson:
            assert times * opening.count(b"[") + times * opening.count(b"{") >= protocol.DEEPEST
            refused += 1
        else:
            accepted += 1
            answer = {"error": [{"extra_info": {"received_value": [value]}}]}
            assert json.loads(protocol.to_json(answer)) == json.loads(json.dumps(answer))
    assert accepted >= 3 and refused >= 3


def test_long_bodies_are_not_taken_for_deep_ones():
    long = [[[]] * 1000, {"a": {}, "b": [2**70] * 500}]
    assert protocol.from_json(json.dumps(long)) == long


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{'a': 1}"])
def test_bad_json(text):
    with pytest.raises(protocol.InvalidJson):
        protocol.from_json(text)


def test_text_frame_bytes():
    assert protocol.text_frame("h\u00e9", "12") == b"\0\0\0\x03\0\0\0\x0212h\xc3\xa9"


@pytest.mark.parametrize("image_format, number", [("JPEG", 1), ("PNG", 2)])
def test_preview_frames(image_format, number):
    image = Image.new("RGBA", (16, 8), (255, 0, 0, 128))
    plain, binary = protocol.encode_event(2, (image_format, image, 32))
    assert binary and plain[:8] == b"\0\0\0\x01" + bytes([0, 0, 0, number])
    with Image.open(io.BytesIO(plain[8:])) as decoded:
        assert decoded.format == image_format and decoded.size == (32, 16)
    described, _ = protocol.encode_event(4, ((image_format, image, None), {"node_id": "7"}))
    length = int.from_bytes(described[4:8], "big")
    metadata = json.loads(described[8 : 8 + length])
    assert described[:4] == b"\0\0\0\x04"
    assert metadata == {"node_id": "7", "image_type": "image/" + image_format.lower()}
    with Image.open(io.BytesIO(described[8 + length :])) as decoded:
        assert decoded.size == (16, 8)


def test_named_events_do_not_take_bytes():
    with pytest.raises(protocol.UnsendableError):
        protocol.encode_event("x", b"data")
    with pytest.raises(protocol.UnsendableError):
        protocol.encode_event(3, "text")
