"""The tool `duckdb`: SQL over results of earlier steps and over tables of the execution, each task in a process of its
own."""
