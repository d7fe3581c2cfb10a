// Package table declares the tables of the recorder's store, each once, as a Go
// struct with its columns as fields. From that follow, for each database, the
// statements that make them and that write and read whole rows, what `wake verify`
// compares, what deleting a run removes, and the list in docs/store.md.
//
// What only one database has is in its own file: triggers, the full text, functions.
package table

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/subjects"
)

// MaxKey bounds the bytes of what is found by an index. Ids that may be chosen are a
// quarter of that at most.
const MaxKey = 4 * subjects.MaxID

// Origin says where the rows of a table come from.
type Origin int

// The origins of rows.
const (
	Kept    Origin = iota // written by the recorder: nothing else has them
	Derived               // they follow from the events
	Cache                 // they follow from other rows, and are made when there is reason to
)

// Table is the declaration of a table.
type Table struct {
	Name    string
	Note    string // what has a row
	Origin  Origin
	Columns []Column
	Key     []string // primary key; none: there is one row
	Also    []string // what is unique besides
	By      []string // what rows of a run are told apart by, if that isn't the key
	Batch   int      // rows of a run that are removed at once; 0: 1000
	Indexes []Index
	Apart   bool   // rows are large: SQLite keeps them apart from the key
	Only    string // the database that has it; "": all
}

// Index is an index of a table.
type Index struct {
	Name    string
	Columns string
	Where   string // rows that are in it; "": all
	Hash    bool   // texts of any length: PostgreSQL takes only their hashes
	Only    string // the database that has it; "": all
}

// Column is a column of a table.
type Column struct {
	Name   string
	Type   reflect.Kind // Int64, Float64, String or Slice, which is bytes
	Null   bool
	Number bool // the database numbers the rows
	Named  bool // rows are found by it: it compares bytewise
	Unique bool
	Refers string // the table that it is an id of
	Place  bool   // it says where events are, which depends on how they came
	Sum    bool   // a sum of fractions, which databases may round differently
	Field  bool   // it may be a large field that was missing
	Note   string
}

// The names of the databases.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Tables are declarations.
type Tables []Table

// All are the tables, in the order in which they are described.
func All() Tables {
	return slices.Concat(recordedTables(), derivedTables(), alertTables(), cacheTables())
}

// recordedTables hold events, and what retention does with them.
func recordedTables() Tables {
	return Tables{
		{Name: "streams", Note: "the stream of events, one row", Columns: columnsOf[Stream](), Key: []string{"id"}},
		{
			Name: "segments", Note: "up to 1000 sealed events of a run, or 512 KiB, packed with zstd", Columns: columnsOf[Segment](),
			Key: []string{"run", "n"}, Batch: 8, Apart: true,
			Indexes: []Index{{Name: "segments_run", Columns: "run, last_pos, first_pos"}, {Name: "segments_pos", Columns: "last_pos, first_pos"}},
		},
		{
			Name: "tail", Note: "run and batch: events that aren't sealed yet", Columns: columnsOf[Tail](), Key: []string{"run", "first_pos"}, Apart: true,
			Indexes: []Index{{Name: "tail_pos", Columns: "last_pos, first_pos"}},
		},
		{Name: "blobs", Note: "large field", Columns: columnsOf[Blob](), Key: []string{"sha256"}},
		{
			Name: "deleted", Note: "run that was deleted, until its events are removed", Columns: columnsOf[Deleted](), Key: []string{"run"},
			Indexes: []Index{{Name: "deleted_gone", Columns: "gone_at"}},
		},
		{Name: "retired", Note: "run whose events were removed, or are being removed", Columns: columnsOf[Retired](), Key: []string{"run"}},
		{
			Name: "remains", Note: "what a removed run may have left on the server, until it is gone", Columns: columnsOf[Remains](), Key: []string{"kind", "name"},
			Indexes: []Index{{Name: "remains_dropped", Columns: "dropped, at"}},
		},
		{Name: "rebuilds", Note: "order to derive everything again that was obeyed", Columns: columnsOf[Rebuild](), Key: []string{"id"}},
	}
}

// derivedTables follow from events.
func derivedTables() Tables {
	pos := []string{"pos"}
	return Tables{
		{
			Name: "runs", Note: "run", Origin: Derived, Columns: columnsOf[Run](), Key: []string{"id"}, By: []string{},
			Indexes: []Index{{Name: "runs_first", Columns: "first_pos"}},
		},
		{Name: "nodes", Note: "node of a run", Origin: Derived, Columns: columnsOf[Node](), Key: []string{"id"}, Also: []string{"run", "node"}, By: []string{"node"}},
		{
			Name: "labels", Note: "label of a run", Origin: Derived, Columns: columnsOf[Label](), Key: []string{"run", "key"},
			Indexes: []Index{{Name: "labels_value", Columns: "value", Hash: true}},
		},
		{
			Name: "bindings", Note: "session of an execution", Origin: Derived, Columns: columnsOf[Binding](), Key: []string{"session", "run", "node"},
			Indexes: []Index{{Name: "bindings_run", Columns: "run"}},
		},
		{
			Name: "lines", Note: "line of the log", Origin: Derived, Columns: columnsOf[Line](), Key: pos,
			Indexes: []Index{
				{Name: "lines_run", Columns: "run, hidden, pos, type, node, ts"},
				{Name: "lines_message", Columns: "message", Where: "message > 0"},
				{Name: "lines_cut", Columns: "run", Where: "cut > 0"},
			},
		},
		{
			Name: "tool_calls", Note: "finished call", Origin: Derived, Columns: columnsOf[ToolCall](), Key: pos,
			Indexes: []Index{
				{Name: "tool_calls_run", Columns: "run, tool", Only: SQLite},
				{Name: "tool_calls_run", Columns: "run", Only: Postgres},
				{Name: "tool_calls_tool", Columns: "tool", Hash: true, Only: Postgres},
				{Name: "tool_calls_ts", Columns: "ts"},
			},
		},
		{
			Name: "spend", Note: "node, day and model", Origin: Derived, Columns: columnsOf[Spend](), Key: []string{"node", "day", "model"},
			Indexes: []Index{{Name: "spend_run", Columns: "run"}},
		},
		{Name: "usage_seen", Note: "model call; those of one message count once", Origin: Derived, Columns: columnsOf[Usage](), Key: []string{"node", "message"}, By: pos},
		{
			Name: "chat_messages", Note: "message of a conversation", Origin: Derived, Columns: columnsOf[ChatMessage](), Key: pos,
			Indexes: []Index{{Name: "chat_messages_node", Columns: "node, seq"}},
		},
		{Name: "chat_errors", Note: "error of an agent", Origin: Derived, Columns: columnsOf[ChatError](), Key: []string{"node", "pos"}, By: pos},
		{Name: "chat_checkpoints", Note: "checkpoint of a conversation", Origin: Derived, Columns: columnsOf[ChatCheckpoint](), Key: []string{"node", "pos"}, By: pos},
		{
			Name: "lineage", Note: "run and those of which it is a fork, at any distance, or the one of which it is a child", Origin: Derived, Columns: columnsOf[Lineage](), Key: []string{"run", "ancestor"},
			Indexes: []Index{{Name: "lineage_ancestor", Columns: "ancestor"}},
		},
		{
			Name: "blob_uses", Note: "run and large field that it refers to", Origin: Derived, Columns: columnsOf[BlobUse](), Key: []string{"sha256", "run"},
			Indexes: []Index{{Name: "blob_uses_run", Columns: "run, sha256"}},
		},
	}
}

// alertTables hold alerts.
func alertTables() Tables {
	return Tables{
		{
			Name: "alerts", Note: "alert", Columns: columnsOf[Alert](), Key: []string{"key"}, Apart: true,
			Indexes: []Index{{Name: "alerts_run", Columns: "run, pos"}},
		},
		{Name: "alerts_read", Note: "the stream of alerts, one row", Columns: columnsOf[AlertsRead](), Key: []string{"id"}},
		{Name: "alert_counts", Note: "run that has alerts", Columns: columnsOf[AlertCount](), Key: []string{"run"}},
	}
}

// cacheTables hold what makes answers fast.
func cacheTables() Tables {
	return Tables{
		{Name: "folds", Note: "run: its state, a little behind", Origin: Cache, Columns: columnsOf[Fold](), Key: []string{"run"}, Batch: 1},
		{Name: "keyframes", Note: "run and position: its state then", Origin: Cache, Columns: columnsOf[Keyframe](), Key: []string{"run", "pos"}, Batch: 16, Apart: true},
		{
			Name: "lines_open", Note: "line that grows, which isn't in the full text yet", Origin: Cache, Columns: columnsOf[LineOpen](), Key: []string{"pos"}, Only: SQLite,
			Indexes: []Index{{Name: "lines_open_writer", Columns: "writer"}},
		},
		{Name: "lines_indexed", Note: "how far the full text is, one row", Origin: Cache, Columns: columnsOf[LinesIndexed](), Only: SQLite},
	}
}

// Named returns a table by its name. There must be one.
func (l Tables) Named(name string) Table {
	return l[slices.IndexFunc(l, func(t Table) bool { return t.Name == name })]
}

// Of returns the tables of a database.
func (l Tables) Of(database string) Tables {
	return slices.DeleteFunc(slices.Clone(l), func(t Table) bool { return t.Only != "" && t.Only != database })
}

// columnsOf reads columns off the fields of R. A field's tag db has the name and,
// after commas, what else is to say: number, name, unique, place, sum, field, as in
// [Column], or the table that it is an id of; a pointer may be null.
func columnsOf[R any]() []Column {
	row := reflect.TypeFor[R]()
	list := make([]Column, row.NumField())
	for i := range list {
		f := row.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("db"), ",")
		c := Column{Name: name, Type: f.Type.Kind(), Note: f.Tag.Get("note")}
		if c.Type == reflect.Pointer {
			c.Type, c.Null = f.Type.Elem().Kind(), true
		}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "":
			case "number":
				c.Number = true
			case "name":
				c.Named = true
			case "unique":
				c.Unique = true
			case "place":
				c.Place = true
			case "sum":
				c.Sum = true
			case "field":
				c.Field = true
			case "runs", "nodes":
				c.Refers = option
			default:
				panic(fmt.Sprintf("column %s: there is no option %q", name, option))
			}
		}
		list[i] = c
	}
	return list
}

// OfRun reports whether rows are of a run, which their column run names by its id.
func (t Table) OfRun() bool {
	return slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Refers == "runs" })
}

// OfRuns are the tables that have rows of a run, but for runs itself, in the order in
// which their rows are removed: nodes last, since rows of other tables name their run by them.
func (l Tables) OfRuns() (list Tables) {
	for _, t := range l {
		if t.OfRun() && t.Name != "nodes" {
			list = append(list, t)
		}
	}
	return append(list, l.Named("nodes"))
}

// columnNames are those of the columns that pass.
func (t Table) columnNames(passes func(Column) bool) (list []string) {
	for _, c := range t.Columns {
		if passes(c) {
			list = append(list, c.Name)
		}
	}
	return list
}
