"""One server of a run of a script: it has the script's optimizer, and neither its model nor its data."""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from paceline.jobs.job import Job
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import ScriptData
from paceline.loop.served import MODEL, GroupSettings, ServedModel, check_groups, make_shard
from paceline.records.files import from_document
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.request import LONGEST
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.server.run import ServerRun, serve
from paceline.runtimes.live.wire.messages import InitialParams, ParamGroups
from paceline.runtimes.prepare import check_settings, prepare_job
from paceline.strategies.effects import Apply


class ScriptServerRun(ServerRun):
    @cached_property
    def _groups(self) -> dict[int, Sequence[GroupSettings]]:
        """With which the gradients of each worker are applied; none before it has said so."""
        return {}

    def _is_for_program(self, envelope: Envelope) -> bool:
        match envelope.message:
            case InitialParams(params):
                if envelope.sender.rank == 0 and self.me.version == 0:
                    self.shard.params.copy_(params)
            case ParamGroups(document):
                found = check_groups(document, self.shard.groups)
                if found is None:
                    self._corrupt["corrupt"] += 1
                else:
                    self._groups[envelope.sender.rank] = found
            case _:
                return super()._is_for_program(envelope)
        return False

    def _apply(self, effect: Apply) -> None:
        """With the settings of the worker that is furthest: they differ only while some are behind."""
        furthest = max(effect.gradients, key=lambda one: (one.clock, -one.worker), default=None)
        if furthest is not None and furthest.worker in self._groups:
            self.shard.follow(self._groups[furthest.worker])
        super()._apply(effect)


def run_script_server(process: ScriptProcess, script: str) -> ServerRun:
    """Wait for the first mini-batch of the script, however long that takes; then be a server to the end."""
    info = process.info
    store = MemberStore(info, timedelta(seconds=LONGEST))
    document: Any = json.loads(store.get(MODEL))
    store.set_timeout(timedelta(seconds=process.options.timeout))
    model = from_document(document, ServedModel)
    torch.set_num_threads(process.options.threads)
    settings = process.settings(process.choose(None, None)[0], model.codec, model.batch_sizes)
    samples = sum(model.batch_sizes)
    # Of the job, only its name and its length matter here.
    job = Job(name=process.script, model=nn.Identity, optimizer=SGD, train=ScriptData(samples))
    prepared = prepare_job(settings, job, check_settings(settings))
    shard = make_shard(model, info.rank, info.servers, script)
    return serve(process.task(settings), prepared, shard, store, ScriptServerRun)
