package recorder

// sqliteFind are the tables that make things found fast: a part of the second
// step.
const sqliteFind = `
CREATE TABLE keyframes (               -- a cache: runs' states at earlier positions, packed with zstd
	run  INTEGER NOT NULL REFERENCES runs (id),
	pos  INTEGER NOT NULL,
	data BLOB    NOT NULL,
	PRIMARY KEY (run, pos)
) STRICT;
`
