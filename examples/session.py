"""Sessions of an agent: each conversation is an entity, which remembers what was said.

    python examples/session.py ann "my name is Ann, and I have bought a lamp"
    python examples/session.py ann "what have I bought?"
    python examples/session.py ann --show

No key is needed: a function stands for the model. Send from several terminals at once, and kill any
of them with `kill -9`: messages of one session are answered one after another, and no recorded
answer of the model is paid for twice.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from dataclasses import dataclass, field

from holdfast import App, local, reads

app = App("assistant")

THINKING = 0.5  # seconds
REMEMBERED = 20  # messages


@dataclass
class Message:
    """What was said, and by whom."""

    role: str
    text: str


@app.step
async def ask_model(messages: list[Message]) -> str:
    """Stand for a model that reads all of a conversation."""
    print(f"request with {len(messages)} messages to the model", flush=True)
    await asyncio.sleep(THINKING)
    said = " ".join(each.text for each in messages if each.role == "user")
    things = re.findall(r"(?:bought|ordered) (?:a|an) (\w+)", said)
    return f"you have bought: {', '.join(things) or 'nothing yet'}"


@app.entity
@dataclass
class Session:
    """A conversation. One answer at a time: a second message waits for the first one's answer."""

    messages: list[Message] = field(default_factory=list)
    answered: int = 0

    async def say(self, text: str) -> str:
        """Answer a message."""
        self.messages.append(Message("user", text))
        answer = await ask_model(self.messages)
        self.messages.append(Message("assistant", answer))
        self.messages = self.messages[-REMEMBERED:]  # each change writes the whole state
        self.answered += 1
        return answer

    @reads
    async def history(self) -> list[Message]:
        """Return what was said, without waking anything."""
        return self.messages


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--id", help="of the message: the same id is answered once")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    async with local(app) as client:
        session = client.entity(Session, options.session, call_id=options.id)
        if options.text:
            print(await session.say(options.text))
        if options.show or not options.text:
            for message in await session.history():
                print(f"{message.role}: {message.text}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; what was said is kept") from None
