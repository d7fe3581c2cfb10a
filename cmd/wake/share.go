package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/console"
	"code.wake.dev/wake/pkg/wire"
)

func (a hostVerbs) shareCommand() *cobra.Command {
	lasts := 24 * time.Hour
	cmd := &cobra.Command{
		Use:   "share RUN",
		Short: "Print a link that shows a run, and nothing else, for a time",
		Long: `Print a link to a run for a reader who has no token of the console. A reader with the link
reads that run until its time is over, without what looks like a secret, and can neither order nor
search anything. The console of --data-dir serves it, as far as others reach that.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.shareRun(cmd.Context(), args[0], lasts) },
	}
	cmd.Flags().DurationVar(&lasts, "for", lasts, "how long it is good for, 2160h at most")
	return cmd
}

// sharedLink is what the console answers.
type sharedLink struct {
	OK    bool   `json:"ok"`
	Text  string `json:"text"`
	Hint  string `json:"hint"`
	Link  string `json:"link"`
	Until int64  `json:"until"` // Unix ms

	Error *wire.APIError `json:"error"` // of a request that came no further
}

func (a hostVerbs) shareRun(ctx context.Context, ref string, lasts time.Duration) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	at, err := url.Parse(a.servedConsole(ctx, dir))
	if err != nil || at.Host == "" {
		return serviceError(string(wire.CodeUnreachable), "wake up serves one, and so does wake console; one with a certificate takes --tls-ca", "no console of %s answers", a.server.DataDir)
	}
	token := strings.TrimPrefix(at.Fragment, "token=")
	at.Fragment, at.RawFragment = "", ""
	at = at.JoinPath("runs", url.PathEscape(ref), "share")
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, http.MethodPost, at.String(), strings.NewReader(url.Values{"for": {lasts.String()}}.Encode()))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client, err := a.consoleClient()
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return serviceError(string(wire.CodeUnreachable), "", "share: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	var link sharedLink
	if err := json.NewDecoder(answer.Body).Decode(&link); err != nil {
		return fmt.Errorf("share: the console's answer: %w", err)
	}
	switch {
	case link.Error != nil:
		return link.Error
	case !link.OK:
		return serviceError(codeFailed, link.Hint, "%s", link.Text)
	case a.json:
		return a.printJSON(map[string]any{"link": link.Link, "until": link.Until})
	}
	if to, err := url.Parse(link.Link); err == nil && console.IsLoopback(to.Hostname()) {
		a.printNote("only this machine opens it: others need --public-url, or a console on --console-addr with a certificate of its name\n")
	}
	_, err = fmt.Fprintf(a.out, "%s\ngood until %s\n", link.Link, time.UnixMilli(link.Until).UTC().Format("2006-01-02 15:04:05 UTC"))
	return err
}
