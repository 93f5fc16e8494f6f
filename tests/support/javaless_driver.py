"""A driver on a machine without the wheel that brings a Java."""

from __future__ import annotations

from noetl.adapters.spark.child.main import main
from noetl.adapters.spark.runtime import java

if __name__ == "__main__":
    java.wheel_home = lambda: None
    main()
