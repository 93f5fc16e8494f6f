"""NoETL: durable, event-sourced data pipelines.  The public names of the package are listed here, once."""

__version__ = "0.1.0"

__all__ = ["__version__"]
