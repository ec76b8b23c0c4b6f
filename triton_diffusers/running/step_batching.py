# SPDX-License-Identifier: Apache-2.0
"""Step batching: calls of a pipeline that run side by side share forwards of its denoisers.

Each call runs in a lane: a greenlet with its own shallow copy of the pipeline. All lanes share one
thread (tokenizers, VAEs and schedulers are not made for several), and a lane gives it up only where
it calls a denoiser. When every lane waits there, those that may be joined become one forward.

Joining is verified: the first joined forward of every shape is compared with the separate ones,
whose results are what the callers then get. Where they disagree that shape is not joined again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet

from triton_diffusers.errors import one_line
from triton_diffusers.pipelines.denoisers import denoisers, text_encoders
from triton_diffusers.pipelines.isolation import pipelines_inside
from triton_diffusers.running.joining import (
    Joined,
    ModelCall,
    NotJoinableError,
    join,
    read_model_call,
    split,
)
from triton_diffusers.running.stand_ins import Shared, SharedDecoder, is_cast_to_decode

TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
"""Largest relative L2 difference between a joined forward and the separate ones."""
HALF_TOLERANCE = 2e-2
"""The same for bfloat16 and float16."""
MOST_SHAPES = 1000
"""Shapes that are remembered; then all are forgotten, and verified anew."""
MOST_REFUSED = 20


@dataclass(eq=False)
class _Waiting:
    """A denoiser call that a lane waits for."""

    lane: "Lane"
    module: Any
    call: ModelCall
    result: Any = None
    error: BaseException | None = None

    @property
    def key(self) -> Any:
        return (id(self.module), self.call.shape)


_Plan = tuple[bool, frozenset[int]]
"""How lists are joined, and which values become one for each sample."""


class Lane:
    """One call's place among those that run."""

    def __init__(self, batcher: "StepBatcher", work: Callable[["Lane"], Any]) -> None:
        self._batcher = batcher
        self._greenlet = greenlet(lambda: work(self))
        self._rng: Any = None
        self._grad = True

    def enter(self, pipeline: Any) -> None:
        """Let a call's own copy of a pipeline share forwards with the calls of other lanes.

        Those of its denoisers, and of its text encoders and decoder: requests that come together
        share these.
        """
        for name, module in (denoisers(pipeline) | text_encoders(pipeline)).items():
            if "." not in name:  # several controlnets are called by what holds them
                vars(pipeline)[name] = Shared(module, self)
        vae = getattr(pipeline, "vae", None)
        if hasattr(vae, "decode") and not is_cast_to_decode(vae):
            vars(pipeline)["vae"] = SharedDecoder(vae, self)
        for part in pipelines_inside(pipeline):
            self.enter(part)

    def call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a denoiser with others' calls; other lanes run meanwhile."""
        import torch

        if _has_a_mode_of_its_own():
            return module(*args, **kwargs)
        waiting = self._batcher.wait(self, module, args, kwargs)
        self._grad = False
        self._rng = torch.get_rng_state()
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    def modules(self, module: Any) -> list[Any]:
        """Return a module and those inside, which are walked once for all lanes."""
        known = self._batcher.modules
        if id(module) not in known:
            known[id(module)] = list(module.modules())
        return known[id(module)]

    def method(self, module: Any, name: str) -> Any:
        """Return a method of a module, the same object for every lane."""
        return self._batcher.methods.setdefault((id(module), name), getattr(module, name))

    def resume(self) -> None:
        """Run the lane until it waits for a denoiser again, or ends.

        Torch's global generator and gradient mode go on where this lane left them.
        """
        import torch

        if self._rng is not None:
            torch.set_rng_state(self._rng)
        self._greenlet.parent = getcurrent()
        with torch.set_grad_enabled(self._grad):
            self._greenlet.switch()


def _has_a_mode_of_its_own() -> bool:
    """Tell whether a denoiser is called for gradients, or cast: joined forwards are neither."""
    import torch

    casts = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return torch.is_grad_enabled() or torch.is_inference_mode_enabled() or casts


class StepBatcher:
    """Joins what the lanes ask of the denoisers. All its methods belong to one thread."""

    def __init__(self, limit: int, log: Callable[[str], None] = lambda text: None) -> None:
        """`limit`: most samples of one forward."""
        self._limit = limit
        self._log = log
        self._waiting: list[_Waiting] = []
        self.lanes = 0
        """How many calls run."""
        self.methods: dict[tuple[int, str], Any] = {}
        self.modules: dict[int, list[Any]] = {}
        self._plans: dict[Any, dict[_Plan, bool]] = {}
        """(key, batches) -> ways of joining that were verified -> whether the results agreed."""
        self.forwards: Counter[int] = Counter()
        """Calls that a forward joined -> how many such forwards there were."""
        self.refused: list[str] = []
        """Shapes that are not joined, and why."""

    def facts(self) -> dict[str, Any]:
        """Return what `info` tells: how many calls forwards joined, and what is not joined."""
        shared = {str(joined): count for joined, count in sorted(self.forwards.items())}
        return {"forwards_by_calls": shared, "not_joined": list(self.refused)}

    def start(self, work: Callable[[Lane], Any], done: Callable[[Any], None]) -> None:
        """Run `work(lane)` until it waits for a denoiser; `advance` takes it on from there.

        done: called in the end with what work returned, or with the exception that it raised.
        """

        def run(lane: Lane) -> None:
            try:
                result = work(lane)
            except BaseException as error:
                result = error
            self.lanes -= 1
            done(result)

        self.lanes += 1
        Lane(self, run).resume()

    def advance(self) -> None:
        """Run one forward for the call that has waited longest and those like it."""
        import torch

        if not self._waiting:
            if self.lanes:  # a worker that ends is told to everybody; one that spins is not
                raise RuntimeError(f"{self.lanes} calls run and none of them waits for a forward")
            return
        group = self._pick()
        try:
            with torch.no_grad():
                self._run(group)
        except BaseException as error:  # a lane that nobody resumes would never be answered
            for waiting in group:
                waiting.error = waiting.error or error
        for waiting in group:
            waiting.lane.resume()

    def wait(
        self, lane: Lane, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Waiting:
        """Note that a lane waits for what a module returns for these arguments."""
        try:
            call = read_model_call(args, kwargs)
        except NotJoinableError:
            call = ModelCall(args, kwargs, 1, object())  # like no other: it runs alone
        waiting = _Waiting(lane, module, call)
        self._waiting.append(waiting)
        return waiting

    def _pick(self) -> list[_Waiting]:
        """Take the oldest call and those like it, up to the limit."""
        key, total = self._waiting[0].key, 0
        group: list[_Waiting] = []
        for waiting in list(self._waiting):
            if waiting.key == key and (not group or total + waiting.call.batch <= self._limit):
                group.append(waiting)
                total += waiting.call.batch
                self._waiting.remove(waiting)
        return group

    def _run(self, group: Sequence[_Waiting]) -> None:
        if len(group) > 1:
            group = sorted(group, key=lambda waiting: waiting.call.batch)
            if len(self._plans) >= MOST_SHAPES:
                self._plans.clear()
            if self._run_joined((group[0].key, tuple(w.call.batch for w in group)), group):
                return
        self._run_each(group)

    def _run_each(self, group: Sequence[_Waiting]) -> None:
        for waiting in group:
            self.forwards[1] += 1
            _run_alone(waiting)

    def _run_joined(self, key: Any, group: Sequence[_Waiting]) -> bool:
        """Run one forward for all, as was verified, or verify it; return whether all have run."""
        plans = self._plans.setdefault(key, {})
        if not plans:
            return self._verify(plans, group)
        for concatenate in dict.fromkeys(c for (c, _), agreed in plans.items() if agreed):
            try:
                joined = _joined(group, concatenate)
            except NotJoinableError as error:  # of these values: others of the shape may join
                self._tell(group, str(error))
                return False
            agreed = plans.get((concatenate, joined.spread))
            if agreed is None:
                return self._verify(plans, group)
            if agreed:
                return self._run_verified(plans, (concatenate, joined.spread), joined, group)
        return False

    def _run_verified(
        self, plans: dict[_Plan, bool], plan: _Plan, joined: Joined, group: Sequence[_Waiting]
    ) -> bool:
        try:
            results = _forward(group, joined)
        except Exception as error:
            self._run_each(group)
            if all(waiting.error is None for waiting in group):
                plans[plan] = False
                self._tell(group, one_line(error)[:200])
            return True
        self.forwards[len(group)] += 1
        for waiting, result in zip(group, results, strict=True):
            waiting.result = result
        return True

    def _verify(self, plans: dict[_Plan, bool], group: Sequence[_Waiting]) -> bool:
        """Run a new shape both ways; callers get the separate results."""
        reason = ""
        for waiting in group:
            _run_alone(waiting)
        if any(waiting.error is not None for waiting in group):
            return True
        for concatenate in (True, False):
            try:
                joined = _joined(group, concatenate)
            except NotJoinableError as error:
                reason = reason or str(error)
                continue
            agreed = False
            try:
                found = _forward(group, joined)
                off = max(_difference(w.result, r) for w, r in zip(group, found, strict=True))
                agreed = off <= _tolerance(group[0])
                reason = f"the results differ by {off:.2g}"
            except Exception as error:
                reason = reason or one_line(error)[:200]
            plans[concatenate, joined.spread] = agreed
            if agreed:
                return True
        self._tell(group, reason)
        return True

    def _tell(self, group: Sequence[_Waiting], reason: str) -> None:
        """Say, once, that calls are not joined."""
        module = group[0].module
        name = getattr(module, "__qualname__", type(module).__name__)
        text = f"{name}: {len(group)} calls are not joined: {reason}"
        if text not in self.refused:
            self.refused[MOST_REFUSED - 1 :] = [text]
            self._log(f"step_batching: {text}")


def _run_alone(waiting: _Waiting) -> None:
    try:
        waiting.result = waiting.module(*waiting.call.args, **waiting.call.kwargs)
    except BaseException as error:
        waiting.error = error


def _joined(group: Sequence[_Waiting], plan: bool) -> Joined:
    return join([waiting.call for waiting in group], plan)


def _forward(group: Sequence[_Waiting], joined: Joined) -> list[Any]:
    output = group[0].module(*joined.args, **joined.kwargs)
    return split(output, [waiting.call.batch for waiting in group])


def _difference(wanted: Any, found: Any) -> float:
    """Return the relative L2 difference of two outputs, the largest over their tensors."""
    import torch

    if isinstance(wanted, torch.Tensor):
        norm = float(wanted.double().norm()) or 1.0
        off = float((wanted.double() - found.double()).norm()) / norm
        return off if off == off else float("inf")
    if isinstance(wanted, dict):
        return max((_difference(v, found[n]) for n, v in wanted.items()), default=0.0)
    if isinstance(wanted, list | tuple):
        return max((_difference(a, b) for a, b in zip(wanted, found, strict=True)), default=0.0)
    return 0.0


def _tolerance(waiting: _Waiting) -> float:
    module = getattr(waiting.module, "__self__", waiting.module)
    dtype = str(getattr(module, "dtype", "torch.float32")).removeprefix("torch.")
    return TOLERANCE.get(dtype, HALF_TOLERANCE)
