"""Programs of an environment that has the wheel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_SECONDS = 240.0


def run(*command: str, env: Mapping[str, str] | None = None, code: int = 0) -> str:
    """Run a command to its end, and return what it writes."""
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment, and what its programs find in their own."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def call(self, program: str, *arguments: str, code: int = 0, **env: str) -> str:
        """Run one of its programs to its end."""
        command = [str(self.folder / "bin" / program), *arguments]
        return run(*command, env={**self.env, **env}, code=code)

    @contextmanager
    def running(self, program: str, *arguments: str, **env: str) -> Iterator[Path]:
        """Run one of its programs while the block lasts; give the file that it writes to."""
        log = Path(f"{program}.log")
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(self.folder / "bin" / program), *arguments],
                env={**os.environ, **self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
