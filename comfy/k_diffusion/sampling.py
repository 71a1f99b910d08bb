"""The solvers under the names that packs import (`sample_<name>`), and their small helpers.

Packs replace `default_noise_sampler` here, and add `sample_<name>` functions of their own.
"""

from __future__ import annotations

import torch

from comfy.sampling.noise import (
    BatchedBrownianTree,
    BrownianTreeNoiseSampler,
    default_noise_sampler,
)
from comfy.sampling.schedules import (
    append_zero,
    get_sigmas_exponential,
    get_sigmas_karras,
    get_sigmas_laplace,
    get_sigmas_polyexponential,
    get_sigmas_vp,
)
from comfy.sampling.solvers.common import get_ancestral_step, to_d
from comfy.sampling.solvers.dpm_solver import (
    DPMSolver,
    PIDStepSizeController,
    sample_dpm_adaptive,
    sample_dpm_fast,
)
from comfy.sampling.solvers.dpmpp import (
    sample_dpmpp_2m,
    sample_dpmpp_2m_cfg_pp,
    sample_dpmpp_2s_ancestral,
    sample_dpmpp_2s_ancestral_cfg_pp,
)
from comfy.sampling.solvers.dpmpp_sde import (
    sample_dpmpp_2m_sde,
    sample_dpmpp_2m_sde_gpu,
    sample_dpmpp_2m_sde_heun,
    sample_dpmpp_2m_sde_heun_gpu,
    sample_dpmpp_3m_sde,
    sample_dpmpp_3m_sde_gpu,
    sample_dpmpp_sde,
    sample_dpmpp_sde_gpu,
)
from comfy.sampling.solvers.er_sde import default_er_sde_noise_scaler, sample_er_sde
from comfy.sampling.solvers.euler import (
    sample_ddpm,
    sample_euler,
    sample_euler_ancestral,
    sample_euler_ancestral_cfg_pp,
    sample_euler_cfg_pp,
    sample_lcm,
)
from comfy.sampling.solvers.heun import sample_dpm_2, sample_dpm_2_ancestral, sample_heun, sample_heunpp2
from comfy.sampling.solvers.multistep import (
    linear_multistep_coeff,
    sample_deis,
    sample_gradient_estimation,
    sample_gradient_estimation_cfg_pp,
    sample_ipndm,
    sample_ipndm_v,
    sample_lms,
)
from comfy.sampling.solvers.res import (
    res_multistep,
    sample_res_multistep,
    sample_res_multistep_ancestral,
    sample_res_multistep_ancestral_cfg_pp,
    sample_res_multistep_cfg_pp,
)
from comfy.sampling.solvers.sa_solver import sample_sa_solver, sample_sa_solver_pece
from comfy.sampling.solvers.seeds import (
    sample_exp_heun_2_x0,
    sample_exp_heun_2_x0_sde,
    sample_seeds_2,
    sample_seeds_3,
)

__all__ = [
    "BatchedBrownianTree",
    "BrownianTreeNoiseSampler",
    "DPMSolver",
    "PIDStepSizeController",
    "append_zero",
    "default_er_sde_noise_scaler",
    "default_noise_sampler",
    "get_ancestral_step",
    "get_sigmas_exponential",
    "get_sigmas_karras",
    "get_sigmas_laplace",
    "get_sigmas_polyexponential",
    "get_sigmas_vp",
    "linear_multistep_coeff",
    "res_multistep",
    "sample_ddpm",
    "sample_deis",
    "sample_dpm_2",
    "sample_dpm_2_ancestral",
    "sample_dpm_adaptive",
    "sample_dpm_fast",
    "sample_dpmpp_2m",
    "sample_dpmpp_2m_cfg_pp",
    "sample_dpmpp_2m_sde",
    "sample_dpmpp_2m_sde_gpu",
    "sample_dpmpp_2m_sde_heun",
    "sample_dpmpp_2m_sde_heun_gpu",
    "sample_dpmpp_2s_ancestral",
    "sample_dpmpp_2s_ancestral_cfg_pp",
    "sample_dpmpp_3m_sde",
    "sample_dpmpp_3m_sde_gpu",
    "sample_dpmpp_sde",
    "sample_dpmpp_sde_gpu",
    "sample_er_sde",
    "sample_euler",
    "sample_euler_ancestral",
    "sample_euler_ancestral_cfg_pp",
    "sample_euler_cfg_pp",
    "sample_exp_heun_2_x0",
    "sample_exp_heun_2_x0_sde",
    "sample_gradient_estimation",
    "sample_gradient_estimation_cfg_pp",
    "sample_heun",
    "sample_heunpp2",
    "sample_ipndm",
    "sample_ipndm_v",
    "sample_lcm",
    "sample_lms",
    "sample_res_multistep",
    "sample_res_multistep_ancestral",
    "sample_res_multistep_ancestral_cfg_pp",
    "sample_res_multistep_cfg_pp",
    "sample_sa_solver",
    "sample_sa_solver_pece",
    "sample_seeds_2",
    "sample_seeds_3",
    "to_d",
    "torch",
]
