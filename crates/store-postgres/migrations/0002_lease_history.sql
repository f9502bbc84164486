-- All that leases need, written so that it can be applied to a Tenure database and to any other: this file
-- is both the second migration and what `tenure elect` runs where there is no Tenure database. The first two
-- statements find their tables in the one case and make them in the other.

CREATE TABLE IF NOT EXISTS leases (
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

CREATE TABLE IF NOT EXISTS fences (
    scope text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    term uuid NOT NULL
) WITH (fillfactor = 50);

-- Leases from before belong to no session that anybody could see end.
ALTER TABLE leases
    ADD COLUMN IF NOT EXISTS holder_session uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ADD COLUMN IF NOT EXISTS succession text NOT NULL DEFAULT 'first';

-- One row for each term, written twice: when it begins and when it ends. The latest epoch here is a floor for
-- the next one, beside fence and lease.
CREATE TABLE IF NOT EXISTS lease_terms (
    scope text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    term uuid NOT NULL,
    holder_name text NOT NULL,
    holder_instance text NOT NULL,
    holder_session uuid NOT NULL,
    holder_address text,
    acquired_at timestamptz NOT NULL,
    succession text NOT NULL,
    note text NOT NULL,
    ended_at timestamptz,
    ended_how text,
    PRIMARY KEY (scope, epoch)
);
