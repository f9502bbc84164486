-- What several replicas need of one database, and what keeps its tables small under churn.

-- How much of a pool or a node each shard may use without asking the others. `wanted` is its latest bid: a
-- shard that has less than that is told when some is given back. No index holds a column that changes.
CREATE TABLE shares (
    what text COLLATE "C" NOT NULL,
    shard integer NOT NULL,
    amount text NOT NULL,
    wanted text NOT NULL,
    PRIMARY KEY (what, shard)
) WITH (fillfactor = 70);

CREATE INDEX shares_of_shard ON shares (shard);

-- Which nodes each replica hears from: one row for each replica, rewritten every few seconds.
CREATE TABLE presence (
    replica text COLLATE "C" PRIMARY KEY,
    at timestamptz NOT NULL,
    nodes text[] NOT NULL
) WITH (fillfactor = 50);

-- Retention looks for the oldest ends, the run reaper for what is running: neither passes by the rest. A change
-- of `state` was never HOT, and `ended_at` changes with it alone, so no update has become dearer.
CREATE INDEX runs_finished ON runs (ended_at) WHERE state IN ('success', 'failed');
DROP INDEX runs_unfinished;
CREATE INDEX runs_unfinished ON runs (shard, state) WHERE state IN ('queued', 'running');
-- Which run of a dag is its newest, for retention and for screens.
CREATE INDEX runs_of_dag ON runs (tenant, dag_id, key);

-- A row doubles while its task runs (attempt, node, four instants) and is written three times. A page that was
-- filled to a third has room for all of that: no row moves to another page, and nearly every update is HOT. The
-- table ends up as big as with full pages, because rows that move leave holes behind.
ALTER TABLE task_instances SET (fillfactor = 30);

-- What a pass says of a run is text of some kilobytes. Where the server has lz4, that costs a fifth of the time.
DO $$ BEGIN
    ALTER TABLE audit ALTER COLUMN entries SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;

-- Vacuum early and a little at a time: a fifth of ten million rows is a long time to wait, and a vacuum that
-- comes often finds most pages untouched since the last one. Rows that are only inserted are frozen as they
-- come, not all at once in a year.
ALTER TABLE task_instances SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE audit SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
-- A queue: every row dies young, and the next reader has to step over the dead. Nor is it worth the exclusive
-- lock to give the end of the file back, which the next burst needs again.
ALTER TABLE attention SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
-- Leases and fences stay as they are: with a few dozen rows, the defaults vacuum them every minute, and renewals
-- are HOT on half-empty pages.
