"""Events of older schemas as the present code understands them: pure, by (schema, version), always forward."""
