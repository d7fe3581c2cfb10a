// Package schema holds values against JSON Schemas: answers of agents and people, and inputs of flows. A schema is of draft
// 2020-12, or of draft-07 if it says so, and refers to nothing but itself. Neither a schema nor a value, however hostile, has
// the library do what doesn't end.
package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"code.wake.dev/wake/pkg/wire"
)

// Check reports what is wrong with a schema. An absent one is none, which is fine.
func Check(schema wire.Raw) error {
	_, err := compileSchema(schema)
	return err
}

// Validate reports how a value differs from its schema, in about [maxFault] bytes, or what is wrong with that. Any value is what
// an absent schema asks for.
func Validate(value, schema wire.Raw) error {
	compiled, err := compileSchema(schema)
	if err != nil || compiled == nil {
		return err
	}
	document, err := wire.AppendJSON(nil, value)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		return err
	}
	if err := compiled.Validate(v); err != nil {
		fault := err.Error()
		if len(fault) > maxFault {
			fault = strings.ToValidUTF8(fault[:maxFault], "") + "…"
		}
		return fmt.Errorf("not what its schema asks for: %s", fault)
	}
	return nil
}

// maxFault bounds what is told of a value that doesn't fit, in bytes.
const maxFault = 1000

func compileSchema(schema wire.Raw) (*jsonschema.Resolved, error) {
	if len(schema) == 0 {
		return nil, nil
	}
	document, err := wire.AppendJSON(nil, schema)
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(document, &s); err != nil {
		return nil, err
	}
	switch strings.TrimSuffix(s.Schema, "#") {
	case "", "https://json-schema.org/draft/2020-12/schema":
		s.Schema = "" // the default
	case "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft-07/schema":
		s.Schema = "http://json-schema.org/draft-07/schema#"
	default:
		return nil, fmt.Errorf("$schema is %s; draft 2020-12 and draft-07 are known", s.Schema)
	}
	// What is checked is what the library has understood, which reads names as encoding/json does.
	understood, err := json.Marshal(&s)
	if err != nil {
		return nil, err
	}
	if err := checkSchema(understood, s.Schema != ""); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
}
