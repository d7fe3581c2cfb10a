package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/pkg/wire"
)

func (a *app) logCommand() *cobra.Command {
	var q wire.LogRequest
	var since, class string
	var offset int64
	var limit int
	cmd := &cobra.Command{
		Use:   "log RUN",
		Short: "Print the log of a run: its last lines, or those that match",
		Long: `Print the log of a run: its last lines, or those that match. Filters apply in the
order node, type, since, grep; offset and limit count what is left.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			q.Run, q.Details, q.Type = args[0], true, wire.LineType(class)
			if q.Type != "" && !q.Type.Valid() {
				return usage("text, thinking, tool, error, system and user are known", "--type: %q is no type of line", class)
			}
			if cmd.Flags().Changed("offset") {
				q.Offset = &offset
			}
			q.Limit = &limit
			nc, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			page, err := api.Call[wire.LogResponse](cmd.Context(), nc, a.names, wire.VerbLog, q)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(page)
			}
			return a.printLog(page)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Node, "node", "", "only lines of this `node`")
	flags.StringVar(&class, "type", "", "only lines of this `type`: text, thinking, tool, error, system or user")
	flags.StringVar(&since, "since", "", "only lines of this last `time`, such as 90s, 5m or 2d")
	flags.StringVar(&q.Grep, "grep", "", "only lines that match this `pattern` (RE2), ignoring case")
	flags.Int64Var(&offset, "offset", 0, "begin with this `line` instead of showing the last ones")
	flags.IntVar(&limit, "limit", wire.DefaultLogLimit, "at most this `many` lines")
	return cmd
}

func (a *app) printLog(page wire.LogResponse) error {
	s := a.newScreen()
	for _, l := range page.Lines {
		s.line(l.Node, piece{at: time.UnixMilli(l.TS), class: l.Type, text: strings.TrimRight(l.Text, "\n")})
	}
	if s.err == nil && int64(page.ReturnedLines) < page.TotalLines {
		_, _ = fmt.Fprintf(a.errOut, "lines %d to %d of %d\n", page.Offset+1, page.Offset+int64(page.ReturnedLines), page.TotalLines)
	}
	return s.err
}
