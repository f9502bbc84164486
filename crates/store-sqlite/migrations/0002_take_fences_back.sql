INSERT INTO fences (scope, epoch, term) SELECT scope, epoch, term FROM fences_before;
DROP TABLE fences_before;
