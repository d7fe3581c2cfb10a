package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func raw(t testing.TB, s string) wire.Raw {
	t.Helper()
	r, err := wire.RawFromJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSchema takes schemas and answers; want is part of the error, "" if there is none.
func TestSchema(t *testing.T) {
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"d%d":{"type":"integer"}}}`, n)
		return b.String()
	}
	tree := `{"$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"}},"additionalProperties":false}},"$ref":"#/$defs/node"}`
	for name, test := range map[string]struct{ schema, answer, want string }{
		"fits":              {`{"type":"object","required":["n"],"properties":{"n":{"type":"integer","minimum":1}}}`, `{"n":1}`, ""},
		"a whole float":     {`{"type":"integer"}`, `1.0`, ""},
		"another type":      {`{"type":"object","properties":{"n":{"type":"integer"}}}`, `{"n":"1"}`, `/properties/n: type: 1 has type "string", want "integer"`},
		"missing":           {`{"required":["n"]}`, `{}`, `required: missing properties: ["n"]`},
		"another constant":  {`{"const":null}`, `0`, "const"},
		"anything":          {`true`, `[1]`, ""},
		"nothing":           {`{"properties":{"n":false}}`, `{"n":1}`, "properties/n"},
		"a tree":            {tree, `{"next":{"next":{}}}`, ""},
		"a tree that isn't": {tree, `{"next":{"next":1}}`, "has type"},
		"a name of a path":  {`{"$defs":{"a/b~c d":{"type":"null"}},"$ref":"#/$defs/a~1b~0c%20d"}`, `null`, ""},
		"draft-07":          {`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"null"}],"additionalItems":false}`, `[null,1]`, "not what"},
		"draft 2020-12":     {`{"$schema":"https://json-schema.org/draft/2020-12/schema","prefixItems":[{"type":"null"}]}`, `[null,1]`, ""},
		"its own id":        {`{"$id":"https://example.com/s","$ref":"#/$defs/n","$defs":{"n":{"type":"number"}}}`, `1`, ""},
		"a type as value":   {`{"default":{"type":"circle"},"enum":[{"type":"circle","$ref":"x"}]}`, `{"type":"circle","$ref":"x"}`, ""},
		"keywords as names": {`{"properties":{"type":{"type":"string"},"not":{"type":"null"},"$ref":{"type":"string"}}}`, `{"type":"x","not":null,"$ref":"y"}`, ""},
		"a long answer":     {`{"type":"integer"}`, `"` + strings.Repeat("ä", 5000) + `"`, "…"},
		"64 rules":          {chain(62), `1`, ""},

		"draft-04":            {`{"$schema":"http://json-schema.org/draft-04/schema#"}`, `1`, "draft 2020-12 and draft-07 are known"},
		"no type":             {`{"properties":{"n":{"type":["string","text"]}}}`, `{}`, `type at "/properties/n" is text`},
		"no number":           {`{"multipleOf":0}`, `1`, "whole number above 0"},
		"a fraction":          {`{"multipleOf":0.1}`, `0.3`, "whole number above 0"},
		"no pattern":          {`{"pattern":"("}`, `"a"`, "pattern"},
		"no list":             {`{"required":"n"}`, `{}`, "cannot unmarshal"},
		"a list of old":       {`{"items":[{"type":"null"}]}`, `[]`, "prefixItems"},
		"elsewhere":           {`{"$ref":"https://example.com/s"}`, `1`, "must be in the schema itself"},
		"nowhere":             {`{"$ref":"#/$defs/n"}`, `1`, "refers to no schema"},
		"no schema there":     {`{"properties":{"n":{}},"$ref":"#/properties"}`, `1`, "refers to no schema"},
		"two ids":             {`{"$defs":{"n":{"$id":"https://example.com/s"}}}`, `1`, "only the whole schema"},
		"a dynamic reference": {`{"$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}`, `1`, "use $ref"},
		"itself":              {`{"$ref":"#"}`, `1`, "without end"},
		"itself in capitals":  {`{"$REF":"#"}`, `1`, "without end"},
		"itself in a branch":  {`{"type":"object","properties":{"n":{"anyOf":[{"type":"null"},{"$ref":"#/properties/n"}]}}}`, `{}`, "without end"},
		"each other":          {`{"$defs":{"a":{"not":{"$ref":"#/$defs/b"}},"b":{"if":{"$ref":"#/$defs/a"}}}}`, `1`, "without end"},
		"if it is there":      {`{"dependentSchemas":{"n":{"$ref":"#"}}}`, `{"n":1}`, "without end"},
		"65 rules":            {chain(63), `1`, "more than 64"},
		"very many rules":     {chain(2000), `1`, "more than 64"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Validate(raw(t, test.answer), raw(t, test.schema))
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
			if err != nil && len(err.Error()) > maxFault+100 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// FuzzSchema ends, whatever the schema and the answer are.
func FuzzSchema(f *testing.F) {
	for _, schema := range []string{
		`{"$ref":"#"}`, `{"properties":{"a":{"$ref":"#"}},"items":{"$ref":"#/properties/a"}}`, `{"allOf":[{"not":false},{"type":["null","array"]}]}`,
		`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"],"b":{"$ref":"#/definitions/c"}},"definitions":{"c":true}}`,
		`{"patternProperties":{"^a":{"if":{"const":1},"then":{"multipleOf":2},"else":{"$ref":"#/patternProperties/^a"}}}}`,
	} {
		f.Add([]byte(schema), []byte(`{"a":{"a":[1,null]},"b":1}`))
	}
	f.Fuzz(func(_ *testing.T, schema, answer []byte) {
		s, err := wire.RawFromJSON(schema)
		if err != nil || !json.Valid(answer) {
			return
		}
		a, err := wire.RawFromJSON(answer)
		if err != nil {
			return
		}
		_ = Validate(a, s)
	})
}
