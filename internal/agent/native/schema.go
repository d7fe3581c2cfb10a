package native

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"code.wake.dev/wake/pkg/wire"
)

// compileSchema returns a JSON Schema, nil if there is none. It is of draft 2020-12, or of draft-07
// if it says so, and refers to nothing but itself.
func compileSchema(schema wire.Raw) (*jsonschema.Resolved, error) {
	if len(schema) == 0 {
		return nil, nil
	}
	compiled, err := parseSchema(jsonOf(schema))
	if err != nil {
		return nil, fmt.Errorf("native: outputSchema: %w", err)
	}
	return compiled, nil
}

func parseSchema(document []byte) (*jsonschema.Resolved, error) {
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

// maxFault bounds what is told of an answer that doesn't fit, in bytes.
const maxFault = 1000

// validateValue reports how an answer differs from its schema. Not every API keeps to it.
func validateValue(answer, schema wire.Raw) error {
	compiled, err := compileSchema(schema)
	if err != nil || compiled == nil {
		return err
	}
	var value any
	if err := json.Unmarshal(jsonOf(answer), &value); err != nil {
		return err
	}
	if err := compiled.Validate(value); err != nil {
		fault := err.Error()
		if len(fault) > maxFault {
			fault = runeCut(fault[:maxFault], false) + "…"
		}
		return fmt.Errorf("the answer is not what its schema asks for: %s", fault)
	}
	return nil
}
