"""Convert a folder of documents to HTML: other workers' queues, a child run each, an approval.

    python examples/convert.py FOLDER OUTPUT [--slow]

Each .md and .txt file is a run of its own, converted by an activity on the queue `conversion`;
before anything is written to OUTPUT, you are asked. Kill it at any moment and start it again:
what was converted is not converted again, and what you decided holds.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import sys
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import markup

from holdfast import App, ChildFailed, Client, Context, Retry, RunHandle, local
from holdfast.errors import ApprovalClosed, ApprovalDecided
from holdfast.worker import WorkerOptions

app = App("convert")

CONVERSION = "conversion"
DECIDE_WITHIN = "1d"
SUFFIXES = {".md", ".txt"}


@dataclass
class Job:
    """Which documents go where, and the pause in seconds after each conversion."""

    folder: str
    output: str
    pause: float = 0.0


@dataclass
class Document:
    """One file, relative to its folder."""

    folder: str
    name: str
    pause: float = 0.0


@dataclass
class Page:
    """A document as HTML; `name` is relative to the output."""

    name: str
    title: str
    words: int
    body: str


@dataclass
class Cover:
    """The values that the person who approves may give."""

    title: str = "Documents"


@dataclass
class Site:
    """What was written, and why some documents are missing."""

    written: list[str]
    failed: list[str]
    verdict: str


@app.step
def list_documents(folder: str) -> list[str]:
    """Return the names of the folder's documents."""
    root = Path(folder)
    found = (path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(str(path.relative_to(root)) for path in found)


def is_passing(error: BaseException) -> bool:
    """Return True if another try may help: a file that is not text never becomes one."""
    return not isinstance(error, UnicodeDecodeError)


@app.activity(
    queue=CONVERSION, retry=Retry(attempts=3, should_retry=is_passing), start_to_close="1m"
)
def convert(document: Document) -> Page:
    """Read one document and make a page of it."""
    print(f"converting {document.name}\n", end="", flush=True)  # whole, from several threads
    path = Path(document.folder, document.name)
    text = path.read_text(encoding="utf-8")
    body = markup.from_markdown(text) if path.suffix == ".md" else markup.from_plain(text)
    title = markup.heading(body) or html.escape(path.stem)
    time.sleep(document.pause)
    return Page(f"{document.name}.html", title, len(text.split()), body)


@app.step
def write_page(output: str, page: Page) -> str:
    """Write a page under a temporary name and rename it; the same page again does no harm."""
    target = Path(output, page.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    partial.write_text(
        f"<!doctype html>\n<meta charset=utf-8>\n<title>{page.title}</title>\n{page.body}",
        encoding="utf-8",
    )
    partial.replace(target)
    return page.name


@app.workflow
async def convert_document(ctx: Context, document: Document) -> Page:
    """Convert one document: a run of its own, which is tried again and looked at by itself."""
    page = await convert(document)
    ctx.set_value("words", page.words)
    return page


@app.workflow
async def publish(ctx: Context, job: Job) -> Site:
    """Convert all documents of a folder, ask, and write the pages."""
    pages: list[Page] = []
    failed: list[str] = []

    async def one(name: str) -> None:
        try:
            pages.append(await ctx.child(convert_document, Document(job.folder, name, job.pause)))
        except ChildFailed as failure:
            reason = failure.error.cause or failure.error
            failed.append(f"{name}: {reason.message}")
        ctx.set_value("progress", {"done": len(pages), "failed": len(failed)})

    await asyncio.gather(*(one(name) for name in await list_documents(job.folder)))
    pages.sort(key=lambda page: page.name)
    words = sum(page.words for page in pages)
    try:
        decision = await ctx.request_approval(
            f"Write {len(pages)} pages to {job.output}?",
            description="\n".join([f"{words} words", *(f"not converted: {f}" for f in failed)]),
            form=Cover,
            timeout=DECIDE_WITHIN,
        )
    except TimeoutError:
        return Site([], failed, "nobody decided")
    if not decision.approved:
        return Site([], failed, f"refused by {decision.by}")
    title = html.escape(decision.values.title if decision.values else Cover.title)
    links = "".join(f'<li><a href="{html.escape(p.name)}">{p.title}</a></li>\n' for p in pages)
    index = Page("index.html", title, 0, f"<h1>{title}</h1>\n<ul>\n{links}</ul>\n")
    written = await asyncio.gather(*(write_page(job.output, page) for page in [*pages, index]))
    return Site(list(written), failed, f"approved by {decision.by}")


async def decide(client: Client, handle: RunHandle[Site]) -> None:
    """Ask for each decision that the run waits for, as it comes."""
    async for entry in handle.follow_log():
        if entry.event.type != "ApprovalRequested":
            continue
        for approval in await handle.approvals():
            print(approval.title, approval.description, sep="\n", flush=True)
            answer = await ask("Title of the index, or `no`: ")
            if answer is None:
                print(f"decide: holdfast approvals decide {handle.run_id}", flush=True)
                continue
            approved = answer != "no"
            values = {"title": answer} if approved and answer else None
            try:
                await client.approvals.decide(
                    handle.run_id, approval.key, approved, by="you", values=values
                )
            except (ApprovalDecided, ApprovalClosed) as late:
                print(late, flush=True)


async def ask(question: str) -> str | None:
    """Read a line from the terminal; None where nobody sits there."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()
    print(question, end="", flush=True)

    def read() -> None:  # in a thread of its own, which does not keep the program from ending
        line = os.read(sys.stdin.fileno(), 1000).decode()
        loop.call_soon_threadsafe(answer.set_result, line.strip() if line else None)

    threading.Thread(target=read, daemon=True).start()
    return await answer


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--slow", action="store_true", help="pause after each document")
    parser.add_argument("--again", action="store_true", help="convert again")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    job = Job(str(options.folder.resolve()), str(options.output.resolve()))
    job.pause = 0.5 if options.slow else 0.0
    key = f"{job.folder} -> {job.output}" + (f" {os.urandom(4).hex()}" if options.again else "")
    async with AsyncExitStack() as stack:
        runs = WorkerOptions(queues=("default",))
        conversions = WorkerOptions(queues=(CONVERSION,), threads=2)
        client = await stack.enter_async_context(local(app, options=runs))
        await stack.enter_async_context(local(app, options=conversions))
        handle = await client.start(publish, job, key=key)
        print("continuing" if handle.already_existed else "started", handle.run_id, flush=True)
        asking = asyncio.create_task(decide(client, handle))
        site = await handle.result()
        asking.cancel()
    print(f"{site.verdict}: {len(site.written)} files written")
    for reason in site.failed:
        print(f"not converted: {reason}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
