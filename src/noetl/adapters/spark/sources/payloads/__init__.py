"""`noetl`: rows behind a locator, read and written in Arrow.

`finding` what a locator names · `planning` which task reads what · `reading` the rows of a task · `pruning` what a
filter lets out · `writing` new datasets · `pointer` the file that names one."""
