"""The worker's side: names, pipelines, outcomes, facts."""
