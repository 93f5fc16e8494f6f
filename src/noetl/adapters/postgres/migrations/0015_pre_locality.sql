-- Where workers are and where data was made.  Runs before the new code; safe while old code runs.

-- The place of a worker, as far as it says: region, zone, cluster, node.
ALTER TABLE noetl.session ADD COLUMN place json;

-- Where the data of a command is and how far from there it may run, for whoever gives it out; NULL when nobody knows.
ALTER TABLE noetl.command ADD COLUMN locality text;
