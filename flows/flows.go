// Package flows holds the flows that come with wake, so that the demo runs from
// anywhere.
package flows

import "embed"

// FS holds demo.yaml and the recorded agents of demo.fixtures.
//
//go:embed demo.yaml demo.fixtures/*.json
var FS embed.FS
