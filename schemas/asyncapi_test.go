package schemas_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// document is a YAML or JSON document.
type document = map[string]any

func asyncAPI(t *testing.T) document {
	t.Helper()
	return load(t, "asyncapi.yaml")
}

func load(t *testing.T, file string) document {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if strings.HasSuffix(file, ".json") {
		err = json.Unmarshal(text, &d)
	} else {
		err = yaml.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return d
}

// addresses returns the address of each channel.
func addresses(t *testing.T, d document) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, c := range d["channels"].(document) {
		if address, ok := c.(document)["address"].(string); ok {
			found[name] = address
		}
	}
	return found
}

// TestSubjects: whatever subject or filter pkg/subjects builds is one of the
// document's channels, and the document has no channel besides.
func TestSubjects(t *testing.T) {
	d := asyncAPI(t)
	used := map[string]bool{}
	names := reflect.ValueOf(subjects.Default)
	count := 0
	for method, f := range names.Methods() {
		built, ok := call(f)
		if !ok || !strings.HasPrefix(built, subjects.DefaultPrefix+".") {
			continue
		}
		count++
		matched := false
		for channel, address := range addresses(t, d) {
			if matches(built, address) {
				matched, used[channel] = true, true
			}
		}
		if !matched {
			t.Errorf("%s builds %s, which no channel has", method.Name, built)
		}
	}
	if count < 10 {
		t.Errorf("pkg/subjects builds %d subjects", count)
	}
	for channel, address := range addresses(t, d) {
		if !used[channel] && !strings.HasPrefix(address, "$KV.") {
			t.Errorf("nothing builds channel %s, %s", channel, address)
		}
	}
}

// call calls a method that takes strings and returns one.
func call(f reflect.Value) (string, bool) {
	t := f.Type()
	if t.NumOut() != 1 || t.Out(0).Kind() != reflect.String {
		return "", false
	}
	var args []reflect.Value
	for in := range t.Ins() {
		if in.Kind() != reflect.String {
			return "", false
		}
		args = append(args, reflect.ValueOf("ANY"))
	}
	return f.Call(args)[0].String(), true
}

// matches reports whether a subject or a filter may mean an address.
func matches(subject, address string) bool {
	a, b := strings.Split(subject, "."), strings.Split(address, ".")
	for i := range a {
		switch {
		case a[i] == ">":
			return i < len(b)
		case i >= len(b):
			return false
		case b[i][0] == '{' && (a[i] == "*" || a[i] == "ANY"):
		case a[i] == "ANY" && b[i-1] == "api": // verbs have a channel each
		case a[i] != b[i]:
			return false
		}
	}
	return len(a) == len(b)
}

// TestVerbs: every verb of wake.api has a channel and an operation that
// replies.
func TestVerbs(t *testing.T) {
	d := asyncAPI(t)
	operations := map[string]document{}
	for _, op := range d["operations"].(document) {
		ref := op.(document)["channel"].(document)["$ref"].(string)
		operations[strings.TrimPrefix(ref, "#/channels/")] = op.(document)
	}
	byAddress := map[string]string{}
	for channel, address := range addresses(t, d) {
		byAddress[address] = channel
		if operations[channel] == nil {
			t.Errorf("channel %s has no operation", channel)
		}
	}
	for _, verb := range readSource(t).verbs {
		channel, ok := byAddress[subjects.Default.API(verb)]
		if !ok {
			t.Errorf("%s has no channel", verb)
		} else if operations[channel]["reply"] == nil {
			t.Errorf("%s has no reply", verb)
		}
	}
}

// TestReferences: every $ref leads somewhere, every parameter of an address is
// described, and the kinds are those of the wire.
func TestReferences(t *testing.T) {
	d := asyncAPI(t)
	count := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case document:
			if ref, ok := v["$ref"].(string); ok {
				count++
				if err := resolve(t, d, ref); err != nil {
					t.Error(err)
				}
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(d)
	if count < 50 {
		t.Errorf("%d references", count)
	}
	for name, c := range d["channels"].(document) {
		channel := c.(document)
		address, _ := channel["address"].(string)
		parameters, _ := channel["parameters"].(document)
		if strings.Count(address, "{") != len(parameters) {
			t.Errorf("%s: %s has %d parameters", name, address, len(parameters))
		}
		for parameter := range parameters {
			if !strings.Contains(address, "{"+parameter+"}") {
				t.Errorf("%s: %s lacks %s", name, address, parameter)
			}
		}
		if messages, _ := channel["messages"].(document); len(messages) == 0 {
			t.Errorf("%s has no messages", name)
		}
	}
	kinds := d["channels"].(document)["events"].(document)["parameters"].(document)["kind"].(document)["enum"]
	if fmt.Sprint(kinds) != fmt.Sprint(wire.Kinds) {
		t.Errorf("kinds %v, the wire has %v", kinds, wire.Kinds)
	}
}

func resolve(t *testing.T, d document, ref string) error {
	t.Helper()
	file, pointer, _ := strings.Cut(ref, "#")
	if file != "" {
		d = load(t, file)
	}
	var v any = d
	for name := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if name == "" {
			continue
		}
		m, ok := v.(document)
		if v, ok = m[name], ok && m[name] != nil; !ok {
			return fmt.Errorf("%s: there is no %s", ref, name)
		}
	}
	return nil
}

// TestNames: the streams, buckets and keys of pkg/subjects are in
// docs/subjects.md.
func TestNames(t *testing.T) {
	text, err := os.ReadFile("../docs/subjects.md")
	if err != nil {
		t.Fatal(err)
	}
	for method, f := range reflect.ValueOf(subjects.Default).Methods() {
		name, ok := call(f)
		if !ok || method.Type.NumIn() > 1 || method.Name == "Prefix" || strings.Contains(name, "*") {
			continue
		}
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/subjects.md lacks %s (%s)", name, method.Name)
		}
	}
	for _, address := range addresses(t, asyncAPI(t)) {
		subject := strings.NewReplacer("{", "<", "}", ">").Replace(address)
		if !strings.HasPrefix(subject, "$KV.") && !strings.HasPrefix(subject, "wake.api.") && !strings.Contains(string(text), "`"+subject+"`") {
			t.Errorf("docs/subjects.md lacks %s", subject)
		}
	}
	for _, name := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/subjects.md lacks the consumer %s", name)
		}
	}
}
