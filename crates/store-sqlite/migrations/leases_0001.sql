-- The tables of leases, the same in a state database and in a file that holds nothing else.
-- Instants are whole microseconds since 1970, UTC. Ids of terms and sessions are 16 bytes.

CREATE TABLE leases (
    scope            TEXT PRIMARY KEY,
    holder_name      TEXT NOT NULL,
    holder_instance  TEXT NOT NULL,
    holder_session   BLOB NOT NULL,
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
    succession       TEXT NOT NULL,
    note             TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- Apart from the leases, and never deleted: the floor under every epoch.
CREATE TABLE fences (
    scope TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    term  BLOB NOT NULL
) WITHOUT ROWID, STRICT;

-- The latest terms of every scope, for people.
CREATE TABLE lease_terms (
    scope            TEXT NOT NULL,
    epoch            INTEGER NOT NULL,
    term             BLOB NOT NULL,
    holder_name      TEXT NOT NULL,
    holder_instance  TEXT NOT NULL,
    holder_session   BLOB NOT NULL,
    holder_address   TEXT,
    acquired_at      INTEGER NOT NULL,
    succession       TEXT NOT NULL,
    note             TEXT NOT NULL,
    ended_at         INTEGER,
    ending           TEXT,
    PRIMARY KEY (scope, epoch)
) WITHOUT ROWID, STRICT;
