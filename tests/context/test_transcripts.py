"""Compression of transcripts that were not used for tuning."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from rxloop import SemanticCompressor, SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context import TokenEstimator
from rxloop.context.compression import CompressionState
from rxloop.pipeline.interfaces import Compressor
from rxloop.protocol.messages import Message
from support.histories import call, compress, turn

counter = TokenEstimator()
Kind = tuple[list[Message], list[str]]


def make_russian(random: Random) -> Kind:
    """Make a dialogue about orders, with prose results."""
    history = [Message.user("Помогите разобраться с заказами нашей фирмы за март.")]  # noqa: RUF001
    needed: list[str] = []
    for number in range(24):
        order, amount = f"{random.randrange(10_000, 99_999)}", f"{random.randrange(1_000, 9_000)},50"
        needed += [order, amount]
        history += turn(
            (
                call(f"c{number}", "найти_заказ", номер=order),
                f"Заказ {order} отправлен, сумма {amount} рублей. " + _RU * 3,
            ),
            text="Сейчас посмотрю следующий заказ.",
        )
    return history, needed


def make_chinese(random: Random) -> Kind:
    """Make a dialogue without spaces."""
    history = [Message.user("请帮我核对三月份所有客户的订单。")]
    needed: list[str] = []
    for number in range(24):
        order, day = f"DD{random.randrange(100_000, 999_999)}", f"3月{number + 1}日"
        needed += [order, day]
        history += turn((call(f"c{number}", "query", page=number), f"订单{order}已于{day}发出。" + _ZH * 4))
    return history, needed


def make_logs(random: Random) -> Kind:
    """Make a search in log files."""
    history = [Message.user("Why did checkout fail last night?")]
    needed: list[str] = []
    for number in range(20):
        host, trace = f"node-{random.randrange(100, 999)}.eu-west", f"{random.getrandbits(40):010x}"
        needed += [host, trace]
        noise = "".join(f"12:{number:02d}:{second:02d} DEBUG heartbeat ok seq={second}\n" for second in range(30))
        line = f"12:{number:02d}:31 ERROR upstream {host} timed out trace={trace}\n"
        history += turn((call(f"c{number}", "grep", pattern="ERROR", file=f"/var/log/app.{number}.log"), noise + line))
        needed.append(f"/var/log/app.{number}.log")
    return history, needed


def make_review(random: Random) -> Kind:
    """Make a code review."""
    history = [Message.user("Review the patch and tell me what to change.")]
    needed: list[str] = []
    names = ["parser", "cache", "router", "store", "mailer", "queue", "session", "report", "billing", "search"]
    for number, name in enumerate(names):
        path, function = f"src/{name}/handlers.py", f"load_{name}_{random.randrange(10, 99)}"
        needed += [path, function]
        body = "".join(f"+        value = value + step  # round {line}\n" for line in range(25))
        diff = f"--- a/{path}\n+++ b/{path}\n@@ -10,6 +10,40 @@ def {function}(self):\n{body}"
        history += turn((call(f"c{number}", "show_diff", path=path), diff), text="Next file.")
    return history, needed


def make_german(random: Random) -> Kind:
    """Make correspondence with names and contract numbers."""
    history = [Message.user("Fasse den Schriftverkehr mit den Mietern zusammen.")]
    needed: list[str] = []
    for number, name in enumerate(["Jürgen Größmann", "Änne Süß", "Gülşen Öztürk", "Zoë Müller", "Björn Weiß"] * 3):
        contract = f"MV-{random.randrange(1_000, 9_999)}/{number}"
        needed += [name, contract]
        text = f"Sehr geehrte Damen und Herren, mein Name ist {name}, mein Vertrag ist {contract}. " + _DE * 3
        history += turn((call(f"c{number}", "read_letter", index=number), text))
    return history, needed


_RU = "Клиент доволен и просит больше ничего не менять, всё остальное идёт по обычному порядку без замечаний. "
_ZH = "客户表示满意,其余事项按照平常的流程办理,没有其他需要注意的地方。"
_DE = "Die Wohnung ist schön und ruhig gelegen, und wir sind mit allem anderen im Großen und Ganzen sehr zufrieden. "


@pytest.mark.parametrize(
    "kind", [make_russian, make_chinese, make_logs, make_review, make_german], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("make", [SlidingWindowCompressor, SemanticCompressor, TokenBudgetCompressor])
@pytest.mark.parametrize(("share", "min_share"), [(0.25, 0.85), (0.5, 0.95)])
def test_early_values_are_in_the_compressed_request(
    kind: Callable[[Random], Kind], make: Callable[[int], Compressor], share: float, min_share: float
) -> None:
    history, needed = kind(Random(7))
    limit = int(share * counter.count(history))
    state: CompressionState | None = None
    sent: list[Message] = []
    for stop in range(1, len(history) + 1, 2):
        result = compress(make(limit), history[:stop], counter, state=state)
        state, sent = result.state, list(result.messages)
        assert not result.budget_unmet
    text = "\n".join([m.text for m in sent] + [str(one.arguments) for m in sent for one in m.tool_calls])
    present = [value for value in needed if value in text]
    assert len(present) >= min_share * len(needed), sorted(set(needed) - set(present))
