"""What gRPC ends by itself is in the log too: calls there are not, requests that are too large or no message at all.

Our own refusals are logged where they are made; these never reach a handler of ours. gRPC does not tell when it gave up
on a request, so a call whose message has not been handed on for some time is told as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from caisson_tracerd.log import LOG, Priority

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

PATIENCE_S: Final = 2.0
"""A caller that takes longer between a call and its message is told of too; it is served all the same."""


class Refusals(grpc.aio.ServerInterceptor):
    """On one socket. ``caller``: who speaks there, for the log; ``most``: bytes of a request at most."""

    def __init__(self, caller: str, most: int) -> None:
        self._caller = caller
        self._most = most

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The call's handler, with an ear at its request."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            self._say(method, grpc.StatusCode.UNIMPLEMENTED, "there is no such call")
            return None
        read = self._reader(method, handler.request_deserializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(handler.unary_unary, read, handler.response_serializer)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(handler.unary_stream, read, handler.response_serializer)
        return handler

    def _reader(self, method: str, parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S,
            self._say,
            method,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"no request of at most {self._most} bytes came with it",
        )

        def read(data: bytes) -> Any:
            late.cancel()
            try:
                return parse(data) if parse is not None else data
            except Exception:
                self._say(method, grpc.StatusCode.INTERNAL, "the request is no message of this call")
                raise

        return read

    def _say(self, method: str, code: grpc.StatusCode, reason: str) -> None:
        LOG.say(
            Priority.NOTICE, "request refused unread", caller=self._caller, code=code.name, call=method, reason=reason
        )
