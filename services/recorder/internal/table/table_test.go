package table_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/services/recorder/internal/table"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/store.md")

const docs = "../../../../docs/store.md"

// listed are tables of an origin as the documentation lists them.
func listed(origin table.Origin) string {
	var b strings.Builder
	b.WriteString("| table | a row per | columns |\n|---|---|---|\n")
	for _, t := range table.All() {
		if t.Origin != origin {
			continue
		}
		var columns []string
		for _, c := range t.Columns {
			text := "`" + c.Name + "`"
			if c.Note != "" {
				text += " (" + c.Note + ")"
			}
			columns = append(columns, text)
		}
		b.WriteString("| `" + t.Name + "` | " + t.Note + " | " + strings.Join(columns, ", ") + " |\n")
	}
	return b.String()
}

// What docs/store.md says of the tables is what is declared.
func TestTablesAreDocumented(t *testing.T) {
	data, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for name, origin := range map[string]table.Origin{"kept": table.Kept, "derived": table.Derived, "caches": table.Cache} {
		before, rest, found := strings.Cut(text, "<!-- "+name+": make golden -->\n")
		is, after, ended := strings.Cut(rest, "<!-- end -->\n")
		if !found || !ended {
			t.Fatalf("%s: there is no place for the tables", name)
		}
		want := listed(origin)
		if !*update && is != want {
			t.Errorf("%s (-documented +declared):\n%s", name, cmp.Diff(is, want))
		}
		text = before + "<!-- " + name + ": make golden -->\n" + want + "<!-- end -->\n" + after
	}
	if *update && text != string(data) {
		if err := os.WriteFile(docs, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever a declaration names is a column of its table, and derived rows are told
// apart by something.
func TestDeclarations(t *testing.T) {
	for _, table := range table.All() {
		names := strings.Split(table.List(), ", ")
		used := slices.Concat(table.Key, table.By, table.Also)
		for _, i := range table.Indexes {
			used = append(used, strings.Split(i.Columns, ", ")...)
		}
		for _, name := range used {
			if !slices.Contains(names, name) {
				t.Errorf("table %s has no column %s", table.Name, name)
			}
		}
	}
}

func TestValues(t *testing.T) {
	run := table.Run{ID: 7, RunID: "r1", FirstPos: 3}
	values, fields := table.Values(&run), table.Fields(&run)
	if len(fields) != len(values)+1 || fields[0] != any(&run.ID) || values[0] != any("r1") {
		t.Errorf("values %v", values)
	}
	if got := strings.Count(table.All().Named("runs").Insert(), "?"); got != len(values) {
		t.Errorf("%d parameters for %d values", got, len(values))
	}
	label := table.Label{Run: 1, Key: "k", Value: "v"}
	if diff := cmp.Diff([]any{int64(1), "k", "v"}, table.Values(&label)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
