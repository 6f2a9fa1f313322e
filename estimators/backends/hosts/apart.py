"""A host that has its files to itself: code, data and checkpoints are pushed to it, what it saves is pulled from it.

Checkpoints come back while the job runs, models and outputs at its end.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from container.contract.failures import Failure
from container.contract.frames import BODY_LIMIT, LINE_LIMIT
from container.contract.messages import encode
from container.system import saved
from container.system.locations import is_s3, path_here
from estimators.backends import config, local, trees
from estimators.backends.hosts.checkpoints import Incoming
from estimators.backends.hosts.platform import Done, Platform, Sync, Then, each, problem
from estimators.backends.hosts.provider import Host

#: How often a host's agent looks for checkpoints to bring, in seconds.
_LOOK_S = 0.5


class ApartPlatform(Platform):
    """Serves one host."""

    _submit_directory: str | None = None
    #: The size and time of each checkpoint's file that was brought to the host.
    _restored: Mapping[str, tuple[int, int]] = {}

    def facts(self, host: Host) -> config.BackendFacts:
        """Its code is where it was pushed to."""
        return config.BackendFacts(
            network_interface=host.interface,
            instance_type=self.backend.options.asked_instance_type,
            submit_directory=self._submit_directory,
        )

    def prepare(self, host: Host, number: int, hosts: int, then: Then, *, joins: bool = False) -> None:
        """Push what is here, then have the agent there bring the rest."""
        self.hosts = {host.name: host}
        if self.spec.inputs and not joins and not self.backend.running:  # of an elastic job another host may train
            self.backend.callbacks.secondary_status("Downloading", "Copying the input channels to the hosts.")
        host.remove(["ml/model", "ml/output", "ml/input", "ml/pipe_state", "source"])
        pushes: list[tuple[Path, str]] = []
        try:
            pushes += self._code(host)
            pushes += self._write_config(host)
            bring = self._plan_channels(host, pushes)
        except OSError as error:
            self.fail(problem(f"the files of {host.name} could not be written: {error}"))
            return

        def pushed() -> None:
            if bring:
                file = f"{host.facts.root}/agent/channels.json"
                place = ["--number", str(number), "--hosts", str(hosts)]
                self.bring_channels([host], file, place, then, joins=joins, first=number)
            else:
                then()

        self.restore(lambda: each(pushes, lambda item, next_: self._push(host, *item, next_), pushed))

    def _push(self, host: Host, source: Path, target: str, then: Then, *, follow: bool = True) -> None:
        def done(error: str | None) -> None:
            what = "the checkpoints" if target == "ml/checkpoints" else source
            failure = problem(f"{what} could not be copied to {host.name}: {error}") if error is not None else None
            self.going_on(then)(failure)

        host.push(source, target, done, follow=follow)

    def _code(self, host: Host) -> list[tuple[Path, str]]:
        """What to push of the user's code, and where the host finds it."""
        self._submit_directory = None
        place = self.spec.submit_directory
        if is_s3(place or ""):
            # The archive was unpacked into the record: with its code there, a host does not look for it in S3.
            return [(self.record.source_dir, "ml/code")] if self.record.source_dir.is_dir() else []
        path = path_here(place) if place else None
        if path is None:
            return []
        self._submit_directory = f"{host.facts.root}/source{'' if path.is_dir() else f'/{path.name}'}"
        return [(path, "source")]

    def _write_config(self, host: Host) -> list[tuple[Path, str]]:
        """Write the configuration into the record, from where it goes to the host."""
        tree = self.record.tree(host.name)
        tree.config.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in config.host_config(self.spec, host.name, self.facts(host)).files(tree).items():
            Path(path).write_text(text, encoding="utf-8")
        return [(tree.config, "ml/input/config")]

    def _plan_channels(self, host: Host, pushes: list[tuple[Path, str]]) -> bool:
        """Add local data to what is pushed; whether something is left that the host's agent has to bring."""
        channels = {}
        for name, values in local.agent_channels(self.spec).items():
            path = path_here(str(values["uri"]))
            if path is None:
                channels[name] = values
                continue
            path = path.resolve()
            whole = values.get("mode") != "Pipe" and values.get("data_type", "S3Prefix") == "S3Prefix"
            if whole and values.get("distribution", "FullyReplicated") == "FullyReplicated":
                pushes.append((path, f"ml/input/data/{name}"))  # the host's own copy, as it is
                continue
            place = f"inputs/{name}"
            pushes.append((path, place))
            channels[name] = {
                **values,
                "uri": f"{host.facts.root}/{place}{'' if path.is_dir() else f'/{path.name}'}",
            }
        if channels:
            file = self.record.tree(host.name).base / "channels" / "channels.json"
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_text(json.dumps(channels), encoding="utf-8")
            pushes.append((file, "agent"))
        return bool(channels)

    def restore(self, then: Then) -> None:
        """Bring the job's checkpoints to the host, unless it has them."""
        if local.synced_checkpoints(self.spec) is not None:
            super().restore(then)
            return
        host, folder = self.first, trees.checkpoints(self.record, self.spec)
        folder.mkdir(parents=True, exist_ok=True)
        self._restored = {}  # what the host has of itself is not here

        def restored(files: Mapping[str, tuple[int, int]]) -> None:
            self._restored = files
            then()

        def compare(files: Mapping[str, tuple[int, int]]) -> None:
            mine = saved.files_below(folder)
            same = mine.keys() == files.keys() and all(
                mine[name][0] == files[name][0] and abs(mine[name][1] - files[name][1]) < 1_000_000 for name in mine
            )
            if not mine:
                then()
            elif same:
                restored(files)
            else:
                host.remove(["ml/checkpoints"])
                list_again = functools.partial(host.list_files, "ml/checkpoints", restored)
                self._push(host, folder, "ml/checkpoints", list_again, follow=False)

        host.list_files("ml/checkpoints", compare)

    def bring_checkpoints(self) -> Sync:
        """Take what the agent there says of new ones."""
        folder = trees.checkpoints(self.record, self.spec)
        sync = Sync(self._sync_failed)
        name = self.first.name
        incoming = Incoming(folder, name, lambda line: self.backend.callbacks.output(name, line))

        def take(data: bytes) -> None:
            try:
                incoming.feed(data)
            except (OSError, ValueError) as error:
                sync.failure = sync.failure or problem(f"the checkpoints could not be written to {folder}: {error}")

        def over(failure: Failure | None) -> None:
            incoming.close()
            sync.over(sync.failure or failure)

        sync.ended = over
        words = ["sync", "out", *self._sync_words(), "--every", f"{_LOOK_S:g}"]
        sync.process = self.agent(words, over, on_output=take)
        known = encode({"op": "restored", "files": self._restored}, 2 * LINE_LIMIT)
        for start in range(0, len(known), BODY_LIMIT):
            sync.process.write(known[start : start + BODY_LIMIT])
        return sync

    def collect(self, done: Done) -> None:
        """Bring what was saved, then models and outputs."""
        host, tree = self.first, self.record.tree(self.first.name)
        self.end_mount()
        failures: list[Failure] = []

        def pull(item: tuple[str, Path], then: Then) -> None:
            def pulled(error: str | None) -> None:
                if error is not None:
                    failures.append(problem(f"the outputs of {host.name} could not be copied here: {error}"))
                then()

            item[1].mkdir(parents=True, exist_ok=True, mode=0o700)
            host.pull(item[0], item[1], pulled)

        def synced(failure: Failure | None) -> None:
            def pulled() -> None:
                done(failure or next(iter(failures), None))

            # Of one that is lost, nothing more comes.
            wanted = [] if self.is_lost else [("ml/model", tree.model), ("ml/output", tree.output)]
            each(wanted, pull, pulled)

        self.bring_saved(synced)
