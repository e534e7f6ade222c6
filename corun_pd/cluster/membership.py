"""An instance's membership of a router's fleet. It lasts as long as the JoinFleet call does."""

import asyncio
import logging
import random
from typing import Final, NoReturn

import grpc

from corun_pd.core import InstanceInfo
from corun_pd.errors import ContractMismatch, InvalidRequest, Unimplemented
from corun_pd.v1 import router_pb2, router_pb2_grpc
from corun_pd.wire.convert import instance_to_pb
from corun_pd.wire.server import open_channel
from corun_pd.wire.status import error_from_rpc

__all__ = ["stay_joined"]

log = logging.getLogger(__name__)

#: Waits before joining again: doubled each time, and begun anew after a membership.
FIRST_DELAY_S: Final = 0.1
LAST_DELAY_S: Final = 2.0


async def stay_joined(router: str, info: InstanceInfo) -> NoReturn:
    """Joins the fleet of the router at host:port, and joins again whenever membership ends.

    Runs until it is cancelled, which leaves the fleet. Raises ContractMismatch when the fleet runs another
    contract, InvalidRequest when the router will not have such an instance, and Unimplemented when no
    router is there but another server.
    """
    request = router_pb2.JoinFleetRequest(instance=instance_to_pb(info))
    delay_s = FIRST_DELAY_S
    told = ""
    async with open_channel(router) as channel:
        stub = router_pb2_grpc.FleetServiceStub(channel)
        while True:
            call = stub.JoinFleet(request)
            try:
                async for _ in call:
                    log.info("%s joined the fleet of %s", info.instance_id, router)
                    delay_s, told = FIRST_DELAY_S, ""
                problem = "the router ended it"
            except grpc.aio.AioRpcError as error:
                refusal = error_from_rpc(error)
                if isinstance(refusal, ContractMismatch | InvalidRequest | Unimplemented):
                    raise refusal from error
                problem = refusal.message
            finally:
                call.cancel()
            if problem != told:  # said once, however often it is tried
                log.warning("%s is no member of the fleet of %s: %s", info.instance_id, router, problem)
                told = problem
            # Instances that lost the same router do not all come back at the same moment.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, LAST_DELAY_S)
