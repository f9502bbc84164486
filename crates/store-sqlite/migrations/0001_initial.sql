-- Instants are whole microseconds since 1970, UTC. Ids of attempts and terms are 16 bytes.
-- Columns that change with every transition carry no index: the owner of a shard knows from memory what
-- is ready, and an index on the state of a task instance would double the cost of every write.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE dags (
    tenant        TEXT NOT NULL,
    dag_id        TEXT NOT NULL,
    shard         INTEGER NOT NULL,
    paused        INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    hash          TEXT NOT NULL,
    origin        TEXT NOT NULL,
    owner         TEXT NOT NULL,
    tags          TEXT NOT NULL, -- a JSON array of texts
    anchor        INTEGER NOT NULL,
    last_tick     INTEGER,
    next_tick     INTEGER,
    registered_at INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant, dag_id)
) WITHOUT ROWID, STRICT;
CREATE INDEX dags_of_shard ON dags (shard);

CREATE TABLE dag_versions (
    tenant     TEXT NOT NULL,
    dag_id     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    hash       TEXT NOT NULL,
    spec       TEXT NOT NULL,
    source     TEXT NOT NULL,
    origin     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, dag_id, version),
    FOREIGN KEY (tenant, dag_id) REFERENCES dags ON DELETE CASCADE
) STRICT;

CREATE TABLE runs (
    key             INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused, not even after a delete
    tenant          TEXT NOT NULL,
    dag_id          TEXT NOT NULL,
    run_id          TEXT NOT NULL,
    version         INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    state           TEXT NOT NULL,
    revision        INTEGER NOT NULL,
    run_type        TEXT NOT NULL,
    logical_date    INTEGER,
    interval_start  INTEGER,
    interval_end    INTEGER,
    run_after       INTEGER NOT NULL,
    queued_at       INTEGER NOT NULL,
    started_at      INTEGER,
    ended_at        INTEGER,
    updated_at      INTEGER NOT NULL,
    conf            TEXT NOT NULL,
    note            TEXT,
    triggered_by    TEXT NOT NULL,
    reason          TEXT,
    idempotency_key TEXT,
    fingerprint     TEXT, -- of the request that carried the key
    UNIQUE (tenant, dag_id, run_id),
    FOREIGN KEY (tenant, dag_id) REFERENCES dags ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX runs_by_date ON runs (tenant, dag_id, logical_date) WHERE logical_date IS NOT NULL;
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, dag_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- What a shard's owner loads: as small as what is unfinished, however long the history.
CREATE INDEX runs_unfinished ON runs (shard) WHERE state IN ('queued', 'running');

CREATE TABLE task_instances (
    run          INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    task_no      INTEGER NOT NULL,
    map_index    INTEGER NOT NULL,
    tenant       TEXT NOT NULL,
    task_id      TEXT NOT NULL,
    pool         TEXT NOT NULL,
    state        TEXT NOT NULL,
    try_number   INTEGER NOT NULL,
    max_tries    INTEGER NOT NULL,
    attempt      BLOB,
    node         TEXT,
    scheduled_at INTEGER,
    queued_at    INTEGER,
    started_at   INTEGER,
    ended_at     INTEGER,
    reason       TEXT,
    PRIMARY KEY (run, task_no, map_index)
) WITHOUT ROWID, STRICT;

CREATE TABLE tries (
    run          INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    task_no      INTEGER NOT NULL,
    map_index    INTEGER NOT NULL,
    try_number   INTEGER NOT NULL,
    tenant       TEXT NOT NULL,
    task_id      TEXT NOT NULL,
    state        TEXT NOT NULL,
    max_tries    INTEGER NOT NULL,
    attempt      BLOB,
    node         TEXT,
    scheduled_at INTEGER,
    queued_at    INTEGER,
    started_at   INTEGER,
    ended_at     INTEGER,
    reason       TEXT,
    PRIMARY KEY (run, task_no, map_index, try_number)
) WITHOUT ROWID, STRICT;

CREATE TABLE results (
    run       INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    task_no   INTEGER NOT NULL,
    map_index INTEGER NOT NULL,
    tenant    TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (run, task_no, map_index)
) STRICT;

-- One row per transaction and run (or dag). No reference to runs: history outlives what it is about.
CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant  TEXT NOT NULL,
    dag_id  TEXT,
    run_id  TEXT,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    scope   TEXT,
    epoch   INTEGER,
    entries TEXT NOT NULL
) STRICT;
CREATE INDEX audit_of_run ON audit (tenant, dag_id, run_id);

CREATE TABLE attention (
    seq   INTEGER PRIMARY KEY AUTOINCREMENT,
    shard INTEGER NOT NULL,
    what  TEXT NOT NULL
) STRICT;
CREATE INDEX attention_of_shard ON attention (shard);

CREATE TABLE leases (
    scope            TEXT PRIMARY KEY,
    holder_name      TEXT NOT NULL,
    holder_instance  TEXT NOT NULL,
    holder_address   TEXT,
    term             BLOB NOT NULL,
    epoch            INTEGER NOT NULL,
    duration         INTEGER NOT NULL, -- microseconds
    acquired_at      INTEGER NOT NULL,
    renewed_at       INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    released         INTEGER NOT NULL,
    resource_version INTEGER NOT NULL,
    transitions      INTEGER NOT NULL,
    note             TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- Apart from the leases, and never deleted: the floor under every epoch.
CREATE TABLE fences (
    scope TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    term  BLOB NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE pools (
    name        TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    slots       INTEGER NOT NULL,
    description TEXT NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE nodes (
    node          TEXT PRIMARY KEY,
    capacity      TEXT NOT NULL,
    labels        TEXT NOT NULL,
    version       TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    draining      INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
