-- How far the emptying of a node has come (JSON); absent while it takes work. `draining` says the same to older
-- releases that are still running.
ALTER TABLE nodes ADD COLUMN drain TEXT;
