from contextlib import suppress

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from mail.models import Sent

from holdfast import App, Context, Retry, StepFailed

app = App("site")
TAKEN = 1_000_000  # the id of a row that is there


@app.job
def note(text: str) -> int:
    Sent.objects.create(text=text)
    return Sent.objects.count()


@app.job(queue="notes")
def note_there(text: str) -> None: ...


@app.workflow
async def twice(ctx: Context, text: str) -> int:
    await note(text)
    return await note(text)


@app.transaction(retry=Retry.NEVER)
def keep(connection: BaseDatabaseWrapper, text: str, way: str) -> int:
    with suppress(IntegrityError), transaction.atomic():
        Sent.objects.create(id=TAKEN, text=text)
    sent = Sent.objects.create(text=text)
    if way == "end":
        connection.connection.rollback()
    elif way == "commit":
        connection.commit()
    elif way == "roll back":
        transaction.set_rollback(True)
    assert way != "fail"
    return sent.id


@app.transaction(isolation="serializable", retry=Retry.NEVER)
def keep_strictly(connection: BaseDatabaseWrapper, text: str) -> int:
    return Sent.objects.create(text=text).id


def refused() -> None:
    Sent.objects.create(id=TAKEN, text="refused")


@app.transaction(retry=Retry.NEVER)
def tell(connection: BaseDatabaseWrapper, text: str) -> None:
    Sent.objects.create(text=text)
    transaction.on_commit(refused)


@app.transaction(isolation="serializable", retry=Retry.NEVER)
def tell_strictly(connection: BaseDatabaseWrapper, text: str) -> None:
    Sent.objects.create(text=text)
    transaction.on_commit(refused)


@app.workflow
async def tell_all(ctx: Context, text: str) -> None:
    await tell(text)
    await tell_strictly(text)


@app.workflow
async def keep_all(ctx: Context, text: str) -> list[str]:
    failures = []
    for way in ("", "fail", "end", "roll back", "commit"):
        try:
            await keep(f"{text}{way}", way)
        except StepFailed as error:
            failures.append(error.error.kind)
    await keep_strictly(text)
    return failures
