-- What lets a machine join as a node, and who it is from then on. Digests only: nothing here opens a door.
CREATE TABLE join_tokens (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL UNIQUE,
    node       TEXT,
    uses       INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID, STRICT;

CREATE TABLE node_credentials (
    digest     TEXT PRIMARY KEY,
    node       TEXT NOT NULL,
    -- The join token that it was given for; none where another identity was shown.
    token      TEXT,
    issued_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID, STRICT;

CREATE INDEX node_credentials_of_node ON node_credentials (node);
-- Looked at every few seconds, and nearly always empty.
CREATE INDEX node_credentials_revoked ON node_credentials (expires_at) WHERE revoked_at IS NOT NULL;

-- Somebody has removed it, and it is listed only while it holds something.
ALTER TABLE nodes ADD COLUMN removed_at INTEGER;
