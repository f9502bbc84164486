-- What lets a machine join as a node, and who it is from then on. Digests only: nothing here opens a door.
CREATE TABLE join_tokens (
    id text COLLATE "C" PRIMARY KEY,
    digest text COLLATE "C" NOT NULL UNIQUE,
    node text COLLATE "C",
    uses integer NOT NULL,
    used integer NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);

CREATE TABLE node_credentials (
    digest text COLLATE "C" PRIMARY KEY,
    node text COLLATE "C" NOT NULL,
    -- The join token that it was given for; none where another identity was shown.
    token text COLLATE "C",
    issued_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);

CREATE INDEX node_credentials_of_node ON node_credentials (node);
-- Looked at every few seconds, and nearly always empty.
CREATE INDEX node_credentials_revoked ON node_credentials (expires_at) WHERE revoked_at IS NOT NULL;

-- Somebody has removed it, and it is listed only while it holds something.
ALTER TABLE nodes ADD COLUMN removed_at timestamptz;
