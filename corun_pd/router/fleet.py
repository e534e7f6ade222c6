"""The fleet: who has joined, under which contract, and the call to each.

    JoinFleet ─► contract check ─► dial ─► member ─► JoinFleet ends ─► retired ─► last leg ─► gone
                                             └─────── call lost ─────────────────────────────► gone

A member that leaves in good order takes no new legs and finishes those it has. One whose call is lost
fails its legs at once.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from corun_pd.contract import require_equal
from corun_pd.core import InstanceInfo, InstanceLoad, Role
from corun_pd.errors import ContractMismatch, Unavailable
from corun_pd.router.admission import Admission
from corun_pd.router.legs import DecodeSession, GenerationSession, PrefillSession
from corun_pd.router.policy import Ledger
from corun_pd.router.sampling import Limits
from corun_pd.router.turnstile import Turnstile
from corun_pd.v1 import instance_pb2, instance_pb2_grpc, legs_pb2, legs_pb2_grpc
from corun_pd.wire.convert import load_from_pb
from corun_pd.wire.server import open_channel

__all__ = ["Fleet", "Member"]

logger = logging.getLogger(__name__)

#: How long the router tries to reach an instance that joins, in seconds.
_DIAL_TIMEOUT_S: Final = 10.0

#: How long an instance has to say what it is doing, in seconds.
_LOAD_TIMEOUT_S: Final = 1.0

#: How often a member that has left is asked for its last leg, in seconds.
_RETIREMENT_POLL_S: Final = 0.05

AnySession = PrefillSession | DecodeSession | GenerationSession


@dataclass(slots=True, eq=False, kw_only=True)
class Member(Ledger):
    """An instance of the fleet: what it is, what it has been given, and the call to it."""

    channel: grpc.aio.Channel
    session: AnySession

    @property
    def prefill(self) -> PrefillSession:
        """The call to a prefill instance."""
        assert isinstance(self.session, PrefillSession)
        return self.session

    @property
    def decode(self) -> DecodeSession:
        """The call to a decode instance."""
        assert isinstance(self.session, DecodeSession)
        return self.session

    @property
    def colocated(self) -> GenerationSession:
        """The call to a colocated or standard instance."""
        assert isinstance(self.session, GenerationSession)
        return self.session

    async def load(self) -> InstanceLoad | None:
        """What it says it is doing; None when it does not answer in time."""
        stub = instance_pb2_grpc.InstanceServiceStub(self.channel)
        request = instance_pb2.DescribeInstanceRequest()
        try:
            answer = await stub.DescribeInstance(request, timeout=_LOAD_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        return load_from_pb(answer.load)


class Fleet:
    """Members by instance id. Every member takes samples by way of `admission`."""

    def __init__(self, admission: Admission[Member]) -> None:
        self._admission = admission
        self._members: dict[str, Member] = {}
        self._turnstile = Turnstile()
        self._calls: dict[Member, asyncio.Task[None]] = {}
        self._retirements: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> Sequence[Member]:
        """The members, in the order in which they joined."""
        return tuple(self._members.values())

    @property
    def some_info(self) -> InstanceInfo:
        """A member's description, for what all share by contract. Raises Unavailable while there is none."""
        for member in self._members.values():
            return member.info
        raise Unavailable("no instance has joined")

    @property
    def limits(self) -> Limits:
        """What every member can take. Raises Unavailable while there is none."""
        infos = [member.info for member in self._members.values()]
        if not infos:
            raise Unavailable("no instance has joined")
        return Limits(
            max_model_tokens=min(info.max_model_tokens for info in infos),
            vocabulary=min(info.vocabulary for info in infos),
            max_logprobs=min(info.max_logprobs for info in infos),
        )

    async def join(self, info: InstanceInfo) -> tuple[Member, "asyncio.Task[None]"]:
        """Dials an instance and makes it a member; returns it and the task that ends when its call does.

        Raises ContractMismatch that names the fields, and Unavailable when the instance cannot be reached.
        """
        self._check_contract(info)
        member = await _dial(info, self._turnstile)
        try:
            self._check_contract(info)  # an instance of another contract may have come in meanwhile
        except ContractMismatch:
            await member.channel.close()
            raise
        old = self._members.get(info.instance_id)
        if old is not None:
            self._forget(old, "it joined again")
            old.session.close()
        self._members[info.instance_id] = member
        self._admission.join(member)
        logger.info("joined: %s instance %s at %s", info.role, info.instance_id, info.address)
        call = self._calls[member] = asyncio.create_task(self._serve(member))
        return member, call

    def leave(self, member: Member) -> None:
        """A member takes no new samples; its call ends with its last leg."""
        self._forget(member, "it left")
        if member in self._calls:
            retirement = asyncio.create_task(_retire(member))
            self._retirements.add(retirement)
            retirement.add_done_callback(self._retirements.discard)

    async def close(self) -> None:
        """Ends every call. Legs that are under way fail."""
        for retirement in self._retirements:
            retirement.cancel()
        for member in self._calls:
            member.session.close()
        await asyncio.gather(*self._calls.values(), *self._retirements, return_exceptions=True)

    async def _serve(self, member: Member) -> None:
        end = "a bug in the router"
        try:
            end = await member.session.run()
        finally:
            self._forget(member, end)
            del self._calls[member]
            await member.channel.close()

    def _forget(self, member: Member, why: str) -> None:
        if self._members.get(member.info.instance_id) is member:
            del self._members[member.info.instance_id]
            self._admission.leave(member)
            logger.info("left: %s instance %s: %s", member.info.role, member.info.instance_id, why)

    def _check_contract(self, info: InstanceInfo) -> None:
        if not self._members:
            return
        try:
            require_equal(self.some_info.settings, info.settings, f"{info.role} instance {info.instance_id}")
        except ContractMismatch as error:
            logger.warning("refused: %s", error.message)
            raise


async def _retire(member: Member) -> None:
    # Its ledger is empty once every leg is over and every handoff has been pulled or released.
    while member.legs or member.blocks:  # noqa: ASYNC110 - rare, and the ledger stays pure
        await asyncio.sleep(_RETIREMENT_POLL_S)
    member.session.close()


async def _dial(info: InstanceInfo, turnstile: Turnstile) -> Member:
    channel = open_channel(info.address)
    try:
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            await channel.channel_ready()
    except TimeoutError as error:
        await channel.close()
        raise Unavailable(f"instance {info.instance_id} cannot be reached at {info.address}") from error
    return Member(info, channel=channel, session=_open(info, channel, turnstile))


def _open(info: InstanceInfo, channel: grpc.aio.Channel, turnstile: Turnstile) -> AnySession:
    match info.role:
        case Role.PREFILL:
            prefills = legs_pb2_grpc.PrefillServiceStub(channel).RunPrefills()
            return PrefillSession(info, prefills, legs_pb2.RunPrefillsRequest, turnstile)
        case Role.DECODE:
            decodes = legs_pb2_grpc.DecodeServiceStub(channel).RunDecodes()
            return DecodeSession(info, decodes, legs_pb2.RunDecodesRequest, turnstile)
        case Role.COLOCATED | Role.STANDARD:
            generations = legs_pb2_grpc.ColocatedServiceStub(channel).RunGenerations()
            return GenerationSession(info, generations, legs_pb2.RunGenerationsRequest, turnstile)
