package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"wake/internal/seal"
)

func (a *app) authKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "key FILE",
		Short: "Make a key that encrypts what events carry",
		Long: `Make a key that encrypts what events carry, and put it into a file, which is made if
there is none. The newest key is the one for writing; the others are for reading what
they encrypted. Give the file to every process by --encryption-keys, first to those
that only read, then to the runners. Whoever loses it loses what was encrypted.

What is encrypted and what stays readable is in docs/security.md.`,
		Example: `wake auth key wake.keys
wake up --encryption-keys wake.keys
nats stream get WAKE_EVENTS 17 --translate 'wake decode --encryption-keys wake.keys'`,
		Args: arguments,
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := seal.Add(args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"id": id, "file": args[0]})
			}
			_, err = fmt.Fprintf(a.out, "key %s is the one for writing in %s\n", id, args[0])
			return err
		},
	}
}
