package main

import (
	"github.com/spf13/cobra"

	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) sendCommand() *cobra.Command {
	c := wire.Command{Type: "send"}
	cmd := a.messageVerb(&c, "sent to")
	cmd.Use = "send RUN MSG"
	cmd.Short = "Give a message to an agent of a run"
	cmd.Long = `Give a message to an agent of a run. A running agent reads it in the same turn;
an interrupted one when it goes on. Where several agents are at work, name one with
--node. MSG is a text, or - for stdin.`
	return cmd
}

func (a orderVerbs) steerCommand() *cobra.Command {
	c := wire.Command{Type: "steer"}
	cmd := a.messageVerb(&c, "steered")
	cmd.Use = "steer RUN MSG"
	cmd.Short = "Answer what an agent of a run has asked its supervisor"
	cmd.Long = `Answer what an agent of a run has asked its supervisor: a message to the agent
that answers its oldest open question. MSG is a text, or - for stdin.`
	return cmd
}

// messageVerb is a verb that sends a message to an agent.
func (a orderVerbs) messageVerb(c *wire.Command, done string) *cobra.Command {
	cmd := &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if c.Message, err = a.readText(args[1]); err != nil {
				return err
			}
			return a.sendOrder(cmd.Context(), args[0], *c, done)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.NodeID, "node", "", "only to the agent of this `node`")
	flags.StringVar(&c.ExecID, "exec", "", "only to this `execution` of a node")
	flags.BoolVar(&c.Interrupt, "interrupt", false, "the agent stops what it is doing first")
	completeFlag(cmd, "node", a.completeNode)
	return cmd
}
