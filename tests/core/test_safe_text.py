"""Tests for text that is shown: no secret of an address is in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.manifest.json_line import LineError, parse_json_line
from voxbatch.safe_text import escape_controls, mask_secrets, redact_secrets

SECRET = "Zq9" + "Kx7wVb" * 40


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/a.wav?X-Goog-Signature=SECRET: 403", "https://h/a.wav?…: 403"),
        ("(https://h/a.wav?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET)", "(https://h/a.wav?…)"),
        ("htps://h/a.wav?sv=2026&sig=SECRET%3D rest", "htps://h/a.wav?… rest"),
        ('{"a": "https:\\/\\/h\\/a.wav?sig=SECRET\\u0026x=SECRET"', '{"a": "https:\\/\\/h\\/a.wav?…"'),
        ("https://user:SECRET@host/a.wav", "https://…@host/a.wav"),
        ("https://user:SECRET/SECRET@host/a.wav?SECRET", "https://…@host/a.wav?…"),
        ("https://user:SECRET?SECRET@host/a.wav", "https://…@host/a.wav"),
        ("ftp://SECRET@host", "ftp://…@host"),
        ("gs://b/k?X-Goog-Signature=SECRET&x=1", "gs://b/k?X-Goog-Signature=…&x=1"),
        ("cut&X-Amz-Security-Token=SECRET", "cut&X-Amz-Security-Token=…"),
        ("cut%26sig%3DSECRET", "cut%26sig%3D…"),
        ("AWSAccessKeyId=SECRET&Expires=1&Signature=SECRET, and", "AWSAccessKeyId=…&Expires=1&Signature=…, and"),
        ("token=SECRET; access_token=SECRET", "token=…; access_token=…"),
    ],
)
def test_secret_of_an_address_is_redacted(text: str, shown: str) -> None:
    """Signatures, queries and passwords are redacted, and the text around them stays."""
    assert redact_secrets(text.replace("SECRET", SECRET)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://host:443/mail@home/a.wav",
        "gs://b/what?/mail@home.wav",
        "https://host/a.wav?…: 403 (redirected to https://other/?…)",
        "design=1, max_tokens=448, eos_token=2: 10 @ 5",
        "runs/a.voxbatch//x.wav",
    ],
)
def test_text_without_a_secret_stays(text: str) -> None:
    """Other text is not changed, nor is an address that is already redacted."""
    assert redact_secrets(text) == text


@given(st.text("https:/?&=@…sigtoken.\\\"' a1"))
def test_redaction_keeps_positions_and_is_stable(text: str) -> None:
    """A masked text has the length of the text, and a redacted text is not changed by another redaction."""
    assert len(mask_secrets(text)) == len(text)
    assert redact_secrets(redact_secrets(text)) == redact_secrets(text)


@given(
    st.sampled_from(["https://h/a.wav?X-Goog-Signature={}", "https://u:{}@h/a.wav", "gs://b/a?sig={}", "x?token={}"]),
    st.sampled_from(["", "{", '{"audio_filepath": "', '["', '{"a": 1, "b": "']),
    st.sampled_from(["", '"', '"}', "}", '"]', '", x}']),
    st.integers(0, len(SECRET)),
    st.sampled_from(["", "\\q", "\\"]),
)
def test_message_of_a_bad_line_holds_no_secret(address: str, head: str, tail: str, at: int, flaw: str) -> None:
    """The message of a line that is no JSON object holds no four characters of a secret, wherever it is damaged."""
    line = head + address.format(SECRET[:at] + flaw + SECRET[at:]) + tail
    message = ""
    try:
        parse_json_line(line.encode())
    except LineError as error:
        message = str(error)
    assert not any(SECRET[i : i + 4] in message for i in range(9))


@given(st.text())
def test_escaped_text_holds_no_control_character(text: str) -> None:
    """No C0, DEL or C1 character and no override of the direction is left except those that are allowed, and all other
    characters stay.
    """
    codes = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    controls = set(map(chr, codes))
    assert not controls & set(escape_controls(text))
    assert controls & set(escape_controls(text, "\n")) <= {"\n"}
    assert controls & set(text) or escape_controls(text) == text


def test_control_characters_are_escaped_as_in_python() -> None:
    """An escape sequence, a line end, DEL, a C1 character and a change of direction become visible."""
    assert escape_controls("é\x1b[2J\r\n\x7f\x9b1m\u202egnp") == r"é\x1b[2J\r\n\x7f\x9b1m\u202egnp"
