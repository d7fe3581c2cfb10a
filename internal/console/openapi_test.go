package console_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/schemas"
)

// anyMap is a part of a document.
type anyMap = map[string]any

// The console serves its description, and each answer in JSON is what the description says.
func TestAnswersAreDescribed(t *testing.T) {
	w := newWorld(t)
	w.write("r", "hello")
	flow, _ := w.write("s", "world")
	logtest.Append(t, flow, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}})
	w.get("/runs/r", "hello")
	w.get("/runs/s", "paused")

	c := jsonschema.NewCompiler()
	load := func(name string) any {
		text := w.get("/schemas/"+name, "")
		if strings.HasSuffix(name, ".yaml") {
			b, err := yaml.YAMLToJSON([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err == nil {
			err = c.AddResource("file:///"+name, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	document := load("openapi.yaml").(anyMap)
	files, err := schemas.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "openapi.yaml" {
			load(f.Name())
		}
	}
	in := func(v any, path ...string) any {
		for _, name := range path {
			m, _ := v.(anyMap)
			v = m[name]
		}
		return v
	}
	component := func(v any, kind string) any {
		if ref, is := in(v, "$ref").(string); is {
			return in(document, "components", kind, ref[strings.LastIndexByte(ref, '/')+1:])
		}
		return v
	}
	var checked []string
	for path, methods := range in(document, "paths").(anyMap) {
		shared, _ := in(methods, "parameters").([]any)
		for method, op := range methods.(anyMap) {
			ref, _ := in(component(in(op, "responses", "200"), "responses"), "content", "application/json", "schema", "$ref").(string)
			if method == "parameters" || ref == "" {
				continue
			}
			own, _ := in(op, "parameters").([]any)
			at, query := path, url.Values{}
			for _, p := range slices.Concat(shared, own) {
				p = component(p, "parameters")
				name, _ := in(p, "name").(string)
				example, _ := in(p, "example").(string)
				switch in(p, "in") {
				case "path":
					at = strings.ReplaceAll(at, "{"+name+"}", example)
				case "query":
					if example != "" {
						query.Set(name, example)
					}
				}
			}
			body := ""
			if example := in(op, "requestBody", "content", "application/json", "example"); example != nil {
				b, err := json.Marshal(example)
				if err != nil {
					t.Fatal(err)
				}
				body = string(b)
			}
			if form, is := in(op, "requestBody", "content", "application/x-www-form-urlencoded", "example").(anyMap); is {
				fields := url.Values{}
				for name, value := range form {
					fields.Set(name, value.(string))
				}
				body = fields.Encode()
			}
			if len(query) > 0 {
				at += "?" + query.Encode()
			}
			status, text := w.ask(strings.ToUpper(method), at, body, nil)
			switch status {
			case http.StatusOK, http.StatusConflict:
				checked = append(checked, in(op, "operationId").(string))
			default: // nobody answers for the alerter here, and there is no snapshotter
				ref = "requests.schema.json#/$defs/ErrorResponse"
			}
			if strings.HasPrefix(ref, "#") {
				ref = "openapi.yaml" + ref
			}
			schema, err := c.Compile("file:///" + ref)
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text)))
			if err == nil {
				err = schema.Validate(v)
			}
			if err != nil {
				t.Errorf("%s %s is answered by %d and %.300s, not by %s: %v", method, at, status, text, ref, err)
			}
		}
	}
	slices.Sort(checked)
	for _, want := range []string{"alerts", "approvals", "bookmarks", "compareRuns", "diff", "drawTimeline", "events", "fleet", "forkRun", "giveCommand", "log", "readAlerts", "readBookmarks", "readEvent", "readState", "runs", "search", "shareRun", "state", "stats", "status", "timeline", "top"} {
		if !slices.Contains(checked, want) {
			t.Errorf("%s isn't answered; answered are %v", want, checked)
		}
	}
}
