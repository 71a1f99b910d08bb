"""The registry of samplers: one entry each, in the order in which nodes list them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from comfy.sampling.solvers import (
    dpm_solver,
    dpmpp,
    dpmpp_sde,
    er_sde,
    euler,
    heun,
    multistep,
    res,
    sa_solver,
    seeds,
    uni_pc,
)


class UnknownSamplerError(ValueError):
    """No sampler of that name."""


@dataclass(frozen=True)
class SamplerEntry:
    """One sampler: its solver function and what docs/sampling.md says about it.

    `order`: of the formula once it has its history (0: none). `evaluations`: of the model per step, as text
    where it is not one number. `adapted`: `function` is not the `sample_<name>` of k_diffusion.sampling but
    takes a schedule where that one does not. `random_inpaint_noise`: masked runs use fresh noise outside the
    mask. `in_effect`: order in which whole runs without noise converge to the ODE's solution, where that is
    another (0: they do not).
    """

    function: Callable[..., Tensor]
    order: int
    evaluations: str
    stochastic: bool
    paper: str
    adapted: bool = False
    random_inpaint_noise: bool = False
    in_effect: int | None = None

    @property
    def converges(self) -> int:
        """Order of convergence of whole runs; 0 for none."""
        return self.order if self.in_effect is None else self.in_effect


KARRAS = "Karras et al. 2022, arXiv:2206.00364"
DDIM = "Song et al. 2020, arXiv:2010.02502"
CFG_PP = "Chung et al. 2024, arXiv:2406.08070"
DPM_SOLVER = "Lu et al. 2022, arXiv:2206.00927"
DPM_SOLVER_PP = "Lu et al. 2022, arXiv:2211.01095"
RES = "Zhang et al. 2023, arXiv:2308.02157"
DEIS = "Zhang & Chen 2022, arXiv:2204.13902"
GRADIENT_ESTIMATION = "Permenter & Yuan 2023, arXiv:2306.04848"
SEEDS = "Gonzalez et al. 2023, arXiv:2305.14267"
SA_SOLVER = "Xue et al. 2023, arXiv:2309.05019"
UNI_PC = "Zhao et al. 2023, arXiv:2302.04867"
EXPONENTIAL = "Hochbruck & Ostermann 2010, Acta Numerica 19"

SAMPLERS: dict[str, SamplerEntry] = {
    "euler": SamplerEntry(euler.sample_euler, 1, "1", False, KARRAS),
    "euler_cfg_pp": SamplerEntry(euler.sample_euler_cfg_pp, 1, "1", False, CFG_PP),
    "euler_ancestral": SamplerEntry(euler.sample_euler_ancestral, 1, "1", True, DDIM),
    "euler_ancestral_cfg_pp": SamplerEntry(euler.sample_euler_ancestral_cfg_pp, 1, "1", True, CFG_PP),
    "heun": SamplerEntry(heun.sample_heun, 2, "2", False, KARRAS),
    "heunpp2": SamplerEntry(heun.sample_heunpp2, 3, "3", False, "Wang et al. 2024, arXiv:2404.00512", in_effect=1),
    "exp_heun_2_x0": SamplerEntry(seeds.sample_exp_heun_2_x0, 2, "2", False, EXPONENTIAL),
    "exp_heun_2_x0_sde": SamplerEntry(seeds.sample_exp_heun_2_x0_sde, 2, "2", True, SEEDS),
    "dpm_2": SamplerEntry(heun.sample_dpm_2, 2, "2", False, DPM_SOLVER),
    "dpm_2_ancestral": SamplerEntry(heun.sample_dpm_2_ancestral, 2, "2", True, DPM_SOLVER),
    "lms": SamplerEntry(multistep.sample_lms, 4, "1", False, "Adams-Bashforth in sigma (k-diffusion)", in_effect=2),
    "dpm_fast": SamplerEntry(
        dpm_solver.dpm_fast_on_schedule, 3, "1 on average", False, DPM_SOLVER, adapted=True, in_effect=2
    ),
    "dpm_adaptive": SamplerEntry(
        dpm_solver.dpm_adaptive_on_schedule, 3, "3 per own step", False, DPM_SOLVER, adapted=True, in_effect=0
    ),
    "dpmpp_2s_ancestral": SamplerEntry(dpmpp.sample_dpmpp_2s_ancestral, 2, "2", True, DPM_SOLVER_PP),
    "dpmpp_2s_ancestral_cfg_pp": SamplerEntry(
        dpmpp.sample_dpmpp_2s_ancestral_cfg_pp, 2, "2", True, CFG_PP, in_effect=0
    ),
    "dpmpp_sde": SamplerEntry(dpmpp_sde.sample_dpmpp_sde, 2, "2", True, DPM_SOLVER_PP),
    "dpmpp_sde_gpu": SamplerEntry(dpmpp_sde.sample_dpmpp_sde_gpu, 2, "2", True, DPM_SOLVER_PP),
    "dpmpp_2m": SamplerEntry(dpmpp.sample_dpmpp_2m, 2, "1", False, DPM_SOLVER_PP),
    "dpmpp_2m_cfg_pp": SamplerEntry(dpmpp.sample_dpmpp_2m_cfg_pp, 2, "1", False, CFG_PP),
    "dpmpp_2m_sde": SamplerEntry(dpmpp_sde.sample_dpmpp_2m_sde, 2, "1", True, DPM_SOLVER_PP),
    "dpmpp_2m_sde_gpu": SamplerEntry(dpmpp_sde.sample_dpmpp_2m_sde_gpu, 2, "1", True, DPM_SOLVER_PP),
    "dpmpp_2m_sde_heun": SamplerEntry(dpmpp_sde.sample_dpmpp_2m_sde_heun, 2, "1", True, DPM_SOLVER_PP),
    "dpmpp_2m_sde_heun_gpu": SamplerEntry(dpmpp_sde.sample_dpmpp_2m_sde_heun_gpu, 2, "1", True, DPM_SOLVER_PP),
    "dpmpp_3m_sde": SamplerEntry(dpmpp_sde.sample_dpmpp_3m_sde, 3, "1", True, DPM_SOLVER_PP, in_effect=2),
    "dpmpp_3m_sde_gpu": SamplerEntry(dpmpp_sde.sample_dpmpp_3m_sde_gpu, 3, "1", True, DPM_SOLVER_PP, in_effect=2),
    "ddpm": SamplerEntry(euler.sample_ddpm, 1, "1", True, "Ho et al. 2020, arXiv:2006.11239", in_effect=0),
    "lcm": SamplerEntry(euler.sample_lcm, 0, "1", True, "Luo et al. 2023, arXiv:2310.04378"),
    "ipndm": SamplerEntry(multistep.sample_ipndm, 4, "1", False, DEIS, in_effect=2),
    "ipndm_v": SamplerEntry(multistep.sample_ipndm_v, 4, "1", False, DEIS, in_effect=2),
    "deis": SamplerEntry(multistep.sample_deis, 3, "1", False, DEIS, in_effect=2),
    "res_multistep": SamplerEntry(res.sample_res_multistep, 2, "1", False, RES),
    "res_multistep_cfg_pp": SamplerEntry(res.sample_res_multistep_cfg_pp, 2, "1", False, RES),
    "res_multistep_ancestral": SamplerEntry(res.sample_res_multistep_ancestral, 2, "1", True, RES),
    "res_multistep_ancestral_cfg_pp": SamplerEntry(res.sample_res_multistep_ancestral_cfg_pp, 2, "1", True, RES),
    "gradient_estimation": SamplerEntry(multistep.sample_gradient_estimation, 1, "1", False, GRADIENT_ESTIMATION),
    "gradient_estimation_cfg_pp": SamplerEntry(
        multistep.sample_gradient_estimation_cfg_pp, 1, "1", False, GRADIENT_ESTIMATION
    ),
    "er_sde": SamplerEntry(er_sde.sample_er_sde, 3, "1", True, "Cui et al. 2023, arXiv:2309.06169", in_effect=1),
    "seeds_2": SamplerEntry(seeds.sample_seeds_2, 2, "2", True, SEEDS),
    "seeds_3": SamplerEntry(seeds.sample_seeds_3, 3, "3", True, SEEDS),
    "sa_solver": SamplerEntry(sa_solver.sample_sa_solver, 3, "1", True, SA_SOLVER, in_effect=4),
    "sa_solver_pece": SamplerEntry(sa_solver.sample_sa_solver_pece, 3, "2", True, SA_SOLVER, in_effect=4),
    "ddim": SamplerEntry(euler.sample_euler, 1, "1", False, DDIM, random_inpaint_noise=True),
    "uni_pc": SamplerEntry(uni_pc.sample_unipc, 3, "1", False, UNI_PC, in_effect=2),
    "uni_pc_bh2": SamplerEntry(uni_pc.sample_unipc_bh2, 3, "1", False, UNI_PC, in_effect=2),
}
