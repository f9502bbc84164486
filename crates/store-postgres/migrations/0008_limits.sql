-- Which pools, quotas and nodes are in force, as one number in one row: every change of them adds one, as the last thing
-- before its commit. A sequence would not do: it moves before the commit, and whoever saw it move would read too early.
CREATE TABLE limits (
    id integer PRIMARY KEY CHECK (id = 1),
    version bigint NOT NULL
);

INSERT INTO limits VALUES (1, 0);

-- Until now every shard was told of each change by a row of its own.
DELETE FROM attention WHERE what = '{"type":"limits"}';
