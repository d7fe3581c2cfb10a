package native

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"wake/pkg/wire"
)

// compileSchema returns a JSON Schema, nil if there is none. One that refers to files or
// addresses is refused.
func compileSchema(schema wire.Raw) (*jsonschema.Schema, error) {
	if len(schema) == 0 {
		return nil, nil
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(jsonOf(schema)))
	if err != nil {
		return nil, fmt.Errorf("native: outputSchema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(jsonschema.SchemeURLLoader{})
	if err := c.AddResource("urn:outputSchema", document); err != nil {
		return nil, fmt.Errorf("native: outputSchema: %w", err)
	}
	compiled, err := c.Compile("urn:outputSchema")
	if err != nil {
		return nil, fmt.Errorf("native: outputSchema: %w", err)
	}
	return compiled, nil
}

// fits reports how an answer differs from its schema. Not every API keeps to it.
func fits(answer, schema wire.Raw) error {
	compiled, err := compileSchema(schema)
	if err != nil || compiled == nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(jsonOf(answer)))
	if err != nil {
		return err
	}
	err = compiled.Validate(value)
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return fmt.Errorf("the answer is not what its schema asks for: %w", invalid)
	}
	return err
}
