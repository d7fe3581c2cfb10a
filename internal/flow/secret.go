package flow

import (
	"regexp"
	"strings"

	"code.wake.dev/wake/internal/document"
)

// SecretRef is a reference to a secret, by the name under which a runner has it. It
// counts in the env of agents and commands, and in env and headers of MCP servers.
var SecretRef = regexp.MustCompile(`\$\{secret\.([A-Za-z_][A-Za-z0-9_]*)\}`)

const anyRef = "${secret." // what is meant as a reference

// secretRefs refuses references in an object of texts that would be left as they are.
func (r *flowReader) secretRefs(t *document.Value, path string) {
	if t == nil {
		return
	}
	for _, f := range t.Fields {
		s, _ := f.Value.AsText()
		switch {
		case !strings.Contains(s, anyRef):
		case strings.Contains(SecretRef.ReplaceAllString(s, ""), anyRef):
			r.Add(f.Value.At, path+"."+f.Name, "is no reference to a secret: write ${secret.NAME}, with letters, digits and _ in its name")
		case hasBinding(s):
			r.Add(f.Value.At, path+"."+f.Name, "a secret can't stand beside a binding: give each a text of its own")
		}
	}
}

// noSecretRef refuses a reference where none counts: it would be passed on as it is.
func (r *flowReader) noSecretRef(t *document.Value, path string) {
	if s, _ := t.AsText(); strings.Contains(s, anyRef) {
		r.Add(t.At, path, "a secret can't be put into a command line: name it in env and use \"$NAME\"")
	}
}

func hasBinding(s string) bool { return strings.Contains(s, "{{") }
