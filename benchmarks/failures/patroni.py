"""Patroni with etcd and three PostgreSQL servers: its leader is killed under load."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.failures.audit import Failure
from benchmarks.failures.places import Place, free_port
from benchmarks.failures.postgres import DATABASE, SETTINGS, USER, Postgres, until
from benchmarks.failures.scenarios import LAG_SECONDS, Scenario, url_of
from benchmarks.worker import WorkerProcess
from holdfast.database.embedded.account import account_for

BINARIES = max(
    (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")),
    key=lambda path: int(path.parent.name),
    default=None,
)
MEMBERS = 3
TTL_SECONDS, LOOP_SECONDS, RETRY_SECONDS = 6, 1, 2
TRUST = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]


@dataclass
class Member:
    """A node: a Patroni and its PostgreSQL."""

    place: Place
    name: str
    server: Postgres
    port: int  # of Patroni's REST API
    process: WorkerProcess | None = None

    def start(self) -> None:
        """Start Patroni, which brings PostgreSQL up in whichever role is due."""
        command = ["patroni", str(self.server.folder / "patroni.yml")]
        self.process = self.place.program(
            self.name, command, account=account_for(self.server.folder)
        )

    def kill(self) -> None:
        """Kill everything at once, as if the machine had failed."""
        assert self.process is not None
        self.process.kill()
        self.server.kill()

    def ask(self, path: str) -> Any:
        """Return what Patroni answers, None if it does not or says no."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=1) as answer:
                return json.load(answer)
        except (OSError, ValueError):  # URLError is an OSError
            return None


class LeaderKilled(Scenario):
    """The leader's PostgreSQL and Patroni are killed; another member becomes the leader."""

    name = "patroni-sync"
    title = "Patroni, `synchronous_mode`: the leader killed with its Patroni"
    patroni = continuous = True
    tries = 20
    synchronous: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str:
        found = shutil.which("patroni") and shutil.which("etcd") and BINARIES
        return "" if found else "Patroni (apt-get install patroni etcd-server postgresql)"

    @property
    def url(self) -> str:
        return url_of([member.server for member in self.members])

    def open(self) -> None:
        self._start_etcd()
        self.members = [self._member(f"member-{number}") for number in range(1, MEMBERS + 1)]
        for member in self.members:
            member.start()
        self.await_members()
        self.prepare(self.leader().server)

    def begin(self) -> None:
        """Wait until all members have the database: a worker gives up at one that has not."""
        until(self._replicated, "all members have the database")

    def leader(self) -> Member:
        """Return the member that is the leader now, once there is one."""
        return until(self._leaders, "a member is the leader")[0]

    def await_members(self) -> None:
        """Wait until all members follow one leader, one of them synchronously if it is to be so."""
        until(self._whole, "all members follow one leader")

    def fail(self) -> Failure:
        leader = self.leader()
        self.delay(leader)
        at = time.time()
        leader.kill()
        self.leader()
        leader.start()
        return Failure(at)

    def delay(self, leader: Member) -> None:
        """Let the others fall behind, if they can."""

    def heal(self) -> None:
        self.await_members()
        self.await_workers()

    def _leaders(self) -> list[Member]:
        return [member for member in self.members if member.ask("/leader")]

    def _whole(self) -> bool:
        leaders = self._leaders()
        cluster = leaders[0].ask("/cluster") if len(leaders) == 1 else None
        if cluster is None:
            return False
        members = cluster["members"]
        running = [each for each in members if each["state"] in ("running", "streaming")]
        if len(running) < MEMBERS or len({each.get("timeline") for each in running}) != 1:
            return False
        return any(each["role"] == "sync_standby" for each in members) or not self.synchronous

    def _replicated(self) -> bool:
        find = f"select 1 from pg_database where datname = '{DATABASE}'"
        return all(member.server.column(find) for member in self.members)

    def _start_etcd(self) -> None:
        self.etcd, peers = free_port(), f"http://127.0.0.1:{free_port()}"
        clients = f"http://127.0.0.1:{self.etcd}"
        command = ["etcd", "--name", "one", "--data-dir", str(self.place.folder / "etcd")]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"one={peers}"]
        self.place.program("etcd", command)

    def _member(self, name: str) -> Member:
        server = self.place.postgres(name)
        server.binaries = BINARIES
        server.prepare()
        member = Member(self.place, name, server, free_port())
        file = server.folder / "patroni.yml"
        file.write_text(json.dumps(self._settings(member)))  # JSON is YAML
        file.chmod(0o644)
        return member

    def _settings(self, member: Member) -> dict[str, Any]:
        server, api = member.server, f"127.0.0.1:{member.port}"
        return {
            "scope": "holdfast",
            "name": member.name,
            "restapi": {"listen": api, "connect_address": api},
            "etcd3": {"host": f"127.0.0.1:{self.etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": LOOP_SECONDS,
                    "retry_timeout": RETRY_SECONDS,
                    "synchronous_mode": self.synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {
                            name: value
                            for name, value in SETTINGS.items()
                            if name != "listen_addresses"
                        },
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
                "pg_hba": TRUST,
            },
            "postgresql": {
                "listen": server.host,
                "connect_address": server.host,
                "data_dir": str(server.data),
                "bin_dir": str(BINARIES),
                "pgpass": str(server.folder / "pgpass"),
                "authentication": {
                    who: {"username": USER} for who in ("superuser", "replication", "rewind")
                },
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }


class LaggingLeaderKilled(LeaderKilled):
    """The same without synchronous_mode, and what the leader wrote last has not reached others."""

    name = "patroni-async"
    title = f"Patroni, asynchronous, all replicas {LAG_SECONDS:g} s behind: the same"
    synchronous = False
    durable = False

    def delay(self, leader: Member) -> None:
        for pid in leader.server.column("select pid from pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LAG_SECONDS)
