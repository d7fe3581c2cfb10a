// Package schemas_test writes the JSON Schemas of this folder from the Go types
// of pkg/wire, and checks them.
//
//	go test ./schemas -update
package schemas_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"code.wake.dev/wake/pkg/wire"
)

//go:generate go test . -update

var update = flag.Bool("update", false, "rewrite the generated schemas and tables")

const dialect = "https://json-schema.org/draft/2020-12/schema"

// object is a JSON object whose keys are written in alphabetical order.
type object = map[string]any

// requests are the structs of commands, work, poison and wake.api.
var requests = []any{
	wire.RunRequest{},
	wire.CommandRequest{},
	wire.IngestRequest{},
	wire.IngestResponse{},
	wire.IngestPiece{},
	wire.IngestProgress{},
	wire.CommandResponse{},
	wire.StartResponse{},
	wire.NodeOffer{},
	wire.Poison{},
	wire.CommandEnvelope{},
	wire.ResponseEnvelope{},
	wire.ErrorResponse{},
	wire.APIError{},
	wire.Lag{},
	wire.LogRequest{},
	wire.LogResponse{},
	wire.LogLine{},
	wire.LogSummary{},
	wire.StatusRequest{},
	wire.StatusResponse{},
	wire.AgentStatus{},
	wire.ApprovalsRequest{},
	wire.ApprovalsResponse{},
	wire.Approval{},
	wire.AskQuestion{},
	wire.AskOption{},
	wire.TopRequest{},
	wire.TopResponse{},
	wire.TopRun{},
	wire.FleetRequest{},
	wire.FleetResponse{},
	wire.TimelineRequest{},
	wire.TimelineResponse{},
	wire.TimelineLane{},
	wire.TimelineMark{},
	wire.AlertsRequest{},
	wire.AlertsResponse{},
	wire.BookmarksRequest{},
	wire.BookmarksResponse{},
	wire.ForkPoint{},
	wire.DiffRequest{},
	wire.DiffResponse{},
	wire.DiffRun{},
	wire.DiffCommon{},
	wire.DiffParting{},
	wire.DiffStep{},
	wire.DiffPair{},
	wire.DiffValue{},
	wire.DiffNode{},
	wire.DiffNodeRun{},
	wire.DiffTool{},
	wire.WorkspaceRequest{},
	wire.WorkspaceResponse{},
	wire.FolderFile{},
	wire.FolderChange{},
	wire.RunsRequest{},
	wire.RunsResponse{},
	wire.RunInfo{},
	wire.SearchRequest{},
	wire.SearchResponse{},
	wire.SearchHit{},
	wire.Span{},
	wire.StatsRequest{},
	wire.StatsResponse{},
	wire.RunStats{},
	wire.SpendStats{},
	wire.ToolStats{},
	wire.BudgetsRequest{},
	wire.BudgetsResponse{},
	wire.SharedBudget{},
	wire.EventsRequest{},
	wire.EventsResponse{},
	wire.StoredEvent{},
	wire.DeleteRequest{},
	wire.DeleteResponse{},
	wire.StateRequest{},
	wire.StateResponse{},
	wire.SnapshotRequest{},
	wire.SnapshotResponse{},
	wire.SinkRequest{},
	wire.SinkResponse{},
	wire.FeedRequest{},
	wire.FeedResponse{},
	wire.LastRequest{},
	wire.LastResponse{},
	wire.BoundsRequest{},
	wire.BoundsResponse{},
	wire.ValueRequest{},
	wire.ValueResponse{},
	wire.BlobRequest{},
	wire.SessionRequest{},
	wire.PackRequest{},
	wire.PieceResponse{},
	wire.SinksRequest{},
	wire.SinksResponse{},
	wire.LettersRequest{},
	wire.LettersResponse{},
}

// schemas returns the files of this folder.
func schemas(t *testing.T) map[string]object {
	s := readSource(t)
	return map[string]object{
		"event.schema.json":    eventSchema(s),
		"state.schema.json":    documentSchema(s, "State", wire.State{}),
		"alert.schema.json":    documentSchema(s, "Alert", wire.Alert{}),
		"command.schema.json":  documentSchema(s, "Command", wire.Command{}),
		"requests.schema.json": requestsSchema(s),
	}
}

func head(file, title, description string) object {
	return object{"$schema": dialect, "$id": file, "title": title, "description": description}
}

// eventSchema describes what wake writes; what it reads besides is in
// docs/wire.md.
func eventSchema(s *source) object {
	schema := head("event.schema.json", "Event", "One event of the log, in its JSON form. Fields and types that aren't listed may occur.")
	defs := object{}
	var cases []any
	for _, typ := range wire.Types() {
		info := wire.Describe(typ)
		def := recordSchema(s, s.payload[string(typ)], info.Fields)
		required := def["required"]
		delete(def, "required")
		if required != nil { // a field that was moved to a blob is absent
			def["if"] = object{"properties": object{"blobs": false}}
			def["then"] = object{"required": required}
		}
		for _, name := range info.Requires {
			def["properties"].(object)[name] = object{"minLength": 1}
			def["required"] = info.Requires
		}
		def["description"] = s.outside(s.doc[s.payload[string(typ)]])
		defs[string(typ)] = def
		cases = append(cases, object{
			"if":   object{"properties": object{"type": object{"const": typ}}},
			"then": object{"$ref": "#/$defs/" + string(typ)},
		})
	}
	envelope := recordSchema(s, "Event", wire.DescribeEnvelope())
	envelope["properties"].(object)["v"] = object{"const": wire.Version, "description": "the version of the wire"}
	envelope["properties"].(object)["type"] = object{"type": "string", "minLength": 1, "description": "what the event says"}
	maps.Copy(schema, envelope)
	schema["allOf"] = cases
	schema["$defs"] = defs
	return schema
}

// recordSchema is the schema of a record, from its description.
func recordSchema(s *source, structName string, list []wire.FieldInfo) object {
	properties := object{}
	var required []string
	for _, f := range list {
		p := fieldSchema(s, structName, f)
		if comment := s.comment(structName, f.Name); comment != "" {
			p["description"] = comment
		}
		properties[f.Name] = p
		if f.Required {
			required = append(required, f.Name)
		}
	}
	schema := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema
}

func fieldSchema(s *source, structName string, f wire.FieldInfo) object {
	inner := func() object { return recordSchema(s, s.elem[structName][s.wire[structName][f.Name]], f.Fields) }
	switch f.Kind {
	case wire.FieldString:
		p := object{"type": "string"}
		if structName == "Blob" && f.Name == "sha256" {
			p["pattern"] = "^[0-9a-f]{64}$"
		}
		if len(f.Enum) > 0 {
			p["enum"] = f.Enum
		} else if f.NonEmpty {
			p["minLength"] = 1
		}
		return p
	case wire.FieldInteger:
		if structName == "Blob" {
			return object{"type": "integer", "minimum": 0}
		}
		return object{"type": "integer"}
	case wire.FieldUnsigned:
		if f.NonEmpty {
			return object{"type": "integer", "minimum": 1}
		}
		return object{"type": "integer", "minimum": 0}
	case wire.FieldNumber:
		return object{"type": "number"}
	case wire.FieldBoolean:
		return object{"type": "boolean"}
	case wire.FieldAny:
		return object{}
	case wire.FieldStrings:
		return object{"type": "array", "items": object{"type": "string"}}
	case wire.FieldStringMap:
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	case wire.FieldObject:
		return inner()
	case wire.FieldObjects:
		return object{"type": "array", "items": inner()}
	case wire.FieldObjectMap:
		return object{"type": "object", "additionalProperties": inner()}
	}
	panic(f.Kind)
}

// documentSchema describes a plain struct. The structs inside are in $defs.
func documentSchema(s *source, name string, v any) object {
	schema := head(strings.ToLower(name)+".schema.json", name, s.doc[name])
	defs := object{}
	maps.Copy(schema, structSchema(s, reflect.TypeOf(v), defs))
	schema["description"] = s.doc[name]
	if len(defs) > 0 {
		schema["$defs"] = defs
	}
	return schema
}

func requestsSchema(s *source) object {
	schema := head("requests.schema.json", "Requests", "What the queues, the dead letters and wake.api take and answer: each of $defs by its name.")
	defs := object{}
	for _, v := range requests {
		typeSchema(s, reflect.TypeOf(v), defs)
	}
	schema["$defs"] = defs
	return schema
}

func structSchema(s *source, t reflect.Type, defs object) object {
	properties := object{}
	required := []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			continue // its fields are visible themselves
		}
		owner := t
		if len(f.Index) > 1 {
			owner = t.FieldByIndex(f.Index[:len(f.Index)-1]).Type
		}
		p := typeSchema(s, f.Type, defs)
		if comment := s.fields[owner.Name()][f.Name]; comment != "" {
			p["description"] = comment
		}
		properties[name] = p
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	schema := object{"type": "object", "properties": properties}
	if doc := s.doc[t.Name()]; doc != "" {
		schema["description"] = doc
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema
}

// open lists the string types that may get new values in any version.
var open = []string{"Type", "ErrorCode"}

// typeSchema is the schema of a Go type as wire.Marshal encodes it.
func typeSchema(s *source, t reflect.Type, defs object) object {
	switch t {
	case reflect.TypeFor[wire.Raw]():
		return object{}
	case reflect.TypeFor[wire.Ago]():
		return object{"type": []string{"integer", "string"}, "minimum": 0}
	case reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(s, t.Elem(), defs)
	case reflect.Struct:
		if defs[t.Name()] == nil {
			defs[t.Name()] = object{} // before the fields, which may refer to it
			defs[t.Name()] = structSchema(s, t, defs)
		}
		return object{"$ref": "#/$defs/" + t.Name()}
	case reflect.Slice:
		return object{"type": "array", "items": typeSchema(s, t.Elem(), defs)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": typeSchema(s, t.Elem(), defs)}
	case reflect.String:
		p := object{"type": "string"}
		if values := s.values[t.Name()]; len(values) > 0 && t.PkgPath() != "" && !slices.Contains(open, t.Name()) {
			p["enum"] = values
		}
		return p
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	default:
		panic(t)
	}
}

// TestSchemas fails if a file isn't what the Go types yield.
func TestSchemas(t *testing.T) {
	for file, schema := range schemas(t) {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(schema); err != nil {
			t.Fatal(err)
		}
		golden(t, file, want.String())
	}
}

// golden compares a generated file with what is stored.
func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s is stale; run go test ./schemas -update (-stored +generated):\n%s", file, diff)
	}
}

// compile returns a validator for a stored schema or a part of it. Compiling
// checks the schema itself against its dialect.
func compile(t *testing.T, ref string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(ref)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// compileOfType returns a validator for the schema of events without what it says of other types, each of which takes its time.
func compileOfType(t *testing.T, typ any) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("event.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	schema := v.(object)
	schema["allOf"] = slices.DeleteFunc(schema["allOf"].([]any), func(rule any) bool {
		of := rule.(object)["if"].(object)["properties"].(object)["type"].(object)
		return of["const"] != typ
	})
	if len(schema["allOf"].([]any)) != 1 {
		t.Fatalf("the schema has no rule for %s alone", typ)
	}
	for _, other := range wire.Types() {
		if string(other) != typ {
			delete(schema["$defs"].(object), string(other))
		}
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("one.json", schema); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("one.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// accepts reports what a validator says to a JSON text.
func accepts(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestVectorsAreValid holds every vector against the schema, whole and with
// each of its fields taken away or spoilt: the schema and the decoder agree.
func TestVectorsAreValid(t *testing.T) {
	schema := compile(t, "event.schema.json")
	files, err := filepath.Glob("../pkg/wire/testdata/v1/*.json")
	if err != nil || len(files) < 2*len(wire.Types()) {
		t.Fatalf("%d vectors, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := accepts(t, schema, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		var event object
		if err := json.Unmarshal(text, &event); err != nil {
			t.Fatal(err)
		}
		ofType := compileOfType(t, event["type"])
		for name := range event {
			spoilt := ofType
			if name == "type" {
				spoilt = schema
			}
			without := maps.Clone(event)
			delete(without, name)
			agree(t, spoilt, without, file+" without "+name)
			if strings.HasSuffix(file, ".least.json") {
				continue // full has its fields too
			}
			for _, bad := range []any{"bogus", 0, -1, 0.5, true, []any{1}, object{"a": 1}} {
				other := maps.Clone(event)
				other[name] = bad
				agree(t, spoilt, other, file+" with another "+name)
			}
		}
	}
}

// agree fails unless the schema and the decoder both take the event or both
// refuse it. With blobs, the schema may take more.
func agree(t *testing.T, schema *jsonschema.Schema, event object, what string) {
	t.Helper()
	text, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	_, decoded := wire.DecodeJSON(text)
	if event["blobs"] != nil && decoded != nil {
		return // which fields may then be missing is more than the schema says
	}
	if valid := accepts(t, schema, text); (valid == nil) != (decoded == nil) {
		t.Errorf("%s: the schema says %v, the decoder %v: %s", what, valid, decoded, text)
	}
}

// TestMovedFields: an event whose field is in the object store is valid.
func TestMovedFields(t *testing.T) {
	schema := compile(t, "event.schema.json")
	e := &wire.Event{
		RunID: "r", NodeID: "n", Seq: 1, Epoch: 1,
		Payload: &wire.AgentText{Content: strings.Repeat("x", 5000)},
	}
	b, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	small, _, err := wire.Externalize(b, 1000)
	if err != nil {
		t.Fatal(err)
	}
	text, err := wire.AppendJSON(nil, small)
	if err != nil {
		t.Fatal(err)
	}
	if err := accepts(t, schema, text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

// TestDocumentsAreValid: full and empty structs are what their schemas say.
func TestDocumentsAreValid(t *testing.T) {
	s := readSource(t)
	documents := map[string]any{
		"state.schema.json": wire.State{}, "alert.schema.json": wire.Alert{}, "command.schema.json": wire.Command{},
	}
	for _, v := range requests {
		documents["requests.schema.json#/$defs/"+reflect.TypeOf(v).Name()] = v
	}
	for ref, v := range documents {
		schema := compile(t, ref)
		full := reflect.New(reflect.TypeOf(v)).Elem()
		fill(s, full)
		text := asJSON(t, full.Interface())
		if err := accepts(t, schema, text); err != nil {
			t.Errorf("%s: %v: %s", ref, err, text)
		}
		var m object
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		empty := asJSON(t, v)
		for name := range m {
			required := bytes.Contains(empty, []byte(`"`+name+`":`)) // what is always written
			without := maps.Clone(m)
			delete(without, name)
			if err := accepts(t, schema, asJSON(t, without)); (err == nil) == required {
				t.Errorf("%s without %s: %v", ref, name, err)
			}
		}
	}
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	text, err := raw.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fill sets every field of a struct.
func fill(s *source, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(s, f)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(s, v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(wire.RawString("x"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(s, v.Index(0))
	case reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem()
		fill(s, item)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), item)
	case reflect.String:
		v.SetString(append(slices.Clone(s.values[v.Type().Name()]), "x")[0])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Uint64:
		v.SetUint(7)
	default:
		v.SetInt(7)
	}
}

// TestEveryStructHasASchema fails if pkg/wire has a struct with json tags that
// no schema mentions.
func TestEveryStructHasASchema(t *testing.T) {
	var all strings.Builder
	for file := range schemas(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for name := range readSource(t).tagged {
		if !strings.Contains(all.String(), `"`+name+`": {`) && !strings.Contains(all.String(), `"title": "`+name+`"`) {
			t.Errorf("%s is in no schema", name)
		}
	}
}
