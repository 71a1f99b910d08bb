"""Keyframes: how strong a hook is in the course of sampling."""

from __future__ import annotations

from typing import Any


class HookKeyframe:
    """From `start_percent` (0 begin, 1 end of sampling) on, a strength, for `guarantee_steps` steps at least."""

    def __init__(self, strength: float, start_percent: float = 0.0, guarantee_steps: int = 1):
        self.strength = strength
        self.start_percent = float(start_percent)
        self.start_t = float("inf")  # the sigma that is; known once the model is
        self.guarantee_steps = guarantee_steps

    def clone(self) -> HookKeyframe:
        c = HookKeyframe(self.strength, self.start_percent, self.guarantee_steps)
        c.start_t = self.start_t
        return c


class HookKeyframeGroup:
    """Keyframes by start, and which of them is the current one. Without any the strength is 1."""

    def __init__(self):
        self.keyframes: list[HookKeyframe] = []
        self.reset()

    def reset(self) -> None:
        """Back to the first."""
        self._index = 0
        self._used_steps = 0
        self._last_sigma: float | None = None

    def add(self, keyframe: HookKeyframe) -> None:
        """Put in a keyframe; of equal starts the one added last comes last."""
        self.keyframes.append(keyframe)
        self.keyframes.sort(key=lambda k: k.start_percent)
        self.reset()

    def is_empty(self) -> bool:
        return not self.keyframes

    def has_index(self, index: int) -> bool:
        return 0 <= index < len(self.keyframes)

    @property
    def strength(self) -> float:
        """The current keyframe's."""
        return self.keyframes[self._index].strength if self.keyframes else 1.0

    def _index_at(self, percent: float) -> int:
        return max((i for i, k in enumerate(self.keyframes) if k.start_percent <= percent), default=0)

    def strength_at(self, percent: float) -> float:
        """The strength at a fraction of sampling, whatever steps are guaranteed; before the first keyframe its own."""
        return self.keyframes[self._index_at(percent)].strength if self.keyframes else 1.0

    def go_to_percent(self, percent: float) -> None:
        """Make the keyframe current that holds at this fraction of sampling."""
        self.reset()
        self._index = self._index_at(percent)

    def clone(self) -> HookKeyframeGroup:
        c = HookKeyframeGroup()
        c.keyframes = [k.clone() for k in self.keyframes]
        return c

    def initialize_timesteps(self, model: Any) -> None:
        """Learn the sigmas of the starts from `model.model_sampling`, and begin anew."""
        for keyframe in self.keyframes:
            keyframe.start_t = float(model.model_sampling.percent_to_sigma(keyframe.start_percent))
        self.reset()

    def prepare_current_keyframe(self, sigma: float) -> bool:
        """Go on to the keyframe for this sigma; returns whether the strength has changed. Several calls with one
        sigma are one step."""
        if not self.keyframes or sigma == self._last_sigma:
            return False
        before = self.strength
        self._last_sigma = sigma
        if self._used_steps >= self.keyframes[self._index].guarantee_steps:
            for index in range(self._index + 1, len(self.keyframes)):
                keyframe = self.keyframes[index]
                if keyframe.start_t < sigma:
                    break
                self._index, self._used_steps = index, 0
                if keyframe.guarantee_steps > 0:
                    break
        self._used_steps += 1
        return self.strength != before
