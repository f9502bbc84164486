-- What a shard may use of what all shards draw from. A single shard has no rows here: everything is its own.
CREATE TABLE shares (
    what   TEXT NOT NULL, -- pool/NAME, node/NAME
    shard  INTEGER NOT NULL,
    amount TEXT NOT NULL, -- JSON, thousandths by name
    wanted INTEGER NOT NULL, -- 1: its last bid was not met in full
    PRIMARY KEY (what, shard)
) WITHOUT ROWID, STRICT;
CREATE INDEX shares_of_shard ON shares (shard);

-- Which nodes each replica hears from.
CREATE TABLE presence (
    replica TEXT PRIMARY KEY,
    nodes   TEXT NOT NULL, -- a JSON array of texts
    at      INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- For whoever forgets old runs; written once in the life of a run.
CREATE INDEX runs_finished ON runs (ended_at) WHERE state IN ('success', 'failed');
