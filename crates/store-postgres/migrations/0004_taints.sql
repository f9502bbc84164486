-- What keeps tasks away from a node, and which queues it serves: JSON arrays of texts.
ALTER TABLE nodes
    ADD COLUMN taints text NOT NULL DEFAULT '[]',
    ADD COLUMN queues text NOT NULL DEFAULT '["default"]';
