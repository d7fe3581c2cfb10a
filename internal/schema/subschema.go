package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// subschema is a schema within a schema.
type subschema struct {
	same   []string // where those are that apply to the same value
	open   bool     // its height is being found
	height int      // how many apply to a value inside of each other, this one included; 0: not known yet
}

// subschemas are those of a schema, itself included, by JSON pointer.
type subschemas map[string]*subschema

// maxHeight bounds the height of a subschema: validation recurses that deep for each level of a value.
const maxHeight = 64

// checkSchema refuses what the library takes and then misunderstands, or recurses into without end.
func checkSchema(document []byte, old bool) error {
	var root any
	if err := json.Unmarshal(document, &root); err != nil {
		return err
	}
	s := subschemas{}
	if err := s.addSchema("", root, old); err != nil {
		return err
	}
	for at := range s {
		if _, err := s.measureHeight(at); err != nil {
			return err
		}
	}
	return nil
}

// addSchema adds the schema at a place, and those in it. What is no schema is passed over.
func (s subschemas) addSchema(at string, v any, old bool) error {
	schema, ok := v.(map[string]any)
	if _, isBool := v.(bool); !ok && !isBool {
		return nil
	}
	this := &subschema{}
	s[at] = this
	for name, v := range schema {
		if err := checkKeyword(at, name, v, old); err != nil {
			return err
		}
		place := at + "/" + name
		if to, ok := v.(string); ok && name == "$ref" {
			target, err := url.PathUnescape(strings.TrimPrefix(to, "#"))
			if err != nil {
				return fmt.Errorf("$ref at %q: %w", at, err)
			}
			this.same = append(this.same, target)
		}
		same := false
		switch name {
		case "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies":
			same = true
		case "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
			"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "contentSchema", "$defs", "definitions":
		default:
			continue
		}
		for step, inner := range innerSchemas(name, v) {
			if err := s.addSchema(place+step, inner, old); err != nil {
				return err
			}
			if same && s[place+step] != nil {
				this.same = append(this.same, place+step)
			}
		}
	}
	return nil
}

// innerSchemas returns the schemas of a keyword by the rest of their pointers.
func innerSchemas(name string, v any) map[string]any {
	inner := map[string]any{}
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			inner["/"+strconv.Itoa(i)] = item
		}
	case map[string]any:
		switch name {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
			escape := strings.NewReplacer("~", "~0", "/", "~1")
			for key, item := range v {
				inner["/"+escape.Replace(key)] = item
			}
			return inner
		}
		inner[""] = v
	case bool:
		inner[""] = v
	}
	return inner
}

// checkKeyword checks what the library doesn't.
func checkKeyword(at, name string, v any, old bool) error {
	text, isText := v.(string)
	switch name {
	case "$ref":
		if text != "#" && !strings.HasPrefix(text, "#/") {
			return fmt.Errorf("$ref at %q is %s; what it refers to must be in the schema itself: #/$defs/…", at, text)
		}
	case "$id":
		if at != "" {
			return fmt.Errorf("$id at %q: only the whole schema can have one", at)
		}
	case "$dynamicRef", "$recursiveRef":
		return fmt.Errorf("%s at %q isn't known; use $ref", name, at)
	case "items":
		if _, list := v.([]any); list && !old {
			return fmt.Errorf("items at %q is a list, which is called prefixItems in draft 2020-12", at)
		}
	case "multipleOf":
		// The library divides as floats: 0.3 would be no multiple of 0.1.
		if n, ok := v.(float64); !ok || n <= 0 || n != math.Trunc(n) {
			return fmt.Errorf("multipleOf at %q is %v; a whole number above 0 is needed", at, v)
		}
	case "type":
		types, _ := v.([]any)
		if isText {
			types = []any{text}
		}
		for _, t := range types {
			if !slices.Contains([]any{"null", "boolean", "object", "array", "number", "integer", "string"}, t) {
				return fmt.Errorf("type at %q is %v; null, boolean, object, array, number, integer and string are known", at, t)
			}
		}
	}
	return nil
}

// measureHeight returns the height of a subschema. A loop has none.
func (s subschemas) measureHeight(at string) (int, error) {
	this := s[at]
	switch {
	case this == nil:
		return 0, fmt.Errorf("$ref #%s refers to no schema", at)
	case this.open:
		return 0, fmt.Errorf("the schema at %q refers to itself without end", at)
	case this.height > 0:
		return this.height, nil
	}
	this.open = true
	height := 0
	for _, next := range this.same {
		h, err := s.measureHeight(next)
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	this.open, this.height = false, height+1
	if this.height > maxHeight {
		return 0, fmt.Errorf("more than %d schemas apply to one value inside of each other, at %q", maxHeight, at)
	}
	return this.height, nil
}
