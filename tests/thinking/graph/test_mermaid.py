"""Escaping of labels in Mermaid diagrams."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.protocol.events import ThoughtStreamEvent
from rxloop.support.text import to_mermaid_text, to_one_line
from rxloop.thinking.graph import ThoughtGraph
from support.processes.services import CHROMIUM, mermaid_file

LABELS = [
    "echo $$ > pid; kill $$",
    "$$x$$ lambda$$1",
    "a fa:fa-ban b fab:fa-x mdi:home",
    "\\n \\(x\\)",
    "ﬂ°°36¶ß x ﬂ°36¶ß °¶ß",
    "&lt;x&gt; &amp;#36; #36;#36; &nbsp;",
    "<b>x</b><script>alert(1)</script>",
    "%%{init: {}}%%",
    "`code` **bold** _it_ [link](http://x)",
    "1. one",
    "end",
    '"quoted" @{shape: circle} ::icon(fa fa-book)',
    "😀 é 漢字 \u202e",
]
PAGE = """<html><meta charset="utf-8"><div id="out"></div><script>@MERMAID@</script><script>
mermaid.initialize({startOnLoad: false});
(async () => {
  const shown = [];
  for (const [place, text] of @TEXTS@.entries()) {
    try {
      const box = document.createElement("div");
      box.innerHTML = (await mermaid.render("d" + place, text)).svg;
      const label = box.querySelector(".nodeLabel").innerHTML.replace(/<br *\\/?>/g, " ");
      shown.push([label.replace(/<[^>]*>/g, ""), box.querySelectorAll("i, script, a, .katex").length]);
    } catch (error) { shown.push(["throws " + error.message, 0]); }
  }
  const bytes = new TextEncoder().encode(JSON.stringify(shown));
  document.getElementById("out").textContent = "<<" + btoa(String.fromCharCode(...bytes)) + ">>";
})();
</script></html>"""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def decode_label(text: str) -> str:
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), text)


@given(st.text() | st.text(alphabet="$:fa-\\n°¶ßﬂ#36; "))
def test_label_contains_no_mermaid_syntax(text: str) -> None:
    label = to_mermaid_text(text)
    assert re.fullmatch(r"(?:[\w ,'()/?!]|#\d+;)*", label)
    decoded = decode_label(label)
    assert decoded.replace("\u200b", "") == text.replace("\u200b", "")
    for syntax in (r"\$\$", r"\bfa[a-z]?:fa-", r"\\n", "ﬂ°", "¶ß"):
        assert re.search(syntax, decoded) is None


@pytest.mark.service("chromium")
@pytest.mark.service("mermaid")
def test_mermaid_renders_labels_unchanged(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    drawings = [ThoughtGraph.of([ThoughtStreamEvent(thought_id="t", content=label)]).to_mermaid() for label in LABELS]
    source = mermaid_file().read_text(encoding="utf-8").replace("</script", "<\\/script")
    texts = json.dumps(drawings).replace("<", "\\u003c")
    file = tmp_path / "page.html"
    file.write_text(PAGE.replace("@MERMAID@", source).replace("@TEXTS@", texts), encoding="utf-8")
    command = [CHROMIUM, *FLAGS, "--virtual-time-budget=60000", f"--user-data-dir={tmp_path}", "--dump-dom"]
    page = subprocess.run([*command, file.as_uri()], check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"&lt;&lt;([\w+/=]+)&gt;&gt;", page)
    assert found is not None
    shown = [[html.unescape(text), tags] for text, tags in json.loads(base64.b64decode(found[1]))]
    assert [[_even(text), tags] for text, tags in shown] == [
        [_even(f"thinking t {to_one_line(x, 120)}"), 0] for x in LABELS
    ]


def _even(text: str) -> str:
    return " ".join(text.replace("\u200b", "").split())
