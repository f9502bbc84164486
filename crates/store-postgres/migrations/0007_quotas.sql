-- What the tasks of a tenant may take of all nodes together (JSON, in thousandths).
CREATE TABLE quotas (
    tenant text PRIMARY KEY,
    most text NOT NULL
);
