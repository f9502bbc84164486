-- Which pools, quotas and nodes are in force, as one number in one row: every change of them adds one.
CREATE TABLE limits (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL
) STRICT;

INSERT INTO limits VALUES (1, 0);

-- Until now every shard was told of each change by a row of its own.
DELETE FROM attention WHERE what = '{"type":"limits"}';
