"""Ask about an image and a document.

Use parts for photos, scans and PDF files. rxloop converts parts for each vendor and reports rejected files.
"""

from pathlib import Path

from pydantic import BaseModel

from rxloop import Agent, FilePart, ImagePart, Message, TextPart
from rxloop.testing import ScriptedModel


class Receipt(BaseModel):
    shop: str
    total: float
    in_policy: bool


Path("receipt.png").write_bytes(b"\x89PNG\r\n\x1a\n")  # stands for a photo
Path("policy.txt").write_text("Meals up to 40 euros are refunded.")

question = Message.user(
    [
        TextPart(text="Read the receipt. Does the policy allow it?"),
        ImagePart.from_path("receipt.png"),  # or ImagePart(url="https://..."), ImagePart(data=..., media_type=...)
        FilePart.from_path("policy.txt"),
    ]
)
model = ScriptedModel('{"shop": "Café Nor", "total": 31.5, "in_policy": true}')  # or "google:gemini-3.5-flash"
result = Agent(model, output_type=Receipt).run_sync(question)

print(result.output)
for part in model.requests[0].messages[0].media:
    print("sent:", part.media_type, len(part.data or b""), "bytes")

# Output:
# shop='Café Nor' total=31.5 in_policy=True
# sent: image/png 8 bytes
# sent: text/plain 34 bytes
