package main

import (
	"bytes"
	"io"
	"os"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/timeline"
)

// comparedResult is a result with what the comparison of both feeds has shown.
type comparedResult struct {
	ingest.Result

	Completeness *completeness.Verdict `json:"completeness"`
}

// compareFeeds compares the stream that is named with a session: its file, its folder, or the folder that has both.
func compareFeeds(args []string, transcript string) (*completeness.Verdict, error) {
	if len(args) == 0 || args[0] == "-" {
		return nil, usageError("name the file of the stream", "--transcript: what comes by stdin can't be read twice")
	}
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
		return nil, usageError("name the file of the stream", "--transcript is compared with a stream, and %s is a folder", args[0])
	}
	stream, err := readFeed(args[0])
	if err != nil {
		return nil, err
	}
	file, err := sessionFile(transcript, stream.Session())
	if err != nil {
		return nil, err
	}
	session, err := readFeed(file)
	if err != nil {
		return nil, err
	}
	agents, err := subAgents(file)
	if err != nil {
		return nil, usageError("", "--transcript: %w", err)
	}
	for _, a := range agents {
		session.ReadAgent(a.File, a.Call, claude.Lines(bytes.NewReader(a.Content), claude.MaxLine))
	}
	v := completeness.Compare(stream, session)
	return &v, nil
}

func readFeed(file string) (completeness.Feed, error) {
	f, err := os.Open(file)
	if err != nil {
		return completeness.Feed{}, usageError("", "--transcript: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return completeness.Read(claude.Lines(f, claude.MaxLine)), nil
}

// printVerdict writes the verdict and its evidence.
func printVerdict(w io.Writer, v completeness.Verdict) error {
	p := printer{w: w}
	p.printLine("feeds: %s (%d in both)", v, v.Shared)
	for _, side := range []struct {
		name  string
		items []completeness.Item
	}{{"stream", v.StreamLacks}, {"transcript", v.TranscriptLacks}} {
		for _, i := range side.items {
			p.printLine("  the %s lacks %s", side.name, timeline.Line(i.String(), maxMessage))
		}
	}
	return p.err
}
