"""Images and files in messages."""  # P31

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from pathlib import Path

import pytest

from rxloop.protocol.media import decode_base64, make_part, resolve
from rxloop.protocol.messages import FilePart, ImagePart

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(240, 256)) * 2
JPEG = b"\xff\xd8\xff\xe0" + b"\x01" * 20
PDF = b"%PDF-1.7 \xff\xfe"
BASE64 = b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("declared", "data", "kind", "media_type"),
    [
        ("image/png", PNG, "image", "image/png"),
        ("image/jpg", b"jpeg", "image", "image/jpeg"),
        ("image/JPEG", b"jpeg", "image", "image/jpeg"),
        ("IMAGE/PNG; charset=binary", b"png", "image", "image/png"),
        ("image/x-png", b"png", "image", "image/png"),
        ("image/pjpeg", b"jpeg", "image", "image/jpeg"),
        ("png", b"png", "image", "image/png"),
        ("image/jpeg", PNG, "image", "image/png"),
        ("image/png", JPEG, "image", "image/jpeg"),
        ("image/png", b"GIF89a..", "image", "image/gif"),
        ("image/png", b"RIFF\0\0\0\0WEBPVP8 ", "image", "image/webp"),
        ("image/png", PDF, "pdf", "application/pdf"),
        ("application/x-pdf", b"pdf", "pdf", "application/pdf"),
        ("application/octet-stream", PNG, "image", "image/png"),
        ("image/*", PNG, "image", "image/png"),
        (None, PNG, "image", "image/png"),
        (None, PDF, "pdf", "application/pdf"),
        ("image/png", BASE64.encode(), "image", "image/png"),
        ("image/png", f"data:image/png;base64,{BASE64}".encode(), "image", "image/png"),
        ("image/bmp", b"BM", "image", "image/bmp"),
        ("image/x-ms-bmp", b"BM", "image", "image/bmp"),
        ("image/png", b"\0\0\0\x18ftypavif", "image", "image/avif"),
        ("image/png", b"PK\x03\x04", "other", "application/zip"),
        ("audio/x-wav", b"RIFF\0\0\0\0WAVE", "audio", "audio/wav"),
        ("audio/mp3", b"ID3\x03", "audio", "audio/mpeg"),
        ("video/mp4", b"\0\0\0\x18ftypisom", "video", "video/mp4"),
    ],
)
@pytest.mark.parametrize("cls", [ImagePart, FilePart])
def test_resolve_reads_the_type_of_bytes(
    cls: type[ImagePart | FilePart], declared: str | None, data: bytes, kind: str, media_type: str
) -> None:
    media = resolve(cls(data=data, media_type=declared))
    assert media.kind == kind
    assert media.media_type == media_type
    assert media.problem is None
    assert media.data == (PNG if BASE64[:10].encode() in data else data)


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"DATA:image/png;base64,{BASE64}",
        f" data:IMAGE/PNG;BASE64,{BASE64}\n",
        f"data:image/png;base64,{BASE64.rstrip('=')}",
        f"data:image/png;base64,{urlsafe_b64encode(PNG).decode()}",
        f"data:image/png;base64,{urlsafe_b64encode(PNG).decode().rstrip('=')}",
        "data:image/png;base64," + "\r\n".join(BASE64[at : at + 10] for at in range(0, len(BASE64), 10)),
        "data:image/png;base64, " + " ".join(BASE64[at : at + 10] for at in range(0, len(BASE64), 10)),
        "data:image/png;base64," + BASE64.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        f"data:image/png;charset=binary;base64,{BASE64}",
        f"data:image/jpg;base64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"data:application/octet-stream;base64,{BASE64}",
        f"data:image/png,{BASE64}",
        "data:image/png," + "".join(f"%{byte:02X}" for byte in PNG),
    ],
)
def test_resolve_reads_data_urls(url: str) -> None:
    for part in (ImagePart(url=url), FilePart(url=url, filename="a.png")):
        media = resolve(part)
        assert media.kind == "image"
        assert media.media_type == "image/png"
        assert media.data == PNG
        assert media.url is None
        assert media.data_url == f"data:image/png;base64,{BASE64}"


def test_resolve_reads_parameters_of_data_urls() -> None:
    named = resolve(FilePart(url=f"data:image/png;name=x%20y.png;base64,{BASE64}"))
    assert named.name == "x y.png"
    assert named.data == PNG
    quoted = resolve(FilePart(url=f'data:image/png;name="a,b.png";base64,{BASE64}'))
    assert quoted.name == "a,b.png"
    assert quoted.data == PNG
    plain = resolve(FilePart(url="data:,Gr%C3%BC%C3%9Fe"))
    assert plain.kind == "text"
    assert plain.text == "Grüße"
    assert resolve(FilePart(url="data:text/csv;charset=latin-1;base64,R3L832U=")).text == "Grüße"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("data:image/png;base64,no!", "not valid base64"),
        ("data:image/png;base64,AAAAA", "not valid base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64", "comma"),
        ("data:,", "empty"),
        ("a.png", "not an https"),
        ("s3://bucket/a.png", "not an https"),
        ("http://[", "not an https"),
        ("https://e.org/a\r\nb.png", "not an https"),
        ("https://e.org/\x9b.png", "not an https"),
        ("", "not an https"),
    ],
)
def test_resolve_names_the_problem_of_a_url(url: str, problem: str) -> None:
    media = resolve(ImagePart(url=url))
    assert problem in (media.problem or "")
    assert media.data is None
    assert media.url is None


@pytest.mark.parametrize("path", ["./a.png", "../a.png", "/tmp/a.png", "~/a.png", "C:\\a.png", "c:/a.png", "file:///a"])
def test_local_path_is_not_a_url(path: str) -> None:
    for cls in (ImagePart, FilePart):
        with pytest.raises(ValueError, match=r"from_path\("):
            cls(url=path)
    # A recorded part can be read, but is never sent as a URL.
    recorded = ImagePart.model_validate_json(b'{"url": %s}' % encode_json_string(path))
    media = resolve(recorded)
    assert media.url is None
    assert "from_path" in (media.problem or "")
    with pytest.raises(ValueError, match="https://"):
        make_part(url=path)


def encode_json_string(text: str) -> bytes:
    return b'"' + text.replace("\\", "\\\\").encode() + b'"'


def test_path_object_is_not_a_url() -> None:
    with pytest.raises(ValueError, match=r"from_path\("):
        ImagePart(url=Path("a.png"))  # pyright: ignore[reportArgumentType]


def test_media_type_is_derived_from_bytes_or_name() -> None:
    assert ImagePart(data=PNG).media_type == "image/png"
    assert FilePart(data=b"a", filename="a.csv").media_type == "text/csv"
    with pytest.raises(ValueError, match="media_type"):
        FilePart(data=b"\0\1")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (FilePart(data="Grüße".encode(), media_type="text/plain"), "Grüße"),
        (FilePart(data=b"\xef\xbb\xbfa,b", media_type="text/csv"), "a,b"),
        (FilePart(data="Grüße".encode("utf-16"), media_type="text/plain"), "Grüße"),
        (FilePart(data="Gr\xfc\xdfe".encode("latin-1"), media_type="text/plain"), "Grüße"),
        (FilePart(data="Grüße, 5 €".encode("cp1252"), media_type="text/plain"), "Grüße, 5 €"),
        (FilePart(data="Привет".encode("koi8-r"), media_type="text/plain; charset=koi8-r"), "Привет"),
        (FilePart(data=b"{}", media_type="application/json"), "{}"),
        (FilePart(data=b"<a/>", media_type="application/atom+xml"), "<a/>"),
        (FilePart(data=b"fn main() {}", media_type="application/octet-stream", filename="main.rs"), "fn main() {}"),
        (FilePart(data=b"let a", media_type="video/mp2t", filename="a.ts"), "let a"),
        (FilePart(data=b"a,b", media_type="application/vnd.ms-excel", filename="a.csv"), "a,b"),
        (FilePart(data=b"all: a", media_type="application/octet-stream", filename="Makefile"), "all: a"),
        (FilePart(data=b"<svg/>", media_type="image/svg+xml"), "<svg/>"),
        (FilePart(data=b"\x00\x01", media_type="text/plain"), None),
        (FilePart(data=b"\xff", media_type="text/plain"), None),
        (FilePart(data=b"PK\x03\x04", media_type="text/plain"), None),
    ],
)
def test_resolve_decodes_text_files(part: FilePart, text: str | None) -> None:
    media = resolve(part)
    assert media.text == text
    assert (media.kind == "text") == (text is not None)


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("https://e.org/a.png", None),
        ("gs://bucket/a.png", "google"),
        ("https://youtu.be/a", "google"),
        ("https://generativelanguage.googleapis.com/v1beta/files/a", "google"),
        ("file-abc123", "openai"),
        ("file_011CNha8iCJcU1wXNR6q4V8w", "anthropic"),
    ],
)
def test_resolve_recognises_the_vendor_that_stores_a_file(url: str, store: str | None) -> None:
    assert resolve(FilePart(url=url)).store == store
    assert resolve(FilePart(url=url)).url == url


@pytest.mark.parametrize("name", ["a.pdf", "/tmp/x/a.pdf", "C:\\x\\a.pdf", "../a.pdf", "a\n.pdf"])
def test_name_is_the_last_component_of_a_path(name: str) -> None:
    assert resolve(FilePart(data=PDF, filename=name)).name == "a.pdf"


def test_make_part_reads_media_of_clients() -> None:
    assert make_part(data=BASE64, media_type="image/jpg") == ImagePart(data=PNG, media_type="image/png")
    assert make_part(url=f"DATA:image/png;base64,{BASE64}", image=True) == ImagePart(data=PNG, media_type="image/png")
    assert make_part(data=PDF, media_type="image/png", image=True) == FilePart(data=PDF, media_type="application/pdf")
    latin = make_part(data=b"Gr\xfc\xdfe", media_type="text/plain; charset=latin-1")
    assert resolve(latin).text == "Grüße"
    assert make_part(url="https://e.org/a", image=True) == ImagePart(url="https://e.org/a")
    for bad in ("no!", "", "===="):
        with pytest.raises(ValueError, match=r"base64|empty"):
            make_part(data=bad, media_type="image/png")
    with pytest.raises(ValueError, match="media_type"):
        make_part(data=b"\x00\x01")


def test_decode_base64_rejects_invalid_data() -> None:
    assert decode_base64("_-8") == b"\xff\xef"
    for bad in ("a", "ä", "a!b=", "AAAAA"):
        with pytest.raises(ValueError, match="base64"):
            decode_base64(bad)
