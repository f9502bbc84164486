-- What the tasks of a tenant may take of all nodes together (JSON, in thousandths).
CREATE TABLE quotas (
    tenant TEXT PRIMARY KEY,
    most TEXT NOT NULL
) STRICT;
