"""`ablate`: what each optimisation brings, alone and in the full ladder."""
