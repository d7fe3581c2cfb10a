package agent

import (
	"maps"
	"slices"
	"strings"
)

// withheldPrefixes are the beginnings of variables that agents and commands don't get
// from wake's own environment: wake's settings and secrets, those of the stores
// it uses, and what tells the program that it runs inside another agent. Options
// may set any of them.
func withheldPrefixes() []string {
	return []string{
		"WAKE_", "NATS_", "PGPASSWORD=", "PGPASSFILE=", "PGUSER=", "PGSERVICE",
		"CLAUDECODE=", "CLAUDE_CODE_ENTRYPOINT=", "CLAUDE_CODE_SSE_PORT=",
		"CLAUDE_CODE_SESSION", "CLAUDE_AGENT_SDK_VERSION=", "NODE_OPTIONS=",
	}
}

// Environment returns the environment of an agent or a command: wake's own less
// what is withheld, and the variables that the options add or replace.
func Environment(environ []string, add map[string]string) []string {
	hidden := withheldPrefixes()
	var out []string
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		if _, replaced := add[key]; replaced {
			continue
		}
		if !slices.ContainsFunc(hidden, func(prefix string) bool { return strings.HasPrefix(kv, prefix) }) {
			out = append(out, kv)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(add)) {
		out = append(out, key+"="+add[key])
	}
	return out
}

// CommandEnvironment returns the environment of commands that act for an agent, such as
// those of tools and hooks: what of wake's own holds no secret, and the variables that
// the options add or replace.
func CommandEnvironment(environ []string, add map[string]string) []string {
	inherited := []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"}
	given := map[string]string{}
	for _, kv := range environ {
		if key, value, _ := strings.Cut(kv, "="); slices.Contains(inherited, key) || strings.HasPrefix(key, "LC_") {
			given[key] = value
		}
	}
	maps.Copy(given, add)
	var env []string
	for _, key := range slices.Sorted(maps.Keys(given)) {
		env = append(env, key+"="+given[key])
	}
	return env
}
