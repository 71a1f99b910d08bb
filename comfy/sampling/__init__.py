"""How a latent is denoised: sigma tables, schedules, noise, solvers, guidance and masks."""
