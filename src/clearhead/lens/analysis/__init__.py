"""What records say about heads: roles, rollout, value norms, ablation."""
