package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ingest"
)

// sessionFile returns the file of a session that is named itself or by a folder.
func sessionFile(name, session string) (string, error) {
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return name, nil //nolint:nilerr // reading it tells what is wrong
	}
	name = filepath.Clean(name)
	inside := filepath.Join(name, filepath.Base(session)+".jsonl") // whatever the stream says
	if file := firstFile(inside, name+".jsonl", filepath.Join(name, filepath.Base(name)+".jsonl")); file != "" {
		return file, nil
	}
	return "", usageError("name the file of the session", "--transcript: neither %s nor its folder has a session %s", name, session)
}

// firstFile returns the first that is a file, "" if none is.
func firstFile(names ...string) string {
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// onlySession returns the file of the session that the named folder belongs to, or the only session's in that folder.
func onlySession(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if file := firstFile(dir+".jsonl", filepath.Join(dir, filepath.Base(dir)+".jsonl")); file != "" {
		return file, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && filepath.Ext(e.Name()) == ".jsonl" && !strings.HasPrefix(e.Name(), "agent-") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	switch len(files) {
	case 0:
		return "", usageError("name the file of a session, or its folder", "input: %s is a folder without a session", dir)
	case 1:
		return files[0], nil
	}
	return "", usageError("name their files, or the folder of one", "input: %s is a folder of %d sessions", dir, len(files))
}

// openFeed opens what is named, or stdin. Of a folder it is a session: its file, with those of its sub-agents.
func (a fileVerbs) openFeed(input string, o *ingest.Options) (io.ReadCloser, error) {
	if info, err := os.Stat(input); err != nil || !info.IsDir() {
		return a.openInput(input)
	}
	if o.Format != ingest.Auto && o.Format != ingest.Transcript {
		return nil, usageError("name a file", "--format: a folder has sessions, and no %s", o.Format)
	}
	o.Format = ingest.Transcript
	name, err := onlySession(input)
	if err != nil {
		return nil, err
	}
	agents, err := subAgents(name)
	if err != nil {
		return nil, usageError("", "input: %w", err)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, usageError("", "input: %w", err)
	}
	if !a.json {
		a.printNote("%s, with the files of %d sub-agents\n", name, len(agents))
	}
	return sessionFiles{claude.MergeLines(f, agents), f}, nil
}

// sessionFiles reads all files of a session and closes the one that is open.
type sessionFiles struct {
	io.Reader
	io.Closer
}

// subAgents reads the files of a session's sub-agents.
func subAgents(file string) ([]agent.SubAgent, error) {
	return claude.SubAgents(os.DirFS(filepath.Dir(file)), filepath.Base(file))
}
