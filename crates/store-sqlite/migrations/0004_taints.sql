-- What keeps tasks away from a node, and which queues it serves: JSON arrays of texts.
ALTER TABLE nodes ADD COLUMN taints TEXT NOT NULL DEFAULT '[]';
ALTER TABLE nodes ADD COLUMN queues TEXT NOT NULL DEFAULT '["default"]';
