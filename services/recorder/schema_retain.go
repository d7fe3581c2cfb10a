package recorder

import (
	"context"

	"wake/pkg/wire"
)

// sqliteRetain is what deleting runs needs: which are deleted, and who needs
// which run and which large field.
const sqliteRetain = `
CREATE TABLE deleted (                 -- runs that were deleted, until their events are removed
	run     TEXT    PRIMARY KEY,
	at      INTEGER NOT NULL,
	gone_at INTEGER NOT NULL,           -- from then on the events are removed
	reason  TEXT    NOT NULL,           -- user, age or size
	forced  INTEGER NOT NULL            -- 1: also if something needs it
) STRICT, WITHOUT ROWID;
CREATE TABLE blob_uses (               -- which runs refer to a large field
	sha256 TEXT    NOT NULL,
	run    INTEGER NOT NULL REFERENCES runs (id),
	PRIMARY KEY (sha256, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_run ON blob_uses (run, sha256);
CREATE TABLE lineage (                 -- of which run a run is a fork, or a child
	run      INTEGER NOT NULL REFERENCES runs (id),
	ancestor TEXT    NOT NULL,
	PRIMARY KEY (run, ancestor)
) STRICT, WITHOUT ROWID;
CREATE INDEX lineage_ancestor ON lineage (ancestor);
CREATE TABLE rebuilds (                -- orders to derive everything again that were obeyed
	id TEXT    PRIMARY KEY,
	at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
`

// postgresRetain are the same tables in PostgreSQL.
const postgresRetain = `
CREATE TABLE deleted (                   -- runs that were deleted, until their events are removed
	run     TEXT   COLLATE "C" PRIMARY KEY,
	at      BIGINT NOT NULL,
	gone_at BIGINT NOT NULL,             -- from then on the events are removed
	reason  TEXT   NOT NULL,             -- user, age or size
	forced  BIGINT NOT NULL              -- 1: also if something needs it
);
CREATE TABLE blob_uses (                 -- which runs refer to a large field
	sha256 TEXT   COLLATE "C" NOT NULL,
	run    BIGINT NOT NULL,
	PRIMARY KEY (sha256, run)
);
CREATE INDEX blob_uses_run ON blob_uses (run, sha256);
CREATE TABLE lineage (                   -- of which run a run is a fork, or a child
	run      BIGINT NOT NULL,
	ancestor TEXT   COLLATE "C" NOT NULL,
	PRIMARY KEY (run, ancestor)
);
CREATE INDEX lineage_ancestor ON lineage (ancestor);
CREATE TABLE rebuilds (                  -- orders to derive everything again that were obeyed
	id TEXT   COLLATE "C" PRIMARY KEY,
	at BIGINT NOT NULL
);
`

// fillNeeds notes which runs and which large fields the recorded events need.
func fillNeeds(ctx context.Context, _ *Store, t *tx) error {
	var runs []int64
	for rows, err := range t.query(ctx, `SELECT id FROM runs`) {
		var id int64
		if err == nil {
			err = rows.Scan(&id)
		}
		if err != nil {
			return err
		}
		runs = append(runs, id)
	}
	for _, id := range runs {
		for e, err := range t.events(ctx, id, 0, 1<<63-1) {
			if err != nil {
				return err
			}
			kind, _ := wire.Raw(e.data).Get("type").Text()
			begins := kind == string(wire.TypeRunForked) || kind == string(wire.TypeFlowStart)
			if e.mark != "" || !begins && len(wire.Raw(e.data).Get("blobs")) == 0 {
				continue
			}
			event, err := wire.Decode(e.data)
			if err != nil {
				return err
			}
			if parent := parentOf(event); parent != "" {
				if _, err := t.exec(ctx, statementText(addParent), id, parent); err != nil {
					return err
				}
			}
			for _, b := range event.Blobs {
				if _, err := t.exec(ctx, statementText(addUse), b.SHA256, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// parentOf returns the run of which the event makes its own a fork or a child, or
// "". A name that nobody can have isn't one.
func parentOf(e *wire.Event) (run string) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		run = p.ParentRun
	case *wire.RunForked:
		run = p.ParentRun
	}
	if len(run) > maxKey {
		return ""
	}
	return run
}
