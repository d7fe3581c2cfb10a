package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/seal"
)

func (a hostVerbs) authKeyCommand() *cobra.Command {
	var reading bool
	var use string
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "Make a key that encrypts what is stored of runs",
		Long: `Make a key that encrypts what is stored of runs, and put it into a file, which is made
if there is none. The first key of the file is the one for writing; the others are for
reading what they encrypted. Give the file to every process and verb by
--encryption-keys. Without it, what was encrypted is lost.

To change keys while everything runs, add one for --reading and give the file to all,
then make it the one for writing with --use and give the file to all again.

What is encrypted and what stays readable is in docs/security.md.`,
		Example: `wake auth key wake.keys
wake up --encryption-keys wake.keys
wake auth key wake.keys --reading
wake auth key wake.keys --use 1f0c9a3e
nats stream get WAKE_EVENTS 17 --translate 'wake decode --encryption-keys wake.keys'`,
		RunE: func(_ *cobra.Command, args []string) error {
			if reading && use != "" {
				return usageError("first --reading, then --use with the id that it told", "--use: it is for writing, and --reading makes one that isn't")
			}
			id, err := use, error(nil)
			if use != "" {
				err = seal.Use(args[0], use)
			} else {
				id, err = seal.Add(args[0], reading)
			}
			if err != nil {
				return err
			}
			what := "the one for writing"
			if reading {
				what = "one for reading"
			}
			return a.printAnswer(map[string]string{"id": id, "file": args[0]}, fmt.Sprintf("key %s is %s in %s", id, what, args[0]))
		},
	}
	cmd.Flags().BoolVar(&reading, "reading", false, "add the key behind the others: nothing is written under it yet")
	cmd.Flags().StringVar(&use, "use", "", "make no key; make the one of this `id` the one for writing")
	return cmd
}
