"""Re-exports; see `nodes`."""

from nodes.hook_conditioning import (
    ConditioningSetDefaultCombine,
    ConditioningSetProperties,
    ConditioningSetPropertiesAndCombine,
    ConditioningTimestepsRange,
    PairConditioningCombine,
    PairConditioningSetDefaultCombine,
    PairConditioningSetProperties,
    PairConditioningSetPropertiesAndCombine,
    SetClipHooks,
)
from nodes.hook_keyframes import CreateHookKeyframe, CreateHookKeyframesFromFloats, CreateHookKeyframesInterpolated
from nodes.hooks import (
    CombineHooks2,
    CombineHooks4,
    CombineHooks8,
    CreateHookLora,
    CreateHookLoraModelOnly,
    CreateHookModelAsLora,
    CreateHookModelAsLoraModelOnly,
    SetHookKeyframes,
)

__all__ = [
    "CombineHooks2",
    "CombineHooks4",
    "CombineHooks8",
    "ConditioningSetDefaultCombine",
    "ConditioningSetProperties",
    "ConditioningSetPropertiesAndCombine",
    "ConditioningTimestepsRange",
    "CreateHookKeyframe",
    "CreateHookKeyframesFromFloats",
    "CreateHookKeyframesInterpolated",
    "CreateHookLora",
    "CreateHookLoraModelOnly",
    "CreateHookModelAsLora",
    "CreateHookModelAsLoraModelOnly",
    "PairConditioningCombine",
    "PairConditioningSetDefaultCombine",
    "PairConditioningSetProperties",
    "PairConditioningSetPropertiesAndCombine",
    "SetClipHooks",
    "SetHookKeyframes",
]
