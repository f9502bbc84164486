-- Every row that belongs to someone carries its tenant. Names sort by their bytes (COLLATE "C"), so that
-- order does not depend on how the database was created. There are no foreign keys: the verbs lock the
-- parent row themselves, and a key check for each of ten thousand new task instances would cost more than
-- the insert.

CREATE TABLE meta (
    name text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE dags (
    tenant text COLLATE "C" NOT NULL,
    dag_id text COLLATE "C" NOT NULL,
    shard integer NOT NULL,
    version integer NOT NULL,
    paused boolean NOT NULL,
    owner text COLLATE "C" NOT NULL,
    tags text[] NOT NULL,
    registered_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    last_tick timestamptz,
    next_tick timestamptz,
    PRIMARY KEY (tenant, dag_id)
) WITH (fillfactor = 80);

CREATE INDEX dags_of_shard ON dags (shard);

-- The arrays repeat what the spec says of each task, in order: creating a run copies them into task
-- instances inside the database, without reading the spec.
CREATE TABLE dag_versions (
    tenant text COLLATE "C" NOT NULL,
    dag_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    hash text COLLATE "C" NOT NULL,
    spec text NOT NULL,
    source text NOT NULL,
    origin text NOT NULL,
    created_at timestamptz NOT NULL,
    task_ids text[] NOT NULL,
    task_retries integer[] NOT NULL,
    task_pools text[] NOT NULL,
    PRIMARY KEY (tenant, dag_id, version)
);

-- Updates that leave `state` alone are HOT: only the start and the end of a run touch an index.
CREATE TABLE runs (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    dag_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    shard integer NOT NULL,
    state text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    run_type text COLLATE "C" NOT NULL,
    logical_date timestamptz,
    interval_start timestamptz,
    interval_end timestamptz,
    run_after timestamptz NOT NULL,
    queued_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    updated_at timestamptz NOT NULL,
    conf text NOT NULL,
    note text,
    triggered_by text NOT NULL,
    reason text,
    idempotency_key text COLLATE "C",
    -- What was asked for under the key, to tell a repetition from another request.
    fingerprint text,
    UNIQUE (tenant, dag_id, run_id)
) WITH (fillfactor = 75);

CREATE UNIQUE INDEX runs_by_date ON runs (tenant, dag_id, logical_date) WHERE logical_date IS NOT NULL;
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, dag_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (shard) WHERE state IN ('queued', 'running');

-- No index holds a column that changes with a transition: every update of a row is HOT.
CREATE TABLE task_instances (
    run bigint NOT NULL,
    task_no integer NOT NULL,
    map_index integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    pool text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    try_number integer NOT NULL,
    max_tries integer NOT NULL,
    attempt uuid,
    node text,
    scheduled_at timestamptz,
    queued_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    reason text,
    PRIMARY KEY (run, task_no, map_index)
) WITH (fillfactor = 70);

CREATE TABLE tries (
    run bigint NOT NULL,
    task_no integer NOT NULL,
    map_index integer NOT NULL,
    try_number integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    max_tries integer NOT NULL,
    attempt uuid,
    node text,
    scheduled_at timestamptz,
    queued_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    reason text,
    PRIMARY KEY (run, task_no, map_index, try_number)
);

CREATE TABLE results (
    run bigint NOT NULL,
    task_no integer NOT NULL,
    map_index integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (run, task_no, map_index)
);

-- One row for each transaction and run (or dag). It outlives what it is about.
CREATE TABLE audit (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    dag_id text COLLATE "C",
    run_id text COLLATE "C",
    actor text NOT NULL,
    scope text,
    epoch bigint,
    entries text NOT NULL
);

CREATE INDEX audit_of_run ON audit (tenant, dag_id, run_id, seq);

CREATE TABLE attention (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard integer NOT NULL,
    what text NOT NULL
);

CREATE INDEX attention_of_shard ON attention (shard, seq);

CREATE TABLE pools (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    slots integer NOT NULL,
    description text NOT NULL,
    PRIMARY KEY (tenant, name)
);

INSERT INTO pools VALUES ('default', 'default_pool', 128, 'for tasks that name no pool');

-- Machines belong to the installation, not to a tenant.
CREATE TABLE nodes (
    node text COLLATE "C" PRIMARY KEY,
    capacity text NOT NULL,
    labels text NOT NULL,
    version text NOT NULL,
    registered_at timestamptz NOT NULL,
    draining boolean NOT NULL
);

-- The hot row: written by every renewal.
CREATE TABLE leases (
    scope text COLLATE "C" PRIMARY KEY,
    holder_name text NOT NULL,
    holder_instance text NOT NULL,
    holder_address text,
    term uuid NOT NULL,
    epoch bigint NOT NULL,
    duration_ms bigint NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    released boolean NOT NULL,
    resource_version bigint NOT NULL,
    transitions bigint NOT NULL,
    note text NOT NULL
) WITH (fillfactor = 50);

-- The cold row: written by takeovers alone, locked in share mode by every privileged transaction, never
-- deleted. It is what keeps an epoch from ever coming back.
CREATE TABLE fences (
    scope text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    term uuid NOT NULL
) WITH (fillfactor = 50);
