package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// redactFlag adds the flag of processes that write events of agents.
func (a *app) redactFlag(flags *pflag.FlagSet) {
	flags.StringVar(&a.redact, "redact", string(redact.Known),
		"which `secrets` are taken out of events: "+redactLevels()+"; known are this process's own and well-known forms, all what is assigned to names like password, too")
}

// flowSecretsFlag adds the flag of verbs that begin runs of a flow.
func (a *app) flowSecretsFlag(flags *pflag.FlagSet) {
	flags.StringVar(&a.redact, "redact", string(redact.Known), "which `secrets` a flow may not have: "+redactLevels())
}

// secretFlag adds the flag of processes that start agents.
func (a *app) secretFlag(flags *pflag.FlagSet) {
	flags.StringSliceVar(&a.given, "secret", nil, "`NAME[=FILE]` of secrets, of the environment or in files, that flows may refer to as ${secret.NAME}")
}

// completeRedact completes the flag of a command.
func completeRedact(cmd *cobra.Command) {
	if cmd.Flags().Lookup("redact") != nil {
		completeFlag(cmd, "redact", cobra.FixedCompletions(strings.Split(redactLevels(), ", "), cobra.ShellCompDirectiveNoFileComp))
	}
}

func redactLevels() string {
	var levels []string
	for _, l := range redact.Levels() {
		levels = append(levels, string(l))
	}
	return strings.Join(levels, ", ")
}

// secretSet returns what is taken out of events that this process writes.
func (a *app) secretSet() (*redact.Set, error) {
	values := redact.Environ(os.Environ())
	given, err := a.givenSecrets()
	if err != nil {
		return nil, err
	}
	for name, value := range given {
		if len(value) < redact.MinValue && redact.Level(a.redact) != redact.Off {
			return nil, usageError("make it longer", "--secret %s: a value of less than %d bytes can't be told from other words, so events would have it", name, redact.MinValue)
		}
		values = append(values, value)
	}
	s, err := redact.New(redact.Level(a.redact), values)
	if err != nil {
		return nil, usageError("the levels are "+redactLevels(), "--redact: there is no level %q", a.redact)
	}
	return s, nil
}

// givenSecrets returns the secrets of --secret by their names: variables of the
// environment, and contents of files less the line feed at their end.
func (a *app) givenSecrets() (map[string]string, error) {
	given := map[string]string{}
	for _, item := range a.given {
		name, file, isFile := strings.Cut(item, "=")
		if !secretName().MatchString(name) {
			return nil, usageError("such as DEPLOY_TOKEN", "--secret: %q is no name", name)
		}
		value, found := os.LookupEnv(name)
		if isFile {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, usageError("", "--secret %s: %w", name, err)
			}
			value, found = strings.TrimRight(string(content), "\r\n"), true
		}
		if isFile && value == "" {
			return nil, usageError("", "--secret %s: %s is empty", name, file)
		}
		if !found || value == "" {
			return nil, usageError("set it, or give --secret "+name+"=FILE", "--secret %s: the environment doesn't have it", name)
		}
		given[name] = value
	}
	return given, nil
}

var secretName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// checkRequest refuses a flow with a secret in it before it goes anywhere, and warns of
// secrets in what the run is given.
func (a *app) checkRequest(r wire.RunRequest) error {
	s, err := a.secretSet()
	if err != nil {
		return err
	}
	def, err := flow.FromRaw(r.Definition)
	if err != nil {
		return err
	}
	places, err := runner.Secrets(def, s.Where)
	if err != nil {
		return err
	}
	if len(places) > 0 {
		return usageError("start the runner with --secret NAME and write ${secret.NAME} in env; --redact off sends it all the same",
			"flow: what looks like a secret is in it, and would be stored or taken out (%s)", strings.Join(places, "; "))
	}
	for _, e := range flow.Start(def, r) {
		given, err := s.Where(e.Payload)
		if err != nil {
			return err
		}
		places = append(places, given...)
	}
	if len(places) > 0 {
		_, _ = fmt.Fprintf(a.errOut, "wake: what looks like a secret is in what the run is given (%s): runners record and use [redacted] in its place\n", strings.Join(places, "; "))
	}
	return nil
}
