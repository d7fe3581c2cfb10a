package schemas_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// TestWireDocument fails if the tables of docs/wire.md aren't what the types
// say.
func TestWireDocument(t *testing.T) {
	s := readSource(t)
	generated(t, "../docs/wire.md", map[string]string{
		"envelope": table(s, "Event", wire.DescribeEnvelope(), nil),
		"types":    typesPart(s),
	})
}

// TestSubjectsDocument is [TestWireDocument] for docs/subjects.md.
func TestSubjectsDocument(t *testing.T) {
	var kinds, escape strings.Builder
	kinds.WriteString("| kind | types |\n|---|---|\n")
	for _, kind := range wire.Kinds {
		var names []string
		for _, g := range readSource(t).groups {
			for _, name := range g.types {
				if wire.Type(name).Kind() == kind {
					names = append(names, "`"+name+"`")
				}
			}
		}
		fmt.Fprintf(&kinds, "| `%s` | %s |\n", kind, strings.Join(names, ", "))
	}
	escape.WriteString("| id | token |\n|---|---|\n")
	for _, id := range []string{"review", "2026-11-21_a", "review/2", "a.b c", "büro", strings.Repeat("x", 200)} {
		token := subjects.Escape(id)
		if len(id) > 100 {
			id = "200 times x"
		}
		fmt.Fprintf(&escape, "| `%s` | `%s` |\n", id, token)
	}
	generated(t, "../docs/subjects.md", map[string]string{"kinds": kinds.String(), "escape": escape.String()})
}

// TestSecurityDocument is [TestWireDocument] for docs/security.md.
func TestSecurityDocument(t *testing.T) {
	roles, err := os.ReadFile("../internal/access/testdata/roles.md")
	if err != nil {
		t.Fatal(err)
	}
	generated(t, "../docs/security.md", map[string]string{"roles": string(roles)})
}

// generated compares the generated parts of a document.
func generated(t *testing.T, file string, parts map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, part := range parts {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no part %s", file, name)
		}
		want = before + begin + "\n" + part + "\n" + end + after
	}
	golden(t, file, want)
}

func typesPart(s *source) string {
	var b strings.Builder
	for _, g := range s.groups {
		fmt.Fprintf(&b, "### %s\n\n", g.title)
		for _, name := range g.types {
			typ := wire.Type(name)
			info := wire.Describe(typ)
			awaited := ""
			if typ.Awaited() {
				awaited = ", awaited"
			}
			_, says, _ := strings.Cut(s.outside(s.doc[s.payload[name]]), " ")
			fmt.Fprintf(&b, "**`%s`** (%s%s) %s\n\n", name, typ.Kind(), awaited, escaped(says))
			if len(info.Fields)+len(info.Requires) > 0 {
				b.WriteString(table(s, s.payload[name], info.Fields, info.Requires) + "\n")
			}
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// table lists fields, those of objects behind the object's own.
func table(s *source, structName string, list []wire.FieldInfo, requires []string) string {
	var b strings.Builder
	b.WriteString("| field | kind | presence | meaning |\n|---|---|---|---|\n")
	for _, name := range requires {
		fmt.Fprintf(&b, "| `%s` | string | not empty | of the envelope |\n", name)
	}
	rows(&b, s, structName, "", list)
	return b.String()
}

func rows(b *strings.Builder, s *source, structName, path string, list []wire.FieldInfo) {
	for _, f := range list {
		meaning := s.comment(structName, f.Name)
		switch {
		case structName == "Event" && f.Name == "v":
			meaning = fmt.Sprintf("version of the wire, %d", wire.Version)
		case structName == "Event" && f.Name == "type":
			meaning = "see below"
		case len(f.Enum) > 0:
			meaning = strings.TrimSpace(strings.Join(f.Enum, ", ") + " " + meaning)
		}
		goName := s.wire[structName][f.Name]
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", path, f.Name, f.Kind, presence(s, structName, goName, f), escaped(meaning))
		inner := map[wire.FieldKind]string{wire.FieldObject: ".", wire.FieldObjects: "[].", wire.FieldObjectMap: ".*."}[f.Kind]
		rows(b, s, s.elem[structName][goName], path+f.Name+inner, f.Fields)
	}
}

// escaped makes text safe inside a table of markdown.
func escaped(text string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", ">", "&gt;").Replace(text)
}

func presence(s *source, structName, goName string, f wire.FieldInfo) string {
	switch {
	case f.NonEmpty:
		return "not empty"
	case f.Required:
		return "required"
	case s.pointer[structName][goName] && f.Kind != wire.FieldObject:
		return "optional, 0 counts"
	}
	return "optional"
}

var fence = regexp.MustCompile("(?s)```(\\w+)\n(.*?)```")

// TestWireExamples: the event at the top of docs/wire.md is the same in both
// notations.
func TestWireExamples(t *testing.T) {
	text, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		found[m[1]] = strings.TrimSpace(m[2])
	}
	e, err := wire.DecodeJSON([]byte(found["json"]))
	if err != nil {
		t.Fatal(err)
	}
	want, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := hex.DecodeString(strings.ReplaceAll(found["hex"], "\n", ""))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n got %x\nwant %x", err, got, want)
	}
}

// TestLinks: what the documents of the contract point at exists.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, file := range []string{"wire.md", "subjects.md", "benchmarks.md"} {
		text, err := os.ReadFile("../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat("../docs/" + m[1]); err != nil {
				t.Errorf("docs/%s: %v", file, err)
			}
		}
	}
}

// TestGroups: the list of types in the source is the list of types.
func TestGroups(t *testing.T) {
	var listed []wire.Type
	for _, g := range readSource(t).groups {
		for _, name := range g.types {
			listed = append(listed, wire.Type(name))
		}
	}
	slices.Sort(listed)
	if !slices.Equal(listed, wire.Types()) {
		t.Errorf("listed %v, known %v", listed, wire.Types())
	}
}
