package flow

import (
	"regexp"
	"strings"
)

// SecretRef is a reference to a secret, by the name under which a runner has it. It
// counts in the env of agents and commands, and in env and headers of MCP servers.
var SecretRef = regexp.MustCompile(`\$\{secret\.([A-Za-z_][A-Za-z0-9_]*)\}`)

const anyRef = "${secret." // what is meant as a reference

// secretRefs refuses references in an object of texts that would be left as they are.
func (r *reader) secretRefs(t *tree, path string) {
	if t == nil {
		return
	}
	for _, f := range t.fields {
		s, _ := f.tree.asText()
		switch {
		case !strings.Contains(s, anyRef):
		case strings.Contains(SecretRef.ReplaceAllString(s, ""), anyRef):
			r.addProblem(f.tree.at, path+"."+f.name, "is no reference to a secret: write ${secret.NAME}, with letters, digits and _ in its name")
		case hasBinding(s):
			r.addProblem(f.tree.at, path+"."+f.name, "a secret can't stand beside a binding: give each a text of its own")
		}
	}
}

// noSecretRef refuses a reference where none counts: it would be passed on as it is.
func (r *reader) noSecretRef(t *tree, path string) {
	if s, _ := t.asText(); strings.Contains(s, anyRef) {
		r.addProblem(t.at, path, "a secret can't be put into a command line: name it in env and use \"$NAME\"")
	}
}

func hasBinding(s string) bool { return strings.Contains(s, "{{") }
