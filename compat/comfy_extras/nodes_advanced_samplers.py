"""Re-exports; see `nodes`."""

from nodes.solvers_advanced import SamplerEulerCFGpp, SamplerLCM, SamplerLCMUpscale

__all__ = ["SamplerEulerCFGpp", "SamplerLCM", "SamplerLCMUpscale"]
