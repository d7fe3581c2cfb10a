package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) searchCommand() *cobra.Command {
	var q wire.SearchRequest
	var since, class string
	cmd := &cobra.Command{
		Use:   "search WORD...",
		Short: "Look for words in the logs of all runs, the newest first",
		Long: `Look for words in the logs of all runs, the newest first: lines that have all of
them, whatever their case.

    wake search nil pointer             both words
    wake search '"nil pointer"'         one after the other
    wake search 'config*' -- -test      words that begin so, without another one

What calls were given and answered is looked at, too: of more than 20 KiB the first
16 and the last 4.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("wake search WORD...", "WORD is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			q.Text, q.Type = strings.Join(args, " "), wire.LineType(class)
			return showAnswer(cmd.Context(), a.app, wire.VerbSearch, q, a.printHits)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Run, "run", "", "only in this `RUN`: its id, the beginning of one, a label, a session id, or @last")
	flags.StringVar(&q.Node, "node", "", "only lines of this `node`")
	flags.StringVar(&class, "type", "", "only lines of this `type`: text, thinking, tool, error, system or user")
	flags.StringVar(&since, "since", "", "only lines of this last `time`, such as 90s, 5m or 2d")
	filterFlags(flags, &q.Label, &q.Flow, &q.Status)
	flags.IntVar(&q.Limit, "limit", 20, "at most this `many`")
	flags.StringVar(&q.Cursor, "cursor", "", "go on where the page before ended")
	return cmd
}

// noteCut says that something of calls wasn't looked at.
func (a viewVerbs) noteCut(calls int64) {
	if calls > 0 {
		a.printNote("%s looked at only in part: of more than 20 KiB that a call was given, or answered, the first 16 and the last 4\n", wasWere(calls, "call"))
	}
}

// wasWere is "1 call was" or "2 calls were".
func wasWere(n int64, what string) string {
	if n == 1 {
		return "1 " + what + " was"
	}
	return fmt.Sprintf("%d %ss were", n, what)
}

// printHits prints a line about where something was found, and what.
func (a viewVerbs) printHits(found wire.SearchResponse) error {
	color := useColor(a.out)
	for _, h := range found.Hits {
		where := fmt.Sprintf("%s %s %s %s", time.UnixMilli(h.TS).Format(time.DateTime), timeline.Line(h.RunID, maxCell), timeline.Line(h.Node, nodeColumn), h.Type)
		if color {
			where = sgrText(dim, where)
		}
		text := "  " + strings.ReplaceAll(strings.TrimRight(emphasizedSnippet(h, color), "\n"), "\n", "\n  ")
		if _, err := fmt.Fprintf(a.out, "%s\n%s\n", where, text); err != nil {
			return err
		}
	}
	a.noteCut(found.Cut)
	if found.Through > 0 {
		if _, err := fmt.Fprintf(a.errOut, "what is recorded after position %d isn't indexed yet: ask again in a moment\n", found.Through); err != nil {
			return err
		}
	}
	if len(found.Hits) == 0 {
		_, err := fmt.Fprintln(a.errOut, "nothing was found")
		return err
	}
	if found.Cursor != "" {
		_, err := fmt.Fprintf(a.errOut, "more with --cursor %s\n", found.Cursor)
		return err
	}
	return nil
}

// emphasizedSnippet is a snippet with what was looked for in bold.
func emphasizedSnippet(h wire.SearchHit, color bool) string {
	if !color {
		return timeline.Sanitize(h.Snippet)
	}
	text := []rune(timeline.Sanitize(h.Snippet))
	var b strings.Builder
	at := 0
	for _, m := range h.Matches {
		if m.From < at || m.To < m.From || m.To > len(text) {
			break
		}
		b.WriteString(string(text[at:m.From]) + sgrText(bold, string(text[m.From:m.To])))
		at = m.To
	}
	return b.String() + string(text[at:])
}
