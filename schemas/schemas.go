// Package schemas has the descriptions of what wake writes, takes and answers.
package schemas

import "embed"

// Files are openapi.yaml, of the console, asyncapi.yaml, of subjects, and the JSON Schemas that both name.
//
//go:embed *.yaml *.json
var Files embed.FS
