"""Document → model: every shape that the language allows, normalised, with a finding for each that it does not."""
