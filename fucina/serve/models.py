"""The models of a server by name: loaded when they are first asked for, dropped where memory is needed for another.

Everything here but `Served.close` and the loading itself happens in the event loop, so that no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption, ModelTooLarge, ShuttingDown
from .chat import ChatCompletions
from .completions import Completions
from .dialect import Dialect
from .embeddings import Embeddings
from .messages import Messages
from .metrics import Metrics
from .problems import Problem
from .responses import Responses
from .service import Service
from .turns import Turns
from .worker import Worker

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model

DIALECTS: tuple[type[Dialect[Any]], ...] = (ChatCompletions, Completions, Embeddings, Messages, Responses)
ROOM_SECONDS = 60.0  # that a request waits for memory which busy models hold
log = logging.getLogger("fucina.serve")


class Served:
    """A model that is loaded: its thread, its dialects, and what it shares with nobody.

    Parameters
    ----------
    model, pool, name : see `Service` and `Worker`.
    metrics : counts of this model; they outlive it.
    owned : whether `close` closes model and pool too.
    options : of `Worker`.
    """

    def __init__(
        self, model: Model, pool: SlotPool, name: str | None, metrics: Metrics, owned: bool, **options: Any
    ) -> None:
        self.service, self.pool, self._owned = Service(model, name), pool, owned
        self.worker = Worker(model, pool, observer=metrics, **options)
        self.dialects = {kind: kind(self.service) for kind in DIALECTS}

    def close(self, grace: float) -> None:
        """Refuse what is new, let what runs go on for the grace time, end it; from any thread, twice is no error."""
        self.worker.close(grace)
        if self._owned:
            self.pool.close()
            with suppress(Exception):
                self.service.model.close()


@dataclass(eq=False)
class Offer:
    """A model that a server offers.

    Attributes
    ----------
    name : what it is called.  aliases : further names.
    nbytes : of memory that its weights take.
    open : loads it, or None where it is loaded from the beginning: its name is that of its service.
    """

    name: str
    open: Callable[[], tuple[Model, SlotPool]] | None = None
    aliases: frozenset[str] = frozenset()
    nbytes: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time()))
    served: Served | None = None
    users: int = 0  # requests that use it, or wait for it
    last_used: float = 0.0
    holds_memory: bool = False
    changing: asyncio.Future[None] | None = None  # it is being loaded, or dropped


class Models:
    """The models of a server.

    Parameters
    ----------
    offers : at least one; the first answers requests that name none.
    model_memory : bytes that the weights of all loaded models may take; None: any number.
    options : of every `Worker`.

    Raises
    ------
    InvalidOption : two have one name.
    ModelTooLarge : one alone takes more memory than all may.
    """

    def __init__(self, offers: Sequence[Offer], model_memory: int | None = None, **options: Any) -> None:
        self.offers, self.memory, self._options = list(offers), model_memory, options
        self._options["turns"] = Turns() if len(offers) > 1 else None
        names = [offer.name for offer in offers]
        for name in names:
            if names.count(name) > 1:
                raise InvalidOption(f"two models are called {name!r}; NAME=MODEL gives one another name")
        for offer in offers:
            if model_memory is not None and offer.nbytes > model_memory:
                raise ModelTooLarge(
                    f"the weights of {offer.name!r} take {offer.nbytes} bytes, all models together may take {model_memory}"
                )
        self._loader = ThreadPoolExecutor(1, "fucina-load")
        self._opened: set[Served] = set()
        self._lock = threading.Lock()  # of `_opened` and `closing`
        self.closing = False
        self._waiting: list[asyncio.Future[None]] = []  # for memory

    @property
    def first(self) -> Offer:
        """The model that answers requests which name none."""
        return self.offers[0]

    def find(self, name: object, any_name: bool = False) -> Offer:
        """The model of a name; of anything but a text, the first.

        Parameters
        ----------
        any_name : where a single model is served, any name is right.

        Raises
        ------
        Problem : no model has this name.
        """
        if not isinstance(name, str) or (any_name and len(self.offers) == 1):
            return self.first
        for offer in self.offers:
            if offer.name == name:
                return offer
        found = [offer for offer in self.offers if name in offer.aliases]
        if len(found) != 1:
            known = ", ".join(repr(offer.name) for offer in self.offers)
            message = f"the model {name[:100]!r} is not served here; served: {known}"
            raise Problem(404, message, param="model", code="model_not_found")
        return found[0]

    @asynccontextmanager
    async def using(self, offer: Offer) -> AsyncIterator[Served]:
        """The model of an offer, loaded first where needed; it is not dropped inside of the `with`.

        Raises
        ------
        Problem : it cannot be loaded now.
        ShuttingDown
        """
        offer.users += 1
        try:
            while offer.served is None:
                if offer.changing is None:
                    offer.changing = asyncio.ensure_future(self._load(offer))
                await asyncio.shield(offer.changing)
            yield offer.served
        finally:
            offer.users -= 1
            offer.last_used = monotonic()
            self._wake()

    # --- loading and dropping -----------------------------------------------------------------------------------------

    async def _load(self, offer: Offer) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._make_room(offer)
            offer.served = await loop.run_in_executor(self._loader, self._open, offer)
        except (Problem, ShuttingDown):
            raise
        except Exception as error:
            if self.closing:
                raise ShuttingDown("the server ends; it loads no model") from error
            log.error("the model %r could not be loaded", offer.name, exc_info=error)
            message = (
                f"the model {offer.name!r} could not be loaded ({type(error).__name__}); the server's log says more"
            )
            raise Problem(503, message, "server_error", "model", "model_load_failed") from error
        finally:
            offer.changing = None
            offer.holds_memory = offer.served is not None
            self._wake()

    def _open(self, offer: Offer) -> Served:
        """Load a model: on the loader's thread."""
        if self.closing:
            raise ShuttingDown("the server ends; it loads no model")
        if offer.open is None:
            raise AssertionError("a model that is loaded from the beginning is never dropped")
        model, pool = offer.open()
        try:
            served = Served(model, pool, offer.name, offer.metrics, True, **self._options)
        except BaseException:
            pool.close()
            model.close()
            raise
        with self._lock:
            if not self.closing:
                self._opened.add(served)
                return served
        served.close(0.0)
        raise ShuttingDown("the server ends; it loads no model")

    async def _make_room(self, offer: Offer) -> None:
        """Drop models that nobody uses, least recently used first, until this one fits; wait for those in use."""
        until = monotonic() + ROOM_SECONDS
        while self.memory is not None:
            used = sum(o.nbytes for o in self.offers if o.holds_memory)
            if used + offer.nbytes <= self.memory:
                break
            idle = [o for o in self.offers if o.served is not None and o.users == 0 and o.open is not None]
            if idle:
                await self._drop(min(idle, key=lambda o: o.last_used))
                continue
            if self.closing:
                raise ShuttingDown("the server ends; it loads no model")
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            try:
                await asyncio.wait_for(change, max(until - monotonic(), 0.0))
            except TimeoutError:
                message = f"there is no memory for {offer.name!r} while other models answer requests"
                raise Problem(503, message, "unavailable_error", "model", "model_busy") from None
        offer.holds_memory = True

    async def _drop(self, offer: Offer) -> None:
        served, offer.served = offer.served, None
        if served is None:
            return
        loop = asyncio.get_running_loop()
        offer.changing = loop.create_future()
        try:
            await loop.run_in_executor(self._loader, self._shut, offer, served)
        except Exception as error:
            log.error("the model %r could not be closed", offer.name, exc_info=error)
        finally:
            offer.holds_memory = False
            changing, offer.changing = offer.changing, None
            changing.set_result(None)
            self._wake()

    def _shut(self, offer: Offer, served: Served) -> None:
        with self._lock:
            self._opened.discard(served)
        served.close(0.0)
        offer.metrics.leave(served.pool)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)

    # --- the end ------------------------------------------------------------------------------------------------------

    def loaded(self) -> list[Served]:
        """Those that are loaded; from any thread."""
        with self._lock:
            return list(self._opened)

    def load_first(self) -> None:
        """Load the first model, before any loop runs: what is wrong with it is told at once."""
        self.first.served, self.first.holds_memory = self._open(self.first), True

    def adopt(self, offer: Offer, served: Served) -> None:
        """Take in a model that was loaded elsewhere."""
        offer.served, offer.holds_memory = served, True
        self._opened.add(served)

    def refuse(self) -> None:
        """Take no new request, and end those that wait; from any thread."""
        with self._lock:
            self.closing = True
        for served in self.loaded():
            served.worker.refuse()

    def close(self, grace: float) -> None:
        """Refuse what is new, let what runs go on for the grace time, end it; from any thread, twice is no error."""
        until = monotonic() + grace
        self.refuse()
        self._loader.shutdown()
        for served in self.loaded():
            served.close(max(until - monotonic(), 0.0))
