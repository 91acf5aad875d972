"""Analysis of heads: roles, rollout, value norms, ablation."""
